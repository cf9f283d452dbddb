"""A process that reads GPUs when it is told to: the library that NVML's bindings load is chosen once in a process.

Takes the seconds after which is looked anew. Each line on its standard input is a command, each line it writes the answer, as JSON: `read`
reads once, `start` reads in a thread from now on, `stop` ends that and waits until the thread
is over, `show` does nothing.
"""

from __future__ import annotations

import json
import sys
import threading
from dataclasses import asdict

from headway_exporter.health import nvml_events
from headway_exporter.health.nvml import NvmlInstrument, NvmlProbe

nvml_events.WAIT_MILLISECONDS = 20  # type: ignore[misc] # each set of GPUs ends a wait: a hundred of them took a minute


def main(look_seconds: str) -> None:
    """Until the end of the input."""
    instrument = NvmlInstrument(NvmlProbe(every_seconds=0.05, deadline_seconds=3.0, look_seconds=float(look_seconds)))
    for command in sys.stdin:
        if command == "read\n":
            instrument.read()
        elif command == "start\n":
            instrument.start()
        elif command == "stop\n":
            instrument.stop()
            for thread in threading.enumerate():
                if thread.name == "headway-nvml":
                    thread.join()
        told = [{"what": type(seen).__name__, **asdict(seen)} for seen in instrument.observations()]
        print(json.dumps({"samples": list(instrument.samples()), "told": told}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
