"""What the report says: merged incidents, books, verdicts, rates, offenders, advice, all checked against stories told by hand."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_story import BEGIN, Story, four_faults, loop, many_ranks, one_recovery, quiet, three_pods, write_records
from state_story import RUNS, write

from headway_exporter.advice import Advice, Number
from headway_exporter.labels import CAUSES, INCIDENT_OUTCOMES, LAYERS, REASONS, STATES
from headway_exporter.report import fields, parse, units, words
from headway_exporter.report.bars import recovery_bar
from headway_exporter.report.figures import Rate, spread
from headway_exporter.report.json_document import json_text
from headway_exporter.report.load import load
from headway_exporter.report.markdown import markdown
from headway_exporter.report.merge import incidents
from headway_exporter.report.offenders import CHANCE, HARDWARE, at_least
from headway_exporter.report.page import html
from headway_exporter.report.picture import COLUMNS, HEIGHT, picture, ticks
from headway_exporter.report.report import report
from headway_exporter.state_files import LEDGER, RECORDS
from headway_exporter.traces import sentence

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headway_exporter.report.report import Report

LATER = 30_000.0
"""Seconds after a story's end when nobody can be expected back."""


def told(story: Story, folder: Path, after: float = 10.0) -> Report:
    """The report on a story, read so long after its end."""
    return report(load(story.write(folder), story.wall + after))


def titles(found: Report) -> str:
    return "\n".join(action.title for action in found.actions)


def gpu_once() -> Story:
    """A GPU broke, the job recovered and finished: nobody would look at it before it is used again."""
    return Story(run="gpu-once", backend="nccl").starts().trains(60).fails("gpu_memory").trains(120).ends()


def test_every_label_has_words() -> None:
    """A cause, state, reason or layer without words or class would end the report of the first run that has it."""
    assert set(words.CAUSE_WORDS) == set(words.CAUSE_CLASS) == set(CAUSES)
    assert set(words.CAUSE_CLASS.values()) == set(words.CLASSES)
    assert set(words.STATE_WORDS) == set(STATES)
    assert set(words.REASON_WORDS) == set(REASONS)
    assert set(words.LAYER_WORDS) == set(LAYERS)


@pytest.mark.parametrize(
    ("make", "after", "fate", "level", "headline"),
    [
        (quiet, 10.0, "finished", "good", "Finished without an incident"),
        (one_recovery, 10.0, "finished", "good", "Recovered 1 of 1 incident; 86 % of rank time made progress"),
        (four_faults, LATER, "finished", "attention", "Recovered 4 of 4 incidents; 50 % of rank time made progress; the"),
        (gpu_once, 10.0, "finished", "attention", "Recovered 1 of 1 incident"),
        (loop, 10.0, "failing", "bad", "Recurring at step 900 of 100\u202f000: exception in the training code on rank 1"),
        (loop, LATER, "abandoned", "bad", "Abandoned at step 900 of 100\u202f000 after: exception in the training code"),
        (loop, 600.0, "silent", "bad", "Silent for 10 min at step 900"),
        (three_pods, LATER, "abandoned", "bad", "Abandoned at step 220\u202f000 of 500\u202f000 after: GPU memory fault on rank 9"),
    ],
)  # fmt: skip
def test_verdict(make: Callable[[], Story], after: float, fate: str, level: str, headline: str, tmp_path: Path) -> None:
    """The first sentence tells what became of the run, and whether anybody has to get up."""
    verdict = told(make(), tmp_path, after).verdict
    assert (verdict.fate, verdict.level) == (fate, level)
    assert verdict.headline.startswith(headline)
    assert level != "attention" or any(fact.startswith("Left to be looked at: ") for fact in verdict.facts)


@pytest.mark.parametrize("name", RUNS)
def test_runs_that_real_pods_folded(name: str, tmp_path: Path) -> None:
    """What the sidecar's own code writes is read without a word of complaint, and the shares are of all of its time."""
    run = load(write(tmp_path, RUNS[name]()), 1.0)
    found = report(run)
    assert not run.problems
    assert found.accounts.elapsed > 0
    assert sum(row.seconds for row in found.accounts.rows) == pytest.approx(found.accounts.elapsed)
    bad = sum(row.share for row in found.accounts.rows if not row.available)
    if name != "abandoned":  # there, what is pending may be counted either way
        assert found.accounts.infrastructure_goodput == pytest.approx(1 - bad, abs=0.08)
    drawn = picture(run)
    assert drawn is not None
    assert len(drawn.rows) == run.world_size


@pytest.mark.parametrize("make", [quiet, one_recovery, four_faults, loop, three_pods])
def test_books_add_up(make: Callable[[], Story], tmp_path: Path) -> None:
    """The table is of all time, nothing twice, and what lies between the two goodputs is exactly what it names."""
    books = told(make(), tmp_path).accounts
    assert sum(row.seconds for row in books.rows) == pytest.approx(books.elapsed)
    assert books.training_goodput is not None
    assert books.infrastructure_goodput is not None
    assert books.infrastructure_goodput - books.training_goodput == pytest.approx(
        sum(row.share for row in books.between)
    )


def test_one_incident_of_three_pods(tmp_path: Path) -> None:
    """An incident that three pods saw is one, its cost is that of all, and the pod where it began tells it."""
    found = told(three_pods(), tmp_path)
    assert [one.pods for one in found.run.incidents] == [("0", "1", "2")] * 4
    gpu, node = found.run.incidents[:2]
    assert (gpu.lead.pod_index, node.lead.pod_index) == ("1", "2")
    assert gpu.lost == pytest.approx(3 * sum(gpu.lead.lost_rank_seconds.values()))
    assert found.run.on_gpus
    assert "Drain GPU-00000009-5a1b" in titles(found)
    assert "node-1" not in titles(found), "the GPU explains it: its node need not go"
    assert "before it is used again" not in titles(found), "it is drained already"


def test_a_gpu_that_failed_once(tmp_path: Path) -> None:
    """Once is no reason to drain it, but to test it."""
    found = told(many_ranks(pods=12), tmp_path)
    assert "Drain" not in titles(found)
    assert "Test GPU-0000004d" in titles(found)


@given(st.permutations(range(6)), st.data())
def test_order_of_records_does_not_matter(order: list[int], data: st.DataObject) -> None:
    """Pods and revisions come in any order: the newest of each pod counts, once."""
    story = Story(pods=3).starts().trains(9)
    made = story.fails(rank=3, lost=0).records[0]
    records = [
        parse.record({**made, "revision": revision, "lost_rank_seconds": {"restart": 1.0 + revision}}, str(pod))
        for pod in range(3)
        for revision in range(2)
    ]
    repeated = data.draw(st.lists(st.sampled_from(records), max_size=4))
    (one,) = incidents([records[place] for place in order] + repeated)
    assert one == incidents(records)[0]
    assert one.lost == 6.0
    assert one.lead.pod_index == "1"


def test_open_and_closed_views() -> None:
    """A pod that died in the middle knows less than the one that saw the end."""
    made = Story().starts().trains(9).fails(rank=None).records[0]
    early = parse.record({**made, "outcome": "open", "revision": 9, "closed_wall": None}, "0")
    late = parse.record({**made, "outcome": "recovered"}, "1")
    assert incidents([early, late])[0].outcome == "recovered"
    assert incidents([early, replace(late, pod_index="0")])[0].lead.outcome == "recovered"


def test_percentiles_are_values_and_few_values_have_few() -> None:
    """No percentile is invented: each occurred, and with few values only the median and the maximum are told."""
    some = spread([3.0, 1.0, 2.0])
    assert (some.count, some.p50, some.p90, some.p99, some.max) == (3, 2.0, None, None, 3.0)
    many = spread(float(value) for value in range(1, 101))
    assert (many.p50, many.p90, many.p99, many.max) == (50.0, 90.0, 99.0, 100.0)
    assert spread([]).max is None


def test_rates_are_honest() -> None:
    """Two of two is no proof of 100 %: Wilson's interval, by hand: (1 + 1.92) / (1 + 3.84/2) ± …, from 0.342 to 1."""
    low, high = Rate(2, 2).interval
    assert (round(low, 3), high) == (0.342, 1.0)
    low, high = Rate(50, 100).interval
    assert (round(low, 3), round(high, 3)) == (0.404, 0.596)
    assert Rate(0, 0).share is None


def test_all_of_them_is_compatible_with_always() -> None:
    """No number of trials rules out that what always worked always will; rounding must not say 99.9 %, nor that never is a little."""
    for count in range(1, 60):
        assert (Rate(count, count).interval[1], Rate(0, count).interval[0]) == (1.0, 0.0)


def test_recovery_times_and_rates(tmp_path: Path) -> None:
    """Times are from the records, by layer and by cause; what was cancelled is in no rate."""
    story = four_faults()
    story.fails(outcome="cancelled")
    found = told(story, tmp_path)
    assert {row.name: row.first_step.count for row in found.by_layer} == {"in_process": 1, "launcher": 3}
    assert found.by_cause[0].name == "process_killed"
    assert found.by_cause[0].failed_attempts == 1
    # detect 2 + restart 6 + load 0.4 + init 1.2 + one step 0.1
    assert found.by_cause[0].first_step.max == pytest.approx(9.7)
    assert {row.name: (row.recovered.good, row.recovered.count, row.cancelled) for row in found.rates} == {
        "hang": (1, 1, 0),
        "killed": (2, 2, 1),
        "software": (1, 1, 0),
    }


def test_recovery_times_by_layer_and_cause(tmp_path: Path) -> None:
    """One cause that two layers recovered from: by hand, 2 + 1 + 0.4 + 1.2 + 0.1 s in process, and 9.7 s by the launcher, three times."""
    story = Story().starts().trains(90).fails("app_exception", layer="in_process", restart=1.0).trains(90)
    for _ in range(3):
        story.fails("app_exception").trains(90)
    found = told(story.fails("host_oom").trains(9).ends(), tmp_path)
    rows = [(row.layer, row.name, row.first_step.count, row.first_step.p50) for row in found.by_layer_and_cause]
    assert rows == [
        ("in_process", "app_exception", 1, pytest.approx(4.7)),
        ("launcher", "app_exception", 3, pytest.approx(9.7)),
        ("launcher", "host_oom", 1, pytest.approx(9.7)),
    ]
    assert "launcher: exception in the training code" in html(found)
    assert "launcher: exception in the training code" in markdown(found)
    told_rows = json.loads(json_text(found))["recovery"]["by_layer_and_cause"]
    assert [(row["layer"], row["name"], row["first_step"]["n"]) for row in told_rows] == [row[:3] for row in rows]


@pytest.mark.parametrize(
    ("lost", "saved", "rates"),
    [
        ("host_oom", "process_killed", {"oom_kill": (0, 1), "killed": (1, 1)}),
        ("node_lost", "nic", {"node_loss": (0, 1), "network": (1, 1)}),
        ("gpu_memory", "heartbeat_timeout", {"gpu": (0, 1), "hang": (1, 1)}),
    ],
)
def test_each_class_has_a_rate_of_its_own(
    lost: str, saved: str, rates: dict[str, tuple[int, int]], tmp_path: Path
) -> None:
    """Somebody's SIGKILL must neither flatter nor spoil the rate of the kernel's, nor a network card that of lost nodes."""
    story = Story().starts().trains(9).fails(lost, outcome="abandoned").trains(9).fails(saved).trains(9)
    found = told(story.ends(), tmp_path)
    assert {row.name: (row.recovered.good, row.recovered.count) for row in found.rates} == rates


def test_a_run_of_which_nothing_is_known_has_a_headline() -> None:
    """Finished, its one incident without a verdict, and no time booked: the report must still begin with a sentence."""
    record = parse.record({**PLAIN.records[0], "outcome": "open", "closed_wall": None}, "0")
    summary = {**PLAIN.summary(0), "finished": True, "rank_seconds": None, "elapsed_rank_seconds": None}
    found = report(_run(parse.pod(summary, "0", BEGIN), incidents([record])))
    assert found.verdict.fate == "finished"
    assert found.accounts.training_goodput is None
    assert found.verdict.headline.startswith("Finished at step")


def test_a_long_name_does_not_drown_the_headline(tmp_path: Path) -> None:
    """A node's name comes from a journal, and may be anything."""
    story = loop()
    assert story.open is not None
    story.open["origin"]["node"] = "W" * 300
    headline = told(story, tmp_path).verdict.headline
    assert "W" * 64 in headline
    assert "W" * 65 not in headline


def test_time_without_a_step_is_not_drawn_as_training(tmp_path: Path) -> None:
    """A recovery that has not come to its first step shows how long it waits for it, and not a green first step."""
    came = told(one_recovery(), tmp_path).run.incidents[-1].lead.recoveries[-1]
    assert "p-first_step" in recovery_bar(came)
    waits = recovery_bar(replace(came, first_step_wall=None))
    assert ("p-first_step" in waits, "without a step" in waits) == (False, True)


def test_advice_is_shown_with_its_numbers_and_how_sure_it_is(tmp_path: Path) -> None:
    """Each form tells all that `headway advise` does of each piece, its texts escaped."""
    advice = Advice(
        topic="heartbeat_rank",
        verdict="change",
        title="Heartbeat <b>60 s</b>",
        text="The longest silence was 12 s.\x1b[0m",
        numbers=(Number("longest silence", 12.0, "seconds"), Number("in force", None)),
        confidence="low",
        because="only 5 min watched",
        settings=(("ft_launcher --wait 60", "all versions"),),
        assumptions=("nobody slept",),
    )
    found = replace(told(quiet(), tmp_path), advice=[advice])
    page, text, data = html(found), markdown(found).replace("\\", ""), json.loads(json_text(found))
    assert "Heartbeat &lt;b&gt;60 s" in page
    for form in (page, text):
        assert "\x1b" not in form
        assert "The longest silence was 12 s." in form
        assert "confidence low: " in form
        assert "only 5 min watched" in form
        assert "longest silence 12 s" in form
        assert "ft_launcher --wait 60" in form
        assert "not known" not in form
    assert "<li>nobody slept</li>" in page
    bare = replace(found, advice=[replace(advice, numbers=())])
    assert "the numbers it comes from" not in html(bare)
    assert "- from" not in markdown(bare)
    (one,) = data["advice"]
    assert one["numbers"][0] == {"name": "longest silence", "value": 12.0, "unit": "seconds"}
    assert (one["confidence"], one["because"], one["settings"][0][0]) == (
        "low",
        "only 5 min watched",
        "ft_launcher --wait 60",
    )


def test_chance_is_no_offender(tmp_path: Path) -> None:
    """Four of four on one of two ranks happens by chance one time in eight: listed, and nobody is sent to look for it."""
    found = told(four_faults(), tmp_path)
    (rank,) = [one for one in found.offenders if one.kind == "rank"]
    assert (rank.name, rank.count, rank.notable) == ("1", 4, False)
    assert "rank 1" not in titles(found)
    assert at_least(4, 4, 0.5) == pytest.approx(1 / 16)
    assert "more than chance" not in html(found) + markdown(found)
    assert at_least(3, 4, 1 / 3) == pytest.approx(9 / 81)  # 4 * (1/3)^3 * (2/3) + (1/3)^4
    assert at_least(1, 4, 0.5) == 1.0


@pytest.mark.parametrize(
    ("times", "marked", "words_of_it"), [(2, HARDWARE, "hardware faults among them"), (4, CHANCE, "more than chance")]
)
def test_chance_is_ruled_out_only_by_numbers(times: int, marked: str, words_of_it: str, tmp_path: Path) -> None:
    """By hand: 2 of 2 on one of 4 nodes are chance in 1 of 4 runs, 4 of 4 in 1 of 64; two faults of hardware are marked as such."""
    story = Story(pods=4, ranks=4, backend="nccl").starts()
    for number in range(times):
        story.trains(90).fails("gpu_memory", 4 + number)
    found = told(story.trains(9).ends(), tmp_path)
    (node,) = [one for one in found.offenders if one.kind == "node"]
    assert (node.name, node.count, node.marked) == ("node-1", times, marked)
    assert marked in html(found)
    assert marked in markdown(found)
    (drain,) = [action for action in found.actions if action.title == "Drain node node-1"]
    assert words_of_it in drain.text


def test_advice_of_the_report(tmp_path: Path) -> None:
    """Each finding that asks for something is turned into a thing to do."""
    assert "The checkpoint of step 260 does not load" in titles(told(four_faults(), tmp_path / "a"))
    endless = told(loop(), tmp_path / "b", LATER)
    assert endless.actions[0].title.startswith("Do what stands below, then start")
    assert "Recurring: the same checkpoint was loaded again and again" in titles(endless)
    story = Story(settings={}).starts().trains(90).fails("heartbeat_timeout").trains(9).ends()
    assert "Set a heartbeat time-out" in titles(told(story, tmp_path / "c"))
    assert not told(quiet(), tmp_path / "d").actions


def test_each_form_tells_where_a_recovery_spent_its_time(tmp_path: Path) -> None:
    """Cause, origin, phases, steps and time lost of an incident, for whoever gets only the text of it."""
    found = told(one_recovery(), tmp_path)
    text = markdown(found)
    assert (
        "- launcher from step 580, 9.7 s to the first step: detect 2.0 s, teardown 0.1 s, respawn 4.2 s, rendezvous 1.8 s,"
        in text
    )
    (incident,) = json.loads(json_text(found))["incidents"]["list"]
    assert incident["recoveries"][0]["tries"][0]["phases"]["respawn"] == pytest.approx(4.2)
    assert "respawn 4.2\u00a0s" in html(found) or "respawn 4.2 s" in html(found)


def test_an_origin_in_doubt_is_told_as_such(tmp_path: Path) -> None:
    """Wherever a rank is named for a failure that may have begun on another: nobody is to drain a node on a guess told as a fact."""
    story = (
        Story(run="doubt", pods=2).starts().trains(90).fails("process_killed", 3, outcome="abandoned", ambiguous=True)
    )
    found = told(story, tmp_path, LATER)
    assert "process killed by a signal perhaps on rank 3 (node-1)" in found.verdict.headline
    assert "perhaps rank 3, node-1" in markdown(found).replace("\\", "")
    assert html(found).count("<bdi>perhaps rank 3, node-1</bdi>") == 3
    assert "process_killed (confirmed) perhaps on rank 3, node node-1" in sentence(
        story.records[0] | {"pod_index": "0"}
    )
    listed = subprocess.run(
        [sys.executable, "-m", "headway", "incidents", str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert "rank 3 node-1?" in listed.stdout


def test_a_start_comes_after_what_would_end_it_again(tmp_path: Path) -> None:
    """Nobody is told to start again on the GPU that ended the run before he is told to take it out; what only cost time can wait."""
    found = told(three_pods(), tmp_path / "a", LATER)
    assert [action.title.partition(" GPU")[0] for action in found.actions[:2]] == [
        "Do what stands below, then start the job again",
        "Drain",
    ]
    once = Story().starts().trains(90).fails("app_exception", outcome="abandoned")
    assert told(once, tmp_path / "b", LATER).actions[0].title == "Start the job again"


@pytest.mark.parametrize(
    ("failed", "aborted", "asked"), [(0, 9, False), (2, 0, False), (3, 0, True)], ids=["cut short", "few", "often"]
)
def test_saves_that_a_failure_cut_short_are_no_fault_of_the_storage(
    tmp_path: Path, failed: int, aborted: int, asked: bool
) -> None:
    """A job that is told to end leaves its saves unfinished: nobody needs to look at quotas for that."""
    story = Story(saves={"committed": 9, "failed": failed, "aborted": aborted}).starts().trains(90).ends()
    assert ("Find out why saves fail" in titles(told(story, tmp_path))) is asked


def test_more_saves_are_not_asked_for_where_the_advice_is_to_make_fewer(tmp_path: Path) -> None:
    """A loss to replay or detection names what weighs it against its price, and asks for no change itself."""
    story = Story().starts().trains(20).fails(steps_lost=400, detect=60.0).trains(20).ends()
    texts = {action.title.partition(" went into ")[2]: action.text for action in told(story, tmp_path).actions}
    assert {
        title: "stands under Settings" in text or "weighed under Settings" in text for title, text in texts.items()
    } == {
        "replay: steps done before": True,
        "detect: failed, not yet noticed": True,
    }


def test_from_scratch_is_no_checkpoint_of_which_there_is_an_older_one(tmp_path: Path) -> None:
    """A run that never saved starts at step 0 each time: that is said, in each place."""
    story = Story().starts().trains(9)
    story.durable = None
    story.fails(
        "app_exception", attempts=3, outcome="open", recurring=("same_checkpoint", "no_durable_progress"), steps_lost=90
    )
    found = told(story, tmp_path)
    assert [action.text for action in found.actions if action.title.startswith("Recurring")] == [
        "Look at the checkpoints: 3 attempts left none at all, so each failure throws everything since then away.",
        "It was started from scratch 3 times: find out what stops the first save.",
    ]
    page = html(found)
    assert "started from scratch" in page
    assert "<b>from scratch</b>" in page
    assert "checkpoint of step 0" not in page + markdown(found)


def test_what_was_cancelled_is_not_called_recovered(tmp_path: Path) -> None:
    """It is told beside the number of those that recovered, and no sentence says that its recovery held."""
    story = (
        Story().starts().trains(90).fails().trains(9).fails(outcome="cancelled", recurring=("no_progress",), attempts=3)
    )
    found = told(story, tmp_path)
    assert "1 of 2</b><span>incidents recovered, 1 recurring, 1 cancelled</span>" in html(found)
    assert "recovery held" not in titles(found)


@pytest.mark.parametrize(
    ("spoil", "words_of_it"),
    [
        (lambda pod: (pod / LEDGER).write_bytes(b"\0" * 99), "no ledger of Headway"),
        (lambda pod: (pod / LEDGER).unlink(), "left no ledger"),
        (lambda pod: (pod / LEDGER).write_text('{"headway": "ledger", "version": 9}\n{}\n'), "newer Headway"),
        (
            lambda pod: (pod / RECORDS).write_bytes((pod / RECORDS).read_bytes() + b'{"v":1,"id":"abc'),
            "only a part of one",
        ),
        (lambda pod: write_records(pod / RECORDS, [{"v": 2, "id": "a", "opened_wall": BEGIN}]), "of version 2"),
        (lambda pod: write_records(pod / RECORDS, [{"v": 1, "opened_wall": BEGIN}]), "no id or no time"),
        (lambda pod: [path.unlink() for path in pod.iterdir()], "left nothing here"),
    ],
)
def test_what_cannot_be_read_is_named(spoil: Callable[[Path], object], words_of_it: str, tmp_path: Path) -> None:
    """One bad file costs what was in it; the report tells what that was and goes on."""
    story = three_pods()
    folder = story.write(tmp_path)
    spoil(folder / "2")
    run = load(folder, story.wall)
    assert len(run.incidents) == 4
    assert any(words_of_it in problem.message for problem in run.problems), run.problems
    assert report(run).verdict.level == "bad"


PLAIN = four_faults()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_json_in_any_field_is_survived(data: st.DataObject) -> None:
    """Fields of any type, from whatever wrote them, make values unknown, and never an error or a number that is none."""
    record, summary = dict(PLAIN.records[0]), dict(PLAIN.summary(0))
    for source in (record, summary):
        for name in data.draw(st.sets(st.sampled_from(sorted(source)), max_size=8)):
            source[name] = data.draw(JSON)
    for nested in ("origin", "checkpoint", "history"):
        holder = record if nested == "origin" else summary
        if isinstance(holder[nested], dict):
            holder[nested] = {
                name: data.draw(JSON) if data.draw(st.booleans()) else one for name, one in holder[nested].items()
            }
    pod = parse.pod(summary, "0", BEGIN)
    try:
        records = [parse.record(record, "0")]
    except parse.RecordError:
        records = []
    found = report(_run(pod, incidents(records)))
    picture(found.run)
    assert all(math.isfinite(row.seconds) for row in found.accounts.rows)


def _run(pod: Any, merged: Any) -> Any:
    from headway_exporter.report.model import Run

    return Run("demo", (pod,), merged, (), BEGIN + 100.0)


@given(st.text() | st.binary().map(lambda raw: raw.decode("utf-8", "surrogateescape")))
def test_texts_are_safe_to_show(text: str) -> None:
    """No control character, no mark that turns text around, no half of a character reaches any reader."""
    assert fields.text(text).isprintable()
    assert all(line.isprintable() for line in fields.lines(text).split("\n"))
    fields.text(text).encode()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "\u2013"), (0.0, "0.0 s"), (0.0001, "1 ms"), (0.012, "12 ms"), (8.26, "8.3 s"), (59.4, "59 s"), (59.9, "1 min"),
        (450.0, "7 min 30 s"), (3_599.9, "1 h"), (8_040.0, "2 h 14 min"), (187_200.0, "2 d 4 h"),
    ],
)  # fmt: skip
def test_durations(seconds: float | None, text: str) -> None:
    """Durations are told in the two units that matter, and carry over at their limits."""
    assert units.duration(seconds) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(0.0, "0 %"), (0.0003, "< 0.1 %"), (0.0316, "3.2 %"), (0.0999, "10 %"), (0.9996, "99.9 %"), (1.0, "100 %")],
)
def test_shares(ratio: float, text: str) -> None:
    """A little is never nothing, and nearly all is never all."""
    assert units.share(ratio) == text


def test_rank_time() -> None:
    """Hours of GPUs where the ranks sit on GPUs, of ranks elsewhere; seconds where hours would be 0."""
    assert units.rank_time(0.012, gpus=False) == "< 0.1 rank-seconds"
    assert units.rank_time(95.6, gpus=False) == "96 rank-seconds"
    assert units.rank_time(5_400.0, gpus=True) == "1.50 GPU-hours"
    assert units.rank_time(7_200_000.0, gpus=True) == "2\u202f000 GPU-hours"


def test_picture_of_many_ranks(tmp_path: Path) -> None:
    """However many ranks there are, the picture has at most 64 rows, and they stand for all pods."""
    story = Story(run="wide", pods=70, ranks=2).starts(50).trains(500).fails(rank=3).trains(100)
    drawn = picture(load(story.write(tmp_path), story.wall))
    assert drawn is not None
    assert (len(drawn.rows), drawn.row_kind) == (35, "2 pods")
    assert [drawn.rows[0].name, drawn.rows[-1].name] == ["pods 0\u20131", "pods 68\u201369"]
    assert [mark.number for mark in drawn.marks] == [1]


@pytest.mark.parametrize("make", [one_recovery, three_pods])
def test_columns_are_full(make: Callable[[], Story], tmp_path: Path) -> None:
    """In a rank that always existed, every column of the picture is filled to its top: no time is missing in it."""
    drawn = picture(told(make(), tmp_path).run)
    assert drawn is not None
    for row in drawn.rows:
        area = sum(_area(path) for path in row.paths.values())
        assert area == pytest.approx(COLUMNS * HEIGHT, rel=0.02)


def _area(path: str) -> int:
    """Of rectangles `Mx yhWvHh-Wz`."""
    shapes = [shape for shape in path.split("z") if shape]
    return sum(int(shape.split("h")[1].split("v")[0]) * int(shape.split("v")[1].split("h")[0]) for shape in shapes)


@given(st.integers(1, 4_000_000_000), st.floats(1.0, 3e8))
def test_ticks(begin: int, length: float) -> None:
    """From seconds to years, the axis has a few ticks, inside and in order."""
    found = ticks(begin, begin + length)
    assert len(found) <= 8
    assert found or length < 2
    places = [tick.place for tick in found]
    assert places == sorted(set(places))
    assert all(0 <= place <= 100 for place in places)


def test_outcomes_of_the_contract(tmp_path: Path) -> None:
    """Every outcome that a record may have is counted somewhere."""
    story = Story().starts().trains(90)
    for outcome in (*INCIDENT_OUTCOMES, "open"):
        story.fails(outcome=outcome)
    found = told(story, tmp_path)
    rate = found.rate
    assert (rate.recovered.good, rate.recovered.count, rate.cancelled, rate.still_open) == (1, 2, 1, 1)
    assert json.dumps(found.numbers)
