"""Training processes out of one that has imported the framework already: each is a process of its own, and ends as one does.

Its argument is the worker's file. Each line of its input is a JSON object: `folder` to work in, `environ` to add, `told` to the worker;
it answers with the exit code. Importing a framework takes seconds, and nearly all of the tests' time without this.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

LONGEST_SECONDS = 240


def become(worker: Path, asked: dict[str, Any]) -> None:
    """Makes this fork what a start from the command line would be."""
    os.chdir(asked["folder"])
    os.environ.update(asked["environ"])
    output = os.open("output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for mine, inherited in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(mine, inherited)
    sys.argv = [str(worker), json.dumps(asked["told"])]
    signal.alarm(LONGEST_SECONDS)


def main() -> None:
    """Forks, waits and answers; a fork leaves the loop and goes on as the worker."""
    worker = Path(sys.argv[1])
    module = importlib.import_module(worker.stem)
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if child == 0:
            become(worker, asked)
            module.main(asked["told"])
            return
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
