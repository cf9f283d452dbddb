"""Three pods with a sidecar and trainers each, one shared folder and clocks that disagree: one failure, one origin, counted once."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from journal_folder import HERE, RUN, finish, meet, trainer, wait_ready
from quick_sidecar import QUICK
from sidecar_process import sidecar
from wrong_clock import library, wrong_by

from headway_exporter.incident_ids import incident_id
from headway_exporter.state_files import read_ledger

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sidecar_process import Sidecar

pytestmark = pytest.mark.slow

PODS = (0, 1, 2)


@dataclass
class Pod:
    """One pod: its sidecar, its journals, its clock."""

    number: int
    folder: Path
    environ: dict[str, str]
    sidecar: Sidecar
    trainers: list[subprocess.Popen[str]] = field(default_factory=list)

    def train(self, *acts: str, cycle: int = 0, world: int = 3) -> subprocess.Popen[str]:
        """The pod's one rank."""
        ranks = {
            "RANK": str(self.number),
            "WORLD_SIZE": str(world),
            "HEADWAY_PODS": "3",
            "HEADWAY_NODE": f"n{self.number}",
        }
        started = trainer(self.folder, 0, *acts, cycle=cycle, **(self.environ | ranks))
        self.trainers.append(started)
        return started

    def incident(self, **wanted: Any) -> dict[str, Any]:
        """The pod's last incident, once it is as wanted."""
        deadline = time.monotonic() + 60
        while True:
            found = self.sidecar.status()["incidents"]
            if found and all(found[-1][name] == value for name, value in wanted.items()):
                return dict(found[-1])
            assert time.monotonic() < deadline, json.dumps(found, indent=1)
            time.sleep(0.1)

    def counted(self) -> dict[str, float]:
        """What the pod counts of causes and origins, as far as it is not 0."""
        names = (
            "headway_restart_causes_total",
            "headway_incident_causes_total",
            "headway_rank_failures_total",
        )
        return {
            " ".join([name, *(text for _, text in labels)]): value
            for (name, labels), value in self.sidecar.samples().items()
            if name in names and value
        }


@contextlib.contextmanager
def pods(tmp_path: Path, *environs: dict[str, str]) -> Iterator[list[Pod]]:
    """Three of them with one state folder; all that was started is gone afterwards."""
    program = (str(HERE / "quick_sidecar.py"),)
    with contextlib.ExitStack() as stack:
        found = []
        for number, environ in zip(PODS, environs or ({}, {}, {}), strict=True):
            folder = tmp_path / f"pod{number}"
            folder.mkdir()
            options = ("--pod-index", str(number), "--state-dir", str(tmp_path / "state"))
            process = stack.enter_context(sidecar(folder, *options, program=program, **environ))
            found.append(Pod(number, folder, environ, process))
        try:
            yield found
        finally:
            for one in found:
                for process in one.trainers:
                    process.kill()
                    process.communicate()


def dead(status: dict[str, Any]) -> bool:
    """Its sidecar knows of the rank, and of its end."""
    return bool(status["ranks"]) and not status["ranks"][0]["alive"]


def lives(status: dict[str, Any]) -> bool:
    """Its sidecar follows the rank."""
    return bool(status["ranks"]) and bool(status["ranks"][0]["alive"])


def fail(found: list[Pod], dies: int) -> None:
    """All train; the rank of one pod dies, and a moment later the others see a broken collective."""
    first = []
    for one in found:
        then = ("wait",) if one.number == dies else ("meet", "echo", "ready", "wait")
        first.append(one.train("meet", "enter=a", "load=0", "steps=1-6", "commit=4", "ready", *then))
    meet(*first)
    for process in first:
        wait_ready(process)
    first[dies].kill()
    found[dies].sidecar.until(dead, "the death")
    others = [process for process in first if process is not first[dies]]
    meet(*others)
    for process in others:
        wait_ready(process)


def recover(found: list[Pod]) -> None:
    """All start again, and prove that it lasts."""
    for one in found:
        for process in one.trainers:
            process.kill()
            process.communicate()
        one.trainers.clear()
    acts = ("meet", "enter=b", "load=4", "steps=5-9", "commit=8", "finish=9")
    again = [one.train(*acts, cycle=1, world=len(found)) for one in found]
    meet(*again)
    finish(*again)


@pytest.mark.parametrize("skews", [(0, 0, 0), (20, -20, 0), (-20, 20, 5)])
def test_a_failure_counts_once_whatever_the_clocks_say(tmp_path: Path, skews: tuple[int, int, int]) -> None:
    """Pods whose clocks differ by 40 s agree on the rank that died, and only its own pod counts it."""
    environs = [{}, {}, {}]
    if any(skews):
        made = library(tmp_path)
        environs = [wrong_by(made, seconds) for seconds in skews]
    with pods(tmp_path, *environs) as found:
        fail(found, 1)
        recover(found)
        for one in found:
            told = one.incident(decided_by="verdict", state="recovered")
            assert (told["cause"], told["origin_rank"], told["origin_pod_index"]) == ("process_killed", 1, "1")
            assert (told["ambiguous"], told["origin_node"]) == (False, "n1")
        assert [one.counted() for one in found] == [
            {},
            {
                "headway_restart_causes_total process_killed launcher": 1,
                "headway_incident_causes_total process_killed launcher": 1,
                "headway_rank_failures_total 1": 1,
            },
            {},
        ]
    folder = tmp_path / "state" / RUN / "incidents" / incident_id(RUN, "a", "", 0.0)
    assert {path.name for path in folder.iterdir()} == {"0.json", "1.json", "2.json", "verdict.json"}
    claims = [json.loads((folder / f"{number}.json").read_text()) for number in PODS]
    measured = [one["offset_seconds"] for one in claims]
    assert [round(one) for one in measured] == list(skews)


@pytest.mark.parametrize("skews", [(0, 20, -20)])
def test_of_two_deaths_the_earlier_one_is_the_origin(tmp_path: Path, skews: tuple[int, int, int]) -> None:
    """The wall clocks tell them in the wrong order; the file server's clock puts that right."""
    made = library(tmp_path)
    with pods(tmp_path, *[wrong_by(made, seconds) for seconds in skews]) as found:
        first = [one.train("meet", "enter=a", "load=0", "steps=1-6", "ready", "wait") for one in found]
        meet(*first)
        for process in first:
            wait_ready(process)
        for one in found:  # one that is only found dead later has no time of death
            one.sidecar.until(lives, "a living rank")
        for number in (1, 2):  # pod 1's clock is 40 s ahead of pod 2's
            first[number].kill()
            found[number].sidecar.until(dead, "the death")
            time.sleep(1.0)
        for one in found[1:]:
            told = one.incident(decided_by="verdict")
            assert (told["origin_rank"], told["origin_pod_index"], told["ambiguous"]) == (1, "1", False)


def test_a_pod_that_is_gone_for_good_is_the_origin_and_counted_by_the_lowest(tmp_path: Path) -> None:
    """Sidecar and all, before it could say a word: its silence is the evidence, and one that lives counts for it."""
    with pods(tmp_path) as found:
        lost = found[2]
        first = [
            one.train("meet", "enter=a", "load=0", "steps=1-6", "commit=4", "ready", "meet", "echo", "ready", "wait")
            for one in found
        ]
        meet(*first)
        for process in first:
            wait_ready(process)
        ledger = tmp_path / "state" / RUN / "2" / "ledger.json"
        wait_for(lambda: read_ledger(ledger).body["summary"]["node"] == "n2")
        lost.sidecar.process.kill()
        first[2].kill()
        meet(*first[:2])
        for process in first[:2]:
            wait_ready(process)
        survivors = found[:2]
        for one in survivors:
            told = one.incident(decided_by="verdict")
            assert (told["cause"], told["origin_pod_index"], told["origin_node"]) == ("node_lost", "2", "n2")
        recover(survivors)
        for one in survivors:
            one.incident(state="recovered")
        assert [one.counted() for one in survivors] == [
            {
                "headway_restart_causes_total node_lost launcher": 1,
                "headway_incident_causes_total node_lost launcher": 1,
            },
            {},
        ]


def test_a_sidecar_that_is_started_anew_counts_what_waited_once(tmp_path: Path) -> None:
    """The verdict's writer dies between the failure and the verdict; it comes back, and the sums are those of one failure."""
    with pods(tmp_path) as found:
        fail(found, 0)
        wait_for((tmp_path / "state" / RUN / "incidents" / incident_id(RUN, "a", "", 0.0) / "0.json").exists)
        found[0].sidecar.process.kill()
        found[0].sidecar.process.wait()
        program = (str(HERE / "quick_sidecar.py"),)
        options = ("--pod-index", "0", "--state-dir", str(tmp_path / "state"))
        with sidecar(found[0].folder, *options, program=program) as again:
            found[0].sidecar = again
            recover(found)
            for one in found:
                told = one.incident(decided_by="verdict", state="recovered")
                assert (told["cause"], told["origin_rank"]) == ("process_killed", 0)
            assert [sum(one.counted().values()) for one in found] == [3, 0, 0]


def wait_for(condition: Callable[[], bool]) -> None:
    """Until it holds; what is read may not be there yet."""
    deadline = time.monotonic() + 30
    held = False
    while not held:
        assert time.monotonic() < deadline, f"{condition} does not hold after 30 s"
        time.sleep(0.05)
        with contextlib.suppress(FileNotFoundError):
            held = condition()


def test_without_pods_to_ask_nothing_is_asked(tmp_path: Path) -> None:
    """A run of one pod decides at once, though it has a state folder."""
    state = tmp_path / "state"
    folder = tmp_path / "pod"
    folder.mkdir()
    with sidecar(folder, "--state-dir", str(state), program=(str(HERE / "quick_sidecar.py"),)) as alone:
        process = trainer(folder, 0, "enter=a", "load=0", "steps=1-6", "ready", "wait", ranks=1)
        finish(process, kill=True)
        status = alone.until(lambda status: status["incidents"], "the incident")
        assert status["incidents"][-1]["decided_by"] == "alone"
        time.sleep(2 * QUICK.verdict_after_seconds / 3)
        assert not (state / RUN / "incidents").exists()
