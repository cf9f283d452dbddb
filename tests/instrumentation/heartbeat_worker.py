"""A worker under ft_launcher, for test_nvrx_heartbeat.py: beats, is killed once, and at last loses its rank monitor."""

from __future__ import annotations

import os
import signal
import socket
import time

from headway.nvrx.heartbeat import Heartbeat
from headway.recorder import Recorder


def main() -> None:
    recorder = Recorder.from_env()
    cycle = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    for _ in range(2):  # two connections, as after an in-process restart
        with Heartbeat(recorder) as heartbeat:
            print("cycle", cycle, "connected", heartbeat.connected, flush=True)
            recorder.train_entered(incarnation="a", rank=0, world_size=1)
            if cycle == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            with recorder.phase("eval"):
                time.sleep(0.2)
                heartbeat.beat()
            heartbeat.beat()
            print("still connected", heartbeat.connected, flush=True)
    with Heartbeat(recorder) as heartbeat:
        heartbeat._client.rank_monitor_socket.shutdown(socket.SHUT_RDWR)  # as when the monitor has gone
        heartbeat.beat()
        heartbeat.beat()
        print("without a monitor", heartbeat.connected, flush=True)
    recorder.close()


if __name__ == "__main__":
    main()
