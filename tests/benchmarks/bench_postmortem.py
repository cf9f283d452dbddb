"""What a report on a year of incidents costs.

Run it with `make bench`. It writes the state folder of a run with 10,000 incidents, has `headway postmortem` make each form of the report
in a process of its own, interpreter start and imports included, and prints the best of the repetitions, because a shared machine only ever
adds time. The bound of the design is held against the seconds of a core, of which the command uses one: on a machine that does nothing else
the clock shows the same. Exits with 1 when it does not hold. Beside it, without a bound: the same incidents seen by two pods, and
a run of 2,048 ranks.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "exporter"))

from report_story import Story, many_ranks, ten_thousand

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_SECONDS: Final = 5.0
REPETITIONS: Final = 3


def main() -> int:
    """Prints the figures; 1 when the bound is broken."""
    broken = False
    for name, make, forms, bound in CASES:
        with tempfile.TemporaryDirectory() as folder:
            run = make().write(Path(folder))
            for form in forms:
                runs = [one_report(run, form) for _ in range(REPETITIONS if bound else 1)]
                wall, cpu = (min(one) for one in zip(*runs, strict=True))
                limit = f"at most {bound:g}" if bound else ""
                print(f"{name + ', ' + form:<36}{wall:8.2f} s, of which {cpu:5.2f} s of a core   {limit}".rstrip())
                broken = broken or (bound is not None and cpu > bound)
    return int(broken)


CASES: Final[tuple[tuple[str, Callable[[], Story], tuple[str, ...], float | None], ...]] = (
    ("10,000 incidents, 1 pod", lambda: ten_thousand(pods=1), ("html", "markdown", "json"), MOST_SECONDS),
    ("10,000 incidents, 2 pods", ten_thousand, ("html",), None),
    ("2,048 ranks", many_ranks, ("html",), None),
)


def one_report(run: Path, form: str) -> tuple[float, float]:
    """Seconds that the command takes, and those of a core that it uses: on a busy machine they differ."""
    command = [sys.executable, "-m", "headway", "postmortem", str(run), "--format", form]
    begin, used = time.perf_counter(), children_seconds()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begin, children_seconds() - used


def children_seconds() -> float:
    """Processor time of all ended child processes."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    sys.exit(main())
