"""The history of what each rank did when, against the books."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from golden_story import FOLDER, load, pod_after
from hypothesis import given, settings
from hypothesis import strategies as st
from state_story import RUNS
from test_accounting_properties import in_order, new_pod, sequences

from headway_exporter.codec import CodecError, Encoder, decode
from headway_exporter.history import FIRST_WIDTH, MOST_STRETCHES, RECENT_STRETCHES, RECENT_WIDTH, History, Recent
from headway_exporter.memory import REGISTRY
from headway_exporter.packing import packed
from headway_exporter.pod import Pod
from headway_exporter.summary import MOST_STRETCHES_TOLD, history

if TYPE_CHECKING:
    from headway_exporter.observations import Observation

CASES = sorted(FOLDER.glob("*.yaml"))
SECOND = 1_000_000_000


def summed(found: History) -> dict[str, int]:
    total: Counter[str] = Counter()
    for states in found.stretches.values():
        total.update(states)
    return dict(total)


def check_against_books(pod: Pod) -> None:
    for books in pod.ledger.slots.values():
        assert summed(books.history) == {state: amount for state, amount in books.states.items() if amount}


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_history_of_a_golden_case_is_its_books(path: str) -> None:
    """The picture and the numbers beside it are the same seconds."""
    check_against_books(pod_after(load(path)))  # type: ignore[arg-type]


@settings(max_examples=100, deadline=None)
@given(sequences)
def test_nothing_is_missing_from_the_history(sequence: list[Observation]) -> None:
    """For any sequence of observations, to the nanosecond."""
    pod = new_pod()
    for seen in in_order(sequence):
        pod.fold([seen])
        check_against_books(pod)


intervals = st.tuples(st.integers(0, 10**15), st.integers(0, 10**13), st.integers(0, 10**13))


@settings(max_examples=200, deadline=None)
@given(st.lists(intervals, max_size=30))
def test_it_stays_small_however_long_the_run(found: list[tuple[int, int, int]]) -> None:
    """A run of weeks, an hour-long interval, or one that comes late: never more than so many stretches, and nothing lost."""
    history, total = History(), 0
    for begin, length, amount in found:
        history.add("productive", begin, begin + length, min(amount, length))
        total += min(amount, length)
    assert sum(summed(history).values()) == total
    assert len(history.stretches) <= MOST_STRETCHES
    numbers = list(history.stretches)
    assert not numbers or max(numbers) - min(numbers) < MOST_STRETCHES


def test_an_interval_is_divided_where_it_was() -> None:
    """Half a second in one stretch, a whole one, and a quarter."""
    history = History()
    history.add("eval", SECOND // 2, 9 * SECOND // 4, 7 * SECOND // 4)
    assert history.stretches == {0: {"eval": SECOND // 2}, 1: {"eval": SECOND}, 2: {"eval": SECOND // 4}}
    assert history.wider(2 * FIRST_WIDTH) == {0: {"eval": 3 * SECOND // 2}, 1: {"eval": SECOND // 4}}


def test_the_way_there_makes_no_difference() -> None:
    """A sidecar that follows and one that catches up draw the same picture: widening early or late divides alike."""
    slowly, at_once = History(), History()
    spans = [(start * 7 * SECOND // 3, (start + 1) * 7 * SECOND // 3) for start in range(2000)]
    for begin, end in spans:
        slowly.add("replay", begin, end, end - begin)
    at_once.add("down", spans[-1][1], spans[-1][1] + 1, 1)
    at_once.add_run("replay", [a for a, _ in spans], [b for _, b in spans], [b - a for a, b in spans])
    slowly.add("down", spans[-1][1], spans[-1][1] + 1, 1)
    assert (slowly.width, slowly.stretches) == (at_once.width, at_once.stretches)
    assert slowly.width > FIRST_WIDTH


@pytest.mark.parametrize("name", RUNS)
def test_no_stretch_holds_more_than_its_width(name: str) -> None:
    """A rank does one thing at a time, so a bar of the picture is never overfull."""
    for run in RUNS[name]():
        found = history(run.pod)
        for slot in found["slots"].values():
            assert slot["buckets"]
            for number, states in slot["buckets"]:
                assert number >= 0
                assert sum(states.values()) <= found["width_seconds"] + 1e-9


def test_slots_of_different_ages_share_one_axis() -> None:
    """A rank that joined late has a short history of its own, and is drawn on the same scale."""
    pod = RUNS["nothing"]()[0].pod
    pod.ledger.slot(0).history.add("eval", 5000 * SECOND, 5001 * SECOND, SECOND)
    found = history(pod)
    assert pod.ledger.slot(0).history.width != pod.ledger.slot(1).history.width
    assert found["width_seconds"] == 16.0
    own = {state: amount for _, states in found["slots"]["1"]["buckets"] for state, amount in states.items()}
    assert own.keys() <= {state for state, amount in pod.ledger.slot(1).states.items() if amount}


def test_a_history_outlives_its_sidecar() -> None:
    """What is saved is one text; what older versions saved are a list, or the stretches themselves."""
    history = History()
    for second in range(0, 1_000, 3):
        history.add("eval" if second % 2 else "productive", second * SECOND, (second + 2) * SECOND, 2 * SECOND)
    document = Encoder(REGISTRY).encode(history)
    again, older = History(), History()
    decode(REGISTRY, document, again)
    plain: dict[str, Any] = {
        "root": 0,
        "classes": {"History": ["width", "stretches", "_first", "_last"]},
        "objects": {"0": ["History", FIRST_WIDTH, {"d": [[7, {"m": {"eval": 5}}]]}, 7, 7]},
    }
    decode(REGISTRY, plain, older)
    listed, oldish = plain | {"classes": {"History": ["width", "_saved", "_first", "_last"]}}, History()
    listed["objects"] = {"0": ["History", FIRST_WIDTH, [7, 2, "eval", 5, "init", 3, 9, 1, "eval", 1], 7, 9]}
    decode(REGISTRY, listed, oldish)
    assert oldish.stretches == {7: {"eval": 5, "init": 3}, 9: {"eval": 1}}
    assert (again.stretches, again.width) == (history.stretches, history.width)
    assert older.stretches == {7: {"eval": 5}}
    again.add("eval", 1_000 * SECOND, 1_001 * SECOND, SECOND)
    assert sum(summed(again).values()) == sum(summed(history).values()) + SECOND


@pytest.mark.parametrize("broken", [[1], [1, 2, "eval", 5], [1, -1], ["x", 0], [1, 1, "eval", "much"], [None, 0]])
def test_a_history_that_breaks_off_is_none(broken: list[Any]) -> None:
    """A ledger that holds one is set aside as a whole, which only a CodecError leads to."""
    document = Encoder(REGISTRY).encode(History())
    row = document["objects"]["0"]
    row[1 + document["classes"]["History"].index("_saved")] = broken
    with pytest.raises(CodecError):
        decode(REGISTRY, document, History())


@pytest.mark.parametrize(
    "broken",
    ["AAAA", "no text of ours", packed([1]), packed([1, 2, 0, 5]), packed([1, 1, 7, 5]), [1, 1, 7, 5], 3, None],
)
def test_a_text_that_holds_no_history_is_none(broken: Any) -> None:
    """Nor is one whose states have no name."""
    history = History()
    history.add("eval", 0, SECOND, SECOND)
    document = Encoder(REGISTRY).encode(history)
    document["objects"]["0"][1 + document["classes"]["History"].index("_packed")] = broken
    with pytest.raises(CodecError):
        decode(REGISTRY, document, History())


def test_many_slots_tell_less_of_each() -> None:
    """The ledger of 64 slots would else be mostly history, and taking it would cost more memory than all the rest."""
    pod = Pod("testrun", "0")
    for slot in range(64):
        for second in range(MOST_STRETCHES):
            pod.ledger.slot(slot).history.add("eval", second * SECOND, (second + 1) * SECOND, SECOND)
    told = history(pod)
    assert sum(len(one["buckets"]) for one in told["slots"].values()) <= MOST_STRETCHES_TOLD
    for one in told["slots"].values():
        assert sum(states["eval"] for _, states in one["buckets"]) == pytest.approx(MOST_STRETCHES)


@settings(max_examples=200, deadline=None)
@given(st.lists(intervals, max_size=30))
def test_the_last_hour_is_what_the_history_has_of_it(found: list[tuple[int, int, int]]) -> None:
    """Whatever is booked in whatever order: what lies in the hour is there to the nanosecond that a division costs, and nothing older."""
    recent, fine = Recent(), {}
    for begin, length, amount in found:
        part = min(amount, length)
        recent.add("init", begin, begin + length, part)
        if part:
            fine[begin, length] = fine.get((begin, length), 0) + part
    last = max((begin + length for begin, length in fine), default=0) // RECENT_WIDTH
    edge = (last - RECENT_STRETCHES + 1) * RECENT_WIDTH
    inside = sum(
        part * (begin + length - max(begin, edge)) / length
        for (begin, length), part in fine.items()
        if begin + length > edge
    )
    assert abs(summed(recent).get("init", 0) - inside) <= len(found) + inside * 1e-9
    assert all(last - RECENT_STRETCHES < number <= last for number in recent.stretches)


def test_the_last_hour_of_many_steps_at_once_is_that_of_each_alone() -> None:
    """Who catches up with hours of steps sees the same last hour as who was there all the time."""
    begins = [at * SECOND * 7 // 10 for at in range(20_001)]
    ends, amounts = [begin + SECOND * 7 // 10 for begin in begins], [SECOND // 2] * len(begins)
    at_once, alone = Recent(), Recent()
    at_once.add_run("productive", begins, ends, amounts)
    for interval in zip(begins, ends, amounts, strict=True):
        alone.add("productive", *interval)
    assert at_once.stretches == alone.stretches
    assert len(alone.stretches) == RECENT_STRETCHES


def test_an_interval_of_a_year_costs_no_more_than_an_hour() -> None:
    """A pod that was gone for long leaves an hour of it, not a million stretches."""
    recent = Recent()
    recent.add("down", 0, 365 * 86_400 * SECOND, 365 * 86_400 * SECOND)
    assert set(recent.stretches[max(recent.stretches) - 1].items()) == {("down", RECENT_WIDTH)}
    assert len(recent.stretches) <= RECENT_STRETCHES
