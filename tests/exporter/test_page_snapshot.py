"""What the page and its API say, against the books and the stories that pods are told."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from golden_story import FOLDER, load, pod_after
from incident_tale import Tale
from page_story import status, taken
from pod_story import Story
from state_story import RUNS, write

from headway_exporter import memory
from headway_exporter.history import RECENT_WIDTH
from headway_exporter.labels import DROP_REASONS
from headway_exporter.page import others as others_module
from headway_exporter.page import snapshot, taking
from headway_exporter.page.notes import DROPPED
from headway_exporter.page.others import Others
from headway_exporter.pod import Pod
from headway_exporter.state_files import LEDGER

if TYPE_CHECKING:
    from pathlib import Path

    from headway_exporter.page.model import Timeline

CASES = sorted(FOLDER.glob("*.yaml"))
HOUR = 3_600


def summed(timeline: Timeline) -> dict[int, Counter[str]]:
    total: dict[int, Counter[str]] = {}
    for slot in timeline.slots:
        total[slot.slot] = Counter()
        for bucket in slot.buckets:
            total[slot.slot].update(bucket.rank_seconds)
    return total


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_timeline_accounts_for_all_time(path: Path) -> None:
    """What is drawn of each rank, what is still open included, is its whole time: nothing is blank that somebody waits in."""
    pod = pod_after(load(path))
    look = taken(pod)
    for number, states in summed(snapshot.timeline(look, "hour")).items():
        books = pod.ledger.slots[number]
        elapsed = books.elapsed(pod.now_ns) / 1e9
        if pod.now < HOUR:
            assert sum(states.values()) == pytest.approx(elapsed, abs=1e-3)
        else:
            assert sum(states.values()) <= elapsed + 1e-3


def test_a_hang_is_drawn_up_to_now() -> None:
    """A step that does not end is not blank: its time is there, as what nobody knows yet."""
    story = Story()
    end = story.running(steps=20)
    story.pod.advance(end + 90)
    assert {states["pending"] for states in summed(snapshot.timeline(taken(story.pod), "hour")).values()} == {90}


def test_only_the_last_hour_of_a_long_run_is_in_detail() -> None:
    """After three hours: an hour in stretches of 16 seconds, and the whole run beside it."""
    story = Story()
    story.running(steps=3 * HOUR)
    look = taken(story.pod)
    hour, whole = snapshot.timeline(look, "hour"), snapshot.timeline(look, "run")
    assert hour.width_seconds == RECENT_WIDTH / 1e9
    assert whole.width_seconds > hour.width_seconds
    for states in summed(hour).values():
        assert HOUR - 16 <= sum(states.values()) <= HOUR
    for states in summed(whole).values():
        assert states["productive"] == 3 * HOUR


def test_after_a_restart_the_whole_history_fills_what_was_before() -> None:
    """A sidecar that comes back knows the last hour in less detail, and does not leave it blank."""
    story = Story()
    story.running(steps=3 * HOUR)
    again = Pod("story", "0")
    memory.recall(again, memory.encoder().encode(story.pod))
    again.advance(story.pod.now)
    before, after = (summed(snapshot.timeline(taken(pod), "hour")) for pod in (story.pod, again))
    assert after[0].keys() == before[0].keys()
    for number, states in before.items():
        assert sum(after[number].values()) == pytest.approx(sum(states.values()), abs=64)


def test_what_a_failure_would_cost() -> None:
    """Steps above the durable checkpoint, and the time since the checkpoint's own step; without one everything."""
    tale = Tale()
    assert status(taken(tale.pod)).at_risk.steps == 10
    tale.event(0, "checkpoint", tale.now, stage="requested", step=10)
    tale.tell("commit 10, steps 11-25, wait 4")
    at_risk = status(taken(tale.pod)).at_risk
    assert at_risk.steps == 15
    assert at_risk.exposure_seconds == pytest.approx(15 + 4 + 3, abs=1.5)


@pytest.mark.parametrize(
    ("name", "level", "fate"),
    [
        ("nothing", "good", "finished"),
        ("recovered", "good", "finished"),
        ("recurring", "bad", "failing"),
        ("under_way", "attention", "failing"),
        ("abandoned", "bad", "abandoned"),
        ("cancelled", "attention", "stopped"),
    ],
)
def test_one_word_for_how_it_is(name: str, level: str, fate: str) -> None:
    """Who is woken up sees first whether to act."""
    [run] = RUNS[name]()
    found = status(taken(run.pod, state_dir=True, instruments=("nvml",)))
    assert (found.level, found.fate) == (level, fate)


def test_no_step_for_long_is_not_fine() -> None:
    """A pod whose state says that it trains, and that does not, is not shown as its last good self."""
    story = Story()
    end = story.running(steps=50)
    for wait, level in ((60, "good"), (200, "bad")):
        story.event(0, "sample", end + wait, step=50)
        look = taken(story.pod)
        assert status(look).level == level
    assert "No step was complete for 3 min" in status(look).facts[0]


def test_an_evaluation_may_take_long() -> None:
    """So may a checkpoint: what is known to go on is no stall."""
    story = Story()
    end = story.running(steps=50)
    for slot in (0, 1):
        story.event(slot, "phase", end, name="eval", edge="begin")
    story.event(0, "sample", end + 500, step=50)
    assert status(taken(story.pod)).level == "good"


def test_a_silent_trainer_is_told_of() -> None:
    """A trainer tells something every five seconds: after a minute without, what is shown of it is old, and the page says so."""
    story = Story()
    end = story.running(steps=5)
    story.pod.advance(end + 100)
    assert "told nothing for 1 min" in " ".join(note.text for note in status(taken(story.pod)).notes)


def test_without_a_trainer_the_page_says_what_to_do() -> None:
    """The first thing that anybody sees: which folder is looked at, and under which name."""
    found = status(taken(Pod("story", "0")))
    assert found.fate == "waiting"
    assert "/run/headway/story" in found.facts[0]
    assert "HEADWAY_RUN=story" in found.facts[0]
    assert (found.step, found.at_risk.steps, found.training_goodput) == (None, None, None)


@pytest.mark.parametrize(("seconds", "level"), [(20.0, "good"), (599.0, "good"), (700.0, "attention")])
def test_a_trainer_that_never_comes_is_not_fine(seconds: float, level: str) -> None:
    """A folder that trainer and sidecar do not share looks like this for ever: from ten minutes on, somebody should look."""
    found = status(taken(Pod("story", "0"), watched_seconds=seconds))
    assert found.level == level
    assert any("No trainer has told anything" in note.text for note in found.notes) is (level == "attention")


@pytest.mark.parametrize("reason", DROP_REASONS)
def test_whatever_is_not_in_the_numbers_is_told(reason: str) -> None:
    """Each reason for which something was left out has words that say what to do."""
    pod = Pod("story", "0")
    pod.dropped[reason] = 12_345
    text = " ".join(note.text for note in status(taken(pod)).notes)
    assert reason in text
    assert "12\u202f345" in text
    assert DROPPED[reason] in text


def test_a_state_folder_in_trouble_comes_first() -> None:
    """Counters stand still then, and the sidecar's memory is at stake."""
    pod = Pod("story", "0")
    pod.dropped["torn"] = 1
    found = status(taken(pod, state_dir=True, state_trouble="cannot write /state: No space left on device"))
    assert found.notes[0].level == found.level == "bad"
    assert "No space left" in found.notes[0].text


def test_incidents_are_told_newest_first_and_counted() -> None:
    """`limit` cuts the list, never the count."""
    [run] = RUNS["many"]()
    look = taken(run.pod)
    whole = snapshot.whole_run(look, snapshot.own_pod(look), {})
    found = snapshot.incidents(look, whole, 7)
    assert (len(found.incidents), found.total) == (7, 50)
    opened = [one.opened_wall for one in found.incidents]
    assert opened == sorted(opened, reverse=True)
    assert found.incidents[0].cause in ("app_exception", "process_killed")
    assert found.incidents[0].evidence


def gpu_samples(**values: float) -> tuple[taking.Sample, ...]:
    labels = ("3", "GPU-a", "0000:01:00.0", "H100")
    return tuple((f"headway_gpu_{name}", labels, value) for name, value in values.items())


def test_a_gpu_is_shown_with_its_rank() -> None:
    """The strip says which rank suffers from which GPU."""
    story = Story()
    story.running(steps=3, gpu_uuid="GPU-a")
    measured = (
        *gpu_samples(up=1.0, utilization_ratio=0.5, memory_used_bytes=2.0, memory_total_bytes=8.0, power_watts=300.0),
        ("headway_gpu_throttle_active", ("3", "GPU-a", "0000:01:00.0", "H100", "hw_thermal"), 1.0),
        ("headway_gpu_throttle_active", ("3", "GPU-a", "0000:01:00.0", "H100", "sw_thermal"), 0.0),
    )
    [gpu] = status(taken(story.pod, measured=measured, instruments=("nvml",))).gpus
    assert (gpu.gpu, gpu.up, gpu.ranks, gpu.utilization_ratio, gpu.throttled) == (
        "3",
        True,
        (0, 1),
        0.5,
        ("hw_thermal",),
    )


def test_a_gpu_that_does_not_answer_has_no_values() -> None:
    """A dead source is shown as dead, never as its last good value."""
    found = status(taken(Pod("story", "0"), measured=gpu_samples(up=0.0), instruments=("nvml",)))
    [gpu] = found.gpus
    assert "GPU 3 of this machine: no answer." in [note.text for note in found.notes if note.level == "attention"]
    assert (gpu.up, gpu.utilization_ratio, gpu.power_watts) == (False, None, None)


@pytest.mark.parametrize(
    ("instruments", "measured", "words"),
    [
        ((), (), "--gpus off"),
        (("nvml",), (), "no NVIDIA driver"),
        (("nvml",), (("headway_collector_success", ("nvml",), 0.0),), "driver cannot be read"),
    ],
)
def test_why_no_gpu_is_shown(instruments: tuple[str, ...], measured: tuple[taking.Sample, ...], words: str) -> None:
    """Not asked, not there, and hanging are three things."""
    found = status(taken(Pod("story", "0"), instruments=instruments, measured=measured))
    assert words in " ".join(note.text for note in found.notes)


class TestOtherPods:
    """Three real ledgers in a state folder."""

    def words(self, state_dir: Path) -> Others:
        """What pod 0 makes of them."""
        others = Others(state_dir / "story", "story", "0")
        others.watched()
        for _ in range(3):
            others.turn()
        return others

    def test_the_run_is_what_all_pods_say(self, tmp_path: Path) -> None:
        """Step and mark are those of the furthest pod, goodput is of all ranks' time, and each pod has its line."""
        pods = RUNS["three_pods"]()
        write(tmp_path, pods)
        look = taken(pods[0].pod, state_dir=True)
        found = status(look, self.words(tmp_path).words)
        assert found.whole is not None
        assert [one.pod_index for one in found.whole.pods] == ["0", "1", "2"]
        assert [one.here for one in found.whole.pods] == [True, False, False]
        assert (found.whole.pods_expected, found.whole.pods_heard) == (3, 3)
        assert found.whole.step == max(pod.pod.steps.step or 0 for pod in pods)
        totals = [pod.pod.ledger.totals(round(pod.now * 1e9)) for pod in pods]
        assert found.whole.training_goodput == pytest.approx(
            sum(one.states["productive"] - one.unregained for one in totals) / sum(one.counted for one in totals),
            rel=0.02,
        )

    def test_a_silent_pod_is_shown_as_silent(self, tmp_path: Path) -> None:
        """Not as what it last said: it may be gone for hours."""
        pods = RUNS["three_pods"]()
        write(tmp_path, pods)
        look = taken(pods[0].pod, state_dir=True)
        later = replace(look, wall=look.wall + 600)
        found = status(later, self.words(tmp_path).words)
        assert found.whole is not None
        assert [(one.silent, one.state) for one in found.whole.pods[1:]] == [(True, None)] * 2
        assert found.whole.pods_heard == 1
        assert "Nothing was heard lately of 2 pods: 1, 2." in found.facts

    def test_a_damaged_ledger_costs_its_pod_only(self, tmp_path: Path) -> None:
        """The others are shown, and it is shown as not heard."""
        pods = RUNS["three_pods"]()
        write(tmp_path, pods)
        (tmp_path / "story" / "2" / LEDGER).write_text("no ledger")
        found = status(taken(pods[0].pod, state_dir=True), self.words(tmp_path).words)
        assert found.whole is not None
        assert [one.silent for one in found.whole.pods] == [False, False, True]

    def test_nothing_is_read_when_nobody_looks(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Thousands of pods must not read each other's ledgers for nobody."""
        write(tmp_path, RUNS["three_pods"]())
        others = Others(tmp_path / "story", "story", "0")
        others.turn()
        assert others.words == {}
        monkeypatch.setattr(others_module, "WATCHED_SECONDS", -1.0)
        seen = self.words(tmp_path)
        assert seen.words == {}


def test_pods_that_were_never_heard_are_missing() -> None:
    """With a shared folder, and three pods told of, one alone is one of three."""
    look = taken(RUNS["three_pods"]()[0].pod, state_dir=True)
    found = status(look)
    assert found.whole is not None
    assert (found.whole.pods_heard, found.whole.pods_expected) == (1, 3)
    assert status(replace(look, state_dir=False)).whole is None


def test_alone_the_page_says_so() -> None:
    """A number of one pod must not be read as that of the run."""
    [run] = RUNS["nothing"]()
    found = status(taken(run.pod))
    assert found.whole is None
    assert "Only this pod is shown" in " ".join(note.text for note in found.notes)
