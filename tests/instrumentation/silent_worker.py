"""A worker under ft_launcher, for test_nvrx_heartbeat.py: connects, is restarted in process at once, connects again, and hangs."""

from __future__ import annotations

import time

from headway.nvrx.heartbeat import Heartbeat
from headway.recorder import Recorder


def main() -> None:
    recorder = Recorder.from_env()
    with Heartbeat(recorder):
        pass  # the iteration failed before its first step
    with Heartbeat(recorder) as heartbeat:
        print("connected", heartbeat.connected, flush=True)
        time.sleep(600)


if __name__ == "__main__":
    main()
