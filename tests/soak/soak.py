"""Kills trainers, launchers and sidecars at random, for as long as one likes, and checks after each kill that the books still add up.

    python tests/soak/soak.py --kills 500            (make soak)
    python tests/soak/soak.py --kills 500 --seed 7   (the same kills again)

Each kill is a SIGKILL. After a container's main process is gone, everything in the container goes, and a new one is started, as an
orchestrator would. A sidecar that can keep its counters (`--state-dir`) must keep them over its own death; one that cannot starts anew and
reads the journals again. Exit codes: 0 all held, 1 something did not (the seed is printed), 2 bad usage.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

HERE: Final = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "exporter")]

import sidecar_process  # noqa: E402 - found by the line above
import soak_books as books  # noqa: E402
from journal_folder import RUN  # noqa: E402

from headway_exporter.state_files import RECORDS, pod_folder, read_records  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from soak_books import Samples

RANKS: Final = 2
TARGETS: Final = {"trainer": 14, "sidecar": 3, "container": 2, "launcher": 1}
BURSTS: Final = 0.2
"""Share of kills that do not wait until training goes on again."""
PATIENCE_SECONDS: Final = 60.0


class Soak:
    """A pod under fire."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.dice = random.Random(seed)
        self.kills: Counter[str] = Counter()
        self.hasty = 0
        self._journal = folder / "journal"
        self._books = folder / "books"
        self._stop = folder / "stop"
        self._state = folder / "state"
        self._trainers = [books.RankBooks(self._books / f"rank-{rank}.log") for rank in range(RANKS)]
        self._attempt = 0
        self._stack = contextlib.ExitStack()
        self._before: Samples = {}
        self._forgot = False
        for made in (self._journal, self._books, self._state):
            made.mkdir()
        self._durable = (
            "--state-dir"
            in subprocess.run(
                [sys.executable, "-m", "headway_exporter", "--help"], capture_output=True, text=True, check=True
            ).stdout
        )
        self._sidecar = self._start_sidecar()
        self._container = self._start_container()

    # The pod.

    def _start_sidecar(self) -> sidecar_process.Sidecar:
        options = ("--state-dir", str(self._state)) if self._durable else ()
        return self._stack.enter_context(sidecar_process.sidecar(self._journal, *options))

    def _start_container(self) -> subprocess.Popen[bytes]:
        launcher = [sys.executable, str(HERE / "soak_launcher.py"), str(RANKS), str(self._books), str(self._stop)]
        environ = {"HEADWAY_DIR": str(self._journal), "HEADWAY_RUN": RUN, "HEADWAY_POD_INDEX": "0", "HEADWAY_PODS": "1"}
        return subprocess.Popen(
            [sys.executable, "-m", "headway", "run", "--", *launcher],
            env=os.environ | environ | {"HEADWAY_ATTEMPT": str(self._attempt)},
            stderr=subprocess.DEVNULL,
        )

    def close(self) -> None:
        """Ends all processes."""
        self._end_container()
        self._stack.close()

    def _end_container(self) -> None:
        end(tree(self._container.pid))
        self._container.wait()

    # The kills.

    def kill(self) -> str:
        """One kill, and what an orchestrator does about it."""
        target = self.dice.choices(list(TARGETS), list(TARGETS.values()))[0]
        time.sleep(self.dice.uniform(0.0, 0.3))
        if target == "sidecar":
            self._kill_sidecar()
        elif target == "trainer":
            self._kill_trainer(self.dice.randrange(RANKS))
        else:
            self._kill_container(target)
        self.kills[target] += 1
        return target

    def _kill_trainer(self, rank: int) -> None:
        named = self._books / f"rank-{rank}.pid"
        pid = int(named.read_text()) if named.exists() else 0
        if pid in tree(self._container.pid):
            end([pid])
        else:
            self.hasty += 1  # it is gone, and its successor is not there yet: nobody was killed

    def _kill_sidecar(self) -> None:
        self._sidecar.process.kill()
        self._sidecar.process.wait()
        self._sidecar = self._start_sidecar()
        if not self._durable:
            self._before = {}
            self._forgot = True  # of older lives only the events are left: their rings are gone
        self._until(self._caught_up, "a sidecar that has caught up", check=False)

    def _kill_container(self, target: str) -> None:
        processes = tree(self._container.pid)
        if target == "launcher":
            end(processes[1:2])
        end(processes)
        self._container.wait()
        self._attempt += 1
        self._container = self._start_container()

    # The checks.

    def check(self, *, complete: bool = False) -> None:
        """One scrape against all invariants that hold at any time."""
        samples = self._sidecar.samples()
        now = time.monotonic()
        trainers = self._read_books()
        books.check_time(samples)
        books.check_counters(self._before, samples)
        late = books.behind(samples, time.time())
        books.check_clock(samples, trainers, now, late, complete=complete)
        books.check_steps(samples, trainers, complete=complete and not self._forgot)
        books.check_restarts(samples, least=0, most=self.killed)
        self._before = samples

    @property
    def killed(self) -> int:
        """Kills that a restart follows."""
        return sum(self.kills.values()) - self.kills["sidecar"]

    def settle(self) -> None:
        """Waits until every rank trains again and the sidecar has seen it; restarts are then exactly known."""
        began = self._done()
        self._until(
            lambda: all(now > 5 + at for now, at in zip(self._done(), began, strict=True)), "steps of every rank"
        )
        least = self.killed - self.hasty
        self._until(lambda: self._restarts() >= least and self._trains(), f"{least} restarts")
        self.check()

    def _done(self) -> list[int]:
        return [one.completions for one in self._read_books()]

    def _read_books(self) -> list[books.RankBooks]:
        for one in self._trainers:
            one.read()
        return self._trainers

    def _restarts(self) -> float:
        return books.total(self._sidecar.samples(), "headway_restarts_total")

    def _caught_up(self) -> bool:
        with contextlib.suppress(books.BrokenError):
            samples = self._sidecar.samples()
            late = books.behind(samples, time.time())
            books.check_clock(samples, self._read_books(), time.monotonic(), late)
            return True
        return False

    def _trains(self) -> bool:
        return self._sidecar.status()["state"] in ("productive", "replay")

    def finish(self) -> None:
        """Lets the run come to its end, and compares the last word."""
        self._stop.touch()
        if self._container.wait(timeout=PATIENCE_SECONDS) != 0:
            raise books.BrokenError(f"the launcher ended with {self._container.returncode}")
        self._until(lambda: self._sidecar.status()["finished"], "the end of the run")
        self.check(complete=True)
        if self._durable:
            books.check_records(read_records(pod_folder(self._state, RUN, "0") / RECORDS), self._before)

    def _until(self, condition: Callable[[], object], what: str, *, check: bool = True) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise books.BrokenError(f"{what}: not within {PATIENCE_SECONDS:g} s; {self._sidecar.status()}")
            if check:
                self.check()
            time.sleep(0.1)


def tree(pid: int) -> list[int]:
    """The process and all below it."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return [pid]
    return [pid, *(below for child in children for below in tree(int(child)))]


def end(processes: list[int]) -> None:
    """Kills them, the first one first: the end of a container's main process ends all others in it."""
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def run(kills: int, seed: int, report: Callable[[str], None] = lambda _: None) -> Counter[str]:
    """So many kills; returns how many of each sort.

    Raises:
        BrokenError: an invariant did not hold.
    """
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        soak = Soak(Path(folder), seed)
        try:
            soak.settle()
            for number in range(1, kills + 1):
                target = soak.kill()
                hasty = soak.dice.random() < BURSTS
                soak.hasty += hasty and target != "sidecar"
                soak.check() if hasty else soak.settle()
                report(f"{number} of {kills}: {target}")
            soak.settle()
            soak.finish()
        finally:
            soak.close()
    return soak.kills


def main(argv: Sequence[str] | None = None) -> int:
    """Runs it from the command line."""
    parser = argparse.ArgumentParser(description="Kills everything at random and checks that the books add up.")
    parser.add_argument("--kills", type=int, default=500, help="default %(default)s; about one a second")
    parser.add_argument("--seed", type=int, default=None, help="repeat the kills of an earlier soak")
    options = parser.parse_args(argv)
    seed = random.SystemRandom().randrange(1 << 31) if options.seed is None else options.seed
    print(f"soak: {options.kills} kills, seed {seed}", flush=True)
    try:
        kills = run(options.kills, seed, lambda line: print(line, flush=True))
    except books.BrokenError as error:
        again = f"python tests/soak/soak.py --kills {options.kills} --seed {seed}"
        print(f"soak: {error}\nsoak: once more with: {again}", file=sys.stderr)
        return 1
    print(f"soak: all held after {dict(kills)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
