"""The sidecar's memory, saved and read back: the same answers, whatever was going on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from golden_story import FOLDER, WALL, load, observations
from hypothesis import given, settings
from hypothesis import strategies as st
from incident_tale import Tale
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry
from test_accounting_properties import in_order, new_pod, sequences, visible

from headway_exporter import collectors
from headway_exporter.codec import CodecError, Encoder, Registry, decode
from headway_exporter.memory import REGISTRY, encoder, recall
from headway_exporter.pod import Pod
from headway_exporter.status import status

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headway_exporter.observations import Observation


def through_a_file(pod: Pod, using: Encoder | None = None) -> Pod:
    """The pod as a sidecar that starts anew finds it."""
    document = json.loads(json.dumps((using or encoder()).encode(pod), allow_nan=False))
    again = Pod(pod.run, pod.pod_index)
    recall(again, document)
    return again


class Shown(Collector):
    """What a scrape of the pod shows."""

    def __init__(self, pod: Pod) -> None:
        self.pod = pod

    def collect(self) -> Iterator[Any]:
        parts = (collectors.run, collectors.steps, collectors.ledger, collectors.checkpoints)
        parts += (collectors.restarts, collectors.incidents)
        samples = [sample for part in parts for sample in part(self.pod)]
        samples += collectors.sources(self.pod, self.pod.dropped, 0)
        return collectors.families(samples, (self.pod.run, self.pod.pod_index))


def answers(pod: Pod) -> Any:
    """All that anybody can see."""
    registry = CollectorRegistry()
    registry.register(Shown(pod))
    return generate_latest(registry).decode(), status(pod, pod.dropped)


def told(pod: Pod, sequence: Sequence[Observation], *, forgets: bool) -> Pod:
    for seen in sequence:
        pod.fold([seen])
        pod.advance(seen.mono)
        if forgets:
            pod = through_a_file(pod)
    return pod


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_restart_after_every_observation_changes_no_golden_answer(path: Any) -> None:
    """A sidecar that dies and is started again all the time tells of a run what one that never died tells."""
    case = load(path)
    found = []
    for forgets in (False, True):
        pod = Pod("golden", "0")
        pod.set_clock(0.0, WALL)
        pod = told(pod, observations(case), forgets=forgets)
        pod.advance(case["now"])
        found.append(answers(pod))
    assert found[0] == found[1]


@settings(max_examples=60, deadline=None)
@given(sequences, st.sets(st.integers(0, 40), max_size=8))
def test_restarts_at_any_moment_change_nothing(sequence: list[Observation], restarts: set[int]) -> None:
    """The same for any sequence of sights, with restarts anywhere in it."""
    ordered = in_order(sequence)
    steady = told(new_pod(), ordered, forgets=False)
    restarted = new_pod()
    for number, seen in enumerate(ordered):
        restarted.fold([seen])
        restarted.advance(seen.mono)
        restarted = through_a_file(restarted) if number in restarts else restarted
    assert visible(steady) == visible(restarted)
    assert answers(steady) == answers(restarted)


TALE = (
    "kill 1, launcher 0, steps 1-4, fail 0, in_process 0, steps 1-12, commit 12, gone, orchestrator 12, reject 12, steps 13-20, "
    "fail 1, kill 1, launcher 0, fail 1, launcher 0, steps 1-22, commit 22, stop, gone, wait 4000"
)


def test_what_is_one_object_stays_one() -> None:
    """A replay check's result, or a late word on a recovery, must reach the incident that it belongs to."""
    pod = through_a_file(Tale().tell(TALE).pod)
    for incident in pod.failures.incidents:
        assert all(any(one is known for known in pod.failures.recoveries) for one in incident.recoveries)
        tries = [one for recovery in incident.recoveries for one in recovery.tries]
        assert all(any(one is known for known in tries) for one in incident.recent)
    assert pod.failures._info is pod.info
    assert len(pod.failures.incidents) > 1


def test_an_encoder_that_goes_on_says_what_a_new_one_says() -> None:
    """What it remembers from the document before must not go stale."""
    story, using = Tale(), encoder()
    for act in TALE.split(","):
        story.tell(act)
        assert answers(through_a_file(story.pod, using)) == answers(through_a_file(story.pod)) == answers(story.pod)


def test_the_document_is_of_one_moment() -> None:
    """It is written while the fold goes on."""
    story = Tale()
    document = encoder().encode(story.pod)
    before = json.dumps(document)
    story.tell(TALE)
    assert json.dumps(document) == before


def test_every_class_of_the_memory_can_be_saved() -> None:
    """Whoever adds a class to the fold is told to add it to memory.py: this tale reaches all of them but those in `elsewhere`."""
    document = encoder().encode(Tale().tell(TALE).pod)
    elsewhere = {"Save", "_Check"}  # on their way at the end of a golden case
    elsewhere.add("OriginVerdict")  # of runs with several pods, see test_shared_verdicts
    elsewhere.add("GpuSeen")  # of machines with GPUs, see test_gpu_join
    elsewhere |= {"NicHappening", "PortSeen"}  # with network cards, see test_nic_join
    assert set(document["classes"]) | elsewhere == set(REGISTRY.by_name)


def test_a_class_that_is_not_in_the_list_is_refused_by_name() -> None:
    """Anything else would be saved and come back wrong."""
    pod = Pod("run", "0")
    pod.failures.oom_rose = Strange()  # type: ignore[assignment]
    with pytest.raises(CodecError, match=r"in Failures: .*Strange"):
        encoder().encode(pod)


class Strange:
    pass


@dataclass(slots=True)
class Thing:
    name: str
    size: int = 1


@dataclass(frozen=True, slots=True)
class Fixed:
    text: str


@dataclass(slots=True)
class Shelf:
    things: Any
    fixed: Fixed = Fixed("default")


SHELVES = Registry((Thing, Shelf, Fixed))


def test_another_versions_graph_is_read() -> None:
    """What is not known any more is passed over with all that hangs on it; what was not saved is as in a new instance."""
    document = {
        "root": 0,
        "classes": {"Shelf": ["gone", "things"], "Thing": ["colour", "name"]},
        "objects": {"0": ["Shelf", {"r": 9}, [{"r": 1}, {"r": 1}]], "1": ["Thing", "red", "cup"], "9": ["Unknown", 1]},
    }
    shelf = Shelf([])
    decode(SHELVES, document, shelf)
    assert shelf == Shelf([Thing("cup"), Thing("cup")])
    assert shelf.things[0] is shelf.things[1]


def test_a_default_is_never_changed_for_all() -> None:
    """A saved value must not be written into the one object that all instances share as their default."""
    document = Encoder(SHELVES).encode(Shelf([], Fixed("other")))
    shelf = Shelf([])
    decode(SHELVES, document, shelf)
    assert (shelf.fixed, Shelf([]).fixed) == (Fixed("other"), Fixed("default"))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.integers() | st.tuples(st.text(), st.none()), inner, max_size=3)
        | st.frozensets(st.integers(), max_size=1)
    ),  # more have no order to compare
    max_leaves=12,
)


@given(values)
def test_values_come_back_as_they_were(value: Any) -> None:
    """Types included: a tuple that came back as a list could not be a key."""
    shelf = Shelf(None)
    decode(SHELVES, json.loads(json.dumps(Encoder(SHELVES).encode(Shelf(value)))), shelf)
    assert repr(shelf.things) == repr(value)


GOOD = Encoder(SHELVES).encode(Shelf([Thing("cup")]))


@pytest.mark.parametrize(
    "change",
    [
        {"root": 77},
        {"root": 1},
        {"objects": {}},
        {"classes": {}},
        {"objects": {"0": ["Shelf", [{"r": 5}], None]}},
        {"objects": {"0": ["Shelf", {"x": 5}, None]}},
        {"objects": {"0": ["Shelf", {"t": 1, "d": 2}, None]}},
        {"objects": {"0": ["Shelf", {"d": [[[], 1]]}, None]}},
        {"objects": {"0": ["os.system", "true"]}},
        {"classes": {"Shelf": ["things"]}, "objects": {"0": ["Shelf", {"d": []}]}},
        {"objects": {"0": ["Shelf", [{"r": 1}], None], "1": ["Thing"]}},
        {
            "classes": {"Shelf": ["things", "fixed"], "Thing": []},
            "objects": {"0": ["Shelf", {"r": 1}, 0], "1": ["Thing"]},
        },
    ],
)
def test_what_is_no_graph_is_refused(change: dict[str, Any]) -> None:
    """A damaged or made-up document ends in one kind of error, never in half an object that fails later."""
    with pytest.raises(CodecError):
        decode(SHELVES, GOOD | change, Shelf([]))
