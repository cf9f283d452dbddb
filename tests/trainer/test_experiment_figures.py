"""An experiment's figures: ours as the sidecar says, the published formulas on a run worked out by hand."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import experiment_cases as cases
import pytest

from headway_trainer.experiment import formats, measure, page, picture, published, shapes, table
from headway_trainer.experiment.measure import Recovery, Row
from headway_trainer.experiment.plan import Cell, Plan

CELL = Cell("async", "in_process", cases.INTERVAL)


def known(cell: Cell = CELL, **changes: object) -> measure.Figures:
    """The figures of the run by hand."""
    found = measure.row(cell, cases.result(**changes)).figures
    assert found is not None
    return found


def test_the_published_formulas() -> None:
    """Rank 0: wall 20 s; a mean step of (6 + 2) / 14 s, ten of them last; 3 s blocked; 5 + 3 s of recovery; 7 % 4 + 9 % 4 steps."""
    found = known()
    assert found.wall_seconds == pytest.approx(20)
    assert found.training_goodput.theirs == pytest.approx(10 * (8 / 14) / 20)
    assert found.infrastructure_goodput.theirs == pytest.approx((20 - 8) / 20)
    assert found.efficiency.theirs == pytest.approx(1 - 3 / 20)
    assert found.lost_steps.theirs == 3 + 1


def test_ours_are_the_sidecars() -> None:
    """Nothing of ours is computed here: what the summary says is what the row says."""
    found = known(training_goodput=0.123, infrastructure_goodput=0.456)
    assert (found.training_goodput.ours, found.infrastructure_goodput.ours) == (0.123, 0.456)
    assert found.efficiency.ours == pytest.approx(16 / 22)
    assert found.lost_steps.ours == 8
    assert (found.requested, found.committed, found.struck) == (4, 3, 2)
    assert found.interval_seconds == pytest.approx(4 * 8 / 14)
    assert found.write_seconds == pytest.approx(1.5)
    assert sum(found.shares.values()) == pytest.approx(1)
    assert found.shares["productive"] == pytest.approx(12 / 41)


def test_a_recovery_that_never_came_counts_as_none() -> None:
    """It is in no spread and no sum, but it is one of the cell's recoveries."""
    recoveries = [cases.recovery("launcher", 1, 7, 5.0), cases.recovery("orchestrator", None, 9, None)]
    found = known(recoveries=recoveries)
    assert len(found.recoveries) == 2
    assert found.spread == measure.Spread(1, 5.0, 5.0, 5.0)
    assert found.infrastructure_goodput.theirs == pytest.approx(15 / 20)


@pytest.mark.parametrize(
    ("seconds", "spread"),
    [
        ([], None),
        ([3.0], (1, 3.0, 3.0, 3.0)),
        ([4.0, 1.0, 2.0, 3.0], (4, 2.5, 4.0, 4.0)),
        ([float(n) for n in range(1, 11)], (10, 5.5, 9.0, 10.0)),
        ([float(n) for n in range(1, 12)], (11, 6.0, 10.0, 11.0)),
    ],
)
def test_a_spread(seconds: list[float], spread: tuple[int, float, float, float] | None) -> None:
    """Median, and the ninth tenth by nearest rank: of ten it is the ninth, of eleven the tenth."""
    found = measure.spread(Recovery("launcher", "unknown", None, one) for one in seconds)
    assert found == (None if spread is None else measure.Spread(*spread))


@pytest.mark.parametrize(
    "result",
    [
        {"state": "failed", "reason": "training ended with 1"},
        {"state": "done", "fired": [], "storage_seconds": 1},
        {"state": "done", "fired": [], "storage_seconds": 1, "summary": {}},
        cases.result(history={"slots": {}}),
        cases.result(steps={"productive": 0, "replay": 0, "lost": 0}),
        cases.result(checkpoint=None),
    ],
)
def test_a_result_without_figures_is_a_failed_cell(result: dict[str, object]) -> None:
    """It has a reason in place of figures, and every table, file and picture can be made with it."""
    rows = [measure.row(CELL, result), Row(CELL, known())]
    assert rows[0].figures is None
    assert rows[0].reason
    assert rows[0].reason in formats.markdown(Plan(), rows)
    assert "failed" in formats.csv_text(rows).splitlines()[1]
    assert json.loads(formats.json_text(Plan(), rows))["cells"][0]["state"] == "failed"
    assert "1 of 2 cells failed" in page.html(Plan(), rows)


def rows_like_published() -> list[Row]:
    """Cells with the published order of everything; interval 40 and, where a write takes longer than it, 10."""
    rows = []
    for saves, efficiency in (("sync", 0.6), ("async", 0.95)):
        for layer, seconds, goodput in (("in_process", 2.0, 0.5), ("launcher", 7.0, 0.4), ("orchestrator", 20.0, 0.2)):
            rows.append(row(Cell(saves, layer, 40), seconds, goodput, efficiency))
    return [
        *rows,
        row(Cell("sync", "in_process", 10), 2.0, 0.2, 0.3),
        row(Cell("async", "in_process", 10), 2.0, 0.3, 0.5),
    ]


def row(cell: Cell, seconds: float, goodput: float, efficiency: float) -> Row:
    """A cell with two recoveries that took so long, one of rank 0."""
    recoveries = tuple(Recovery(cell.restarts, "app_exception", rank, seconds) for rank in (0, 1))
    changed = replace(
        known(cell),
        recoveries=recoveries,
        efficiency=measure.Pair(efficiency, efficiency),
        training_goodput=measure.Pair(goodput, goodput),
        infrastructure_goodput=measure.Pair(goodput + 0.3, goodput),
        interval_seconds=cell.interval * 0.1,
    )
    return Row(cell, changed)


def test_published_shapes_are_found() -> None:
    """Where the order is as published, every shape holds."""
    assert [one.holds for one in shapes.shapes(rows_like_published())] == [True] * 7


@pytest.mark.parametrize(
    ("number", "changed", "broken"),
    [
        (1, {"recoveries": (Recovery("launcher", "unknown", 1, 1.0),) * 5}, {0}),
        (3, {"infrastructure_goodput": measure.Pair(0.6, 0.6)}, {1}),
        (3, {"training_goodput": measure.Pair(0.3, 0.3)}, {2}),
        (5, {"efficiency": measure.Pair(0.7, 0.7)}, {3}),
        (6, {"efficiency": measure.Pair(0.5, 0.5)}, {4}),
        (7, {"efficiency": measure.Pair(0.9, 0.9)}, {5}),
        (0, {"recoveries": (Recovery("in_process", "unknown", 0, None),)}, {6}),
    ],
)
def test_a_shape_that_is_not_there_is_said(number: int, changed: dict[str, object], broken: set[int]) -> None:
    """One cell that does not fit breaks the shape that it belongs to, and no other."""
    rows = rows_like_published()
    figures = rows[number].figures
    assert figures is not None
    rows[number] = replace(rows[number], figures=replace(figures, **changed))  # type: ignore[arg-type]
    found = shapes.shapes(rows)
    assert {place for place, one in enumerate(found) if one.holds is False} == broken
    assert "NO" in formats.markdown(Plan(), rows)


def test_what_did_not_run_is_no_verdict() -> None:
    """With one cell alone nothing can be compared but what stands in it."""
    (alone,) = [one for one in rows_like_published() if one.cell == Cell("async", "launcher", 40)]
    assert [one.holds for one in shapes.shapes([alone])] == [None] * 6 + [True]
    assert [one.holds for one in shapes.shapes([])] == [None] * 7


def test_too_slow_a_storage_is_no_verdict_on_async_saves() -> None:
    """Where a write takes as long as the interval both must suffer: that async is not far above sync there is no missing shape."""
    short = [one for one in rows_like_published() if one.cell.interval == 10]
    far_above = shapes.shapes(short)[3]
    assert (far_above.holds, far_above.figures) == (None, "")


def test_csv_holds_plain_numbers() -> None:
    """Base units under names that say so, one line a cell."""
    (line,) = csv.DictReader(io.StringIO(formats.csv_text([Row(CELL, known())])))
    assert (line["saves"], line["restarts"], line["interval_steps"], line["state"]) == (
        "async",
        "in_process",
        "4",
        "done",
    )
    assert float(line["recovery_median_seconds"]) == 4.0
    assert float(line["efficiency_published_formula_ratio"]) == pytest.approx(0.85)
    assert float(line["training_goodput_ratio"]) == pytest.approx(12 / 41)
    assert (line["lost_steps"], line["lost_steps_published_formula"]) == ("8", "4")


def test_tables_have_a_text_for_every_column() -> None:
    """Each line is as long as its header, with the published figures beside ours."""
    found = table.tables(rows_like_published())
    assert all(len(line) == len(one.header) for one in found for line in one.rows)
    beside = {line[0]: line[1:] for line in found[2].rows}
    assert beside["training goodput, orchestrator"] == ("11.5%", "20.0%", "20.0%")
    assert beside["infrastructure goodput, in process"] == ("87.0%", "50.0%", "80.0%")
    assert beside["efficiency, async"] == ("99.2% to 99.8%", "95.0%", "95.0%")
    assert beside["short interval, sync: efficiency"] == ("14.7% *", "30.0%", "30.0%")


def test_a_shortened_pause_is_labelled() -> None:
    """Who reads the table must see that the orchestrator was faster than Kubernetes is."""
    short, real = ("\n".join(table.notes(Plan(backoff_scale=scale))) for scale in (0.2, 1.0))
    assert "SHORTENED to 0.2 of that (2 s, doubled up to 60 s)" in short
    assert "SHORTENED" not in real


def test_the_picture_shows_every_recovery_where_it_belongs() -> None:
    """It is well-formed; each recovery is one mark with a title, those of rank 0 hollow; and time grows to the right."""
    rows = [*rows_like_published(), Row(CELL, None, "<no> & never")]
    drawn = ET.fromstring(picture.picture(rows))  # noqa: S314 - our own text
    marks = [one for one in drawn if one.get("class", "").startswith("l-")]
    assert len(marks) == 16
    assert sum("hollow" in one.get("class", "") for one in marks) == 8
    assert marks[0].findtext("title") == "2.0 s, in_process: app_exception, rank 0"
    assert "failed: <no> & never" in [one.text for one in drawn]
    assert picture.place(0.01) == picture.place(0.5) < picture.place(10) < picture.place(270) < picture.place(9_999)
    widths = [float(one.get("width", 0)) for one in drawn if one.get("class", "").startswith("s-")]
    assert sum(widths) == pytest.approx(8 * (picture.TIME[1] - picture.TIME[0]), abs=5)


class Outside(HTMLParser):
    """Counts what a page would fetch or run."""

    found = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += tag in ("script", "img", "iframe", "object") or any(
            name in ("src", "href") and value != "data:," for name, value in attrs
        )


def test_the_page_stands_alone_and_escapes() -> None:
    """No script, nothing from elsewhere, and a reason's markup is text."""
    text = page.html(Plan(), [*rows_like_published(), Row(CELL, None, "<script>alert(1)</script>")])
    outside = Outside()
    outside.feed(text)
    assert outside.found == 0
    assert "<script" not in text
    for state, meaning in picture.states(rows_like_published()):
        assert f"{state.replace('_', ' ')}: {meaning}" in text


def test_the_published_figures_are_all_shown() -> None:
    """Every number that we compare with can be read off the tables."""
    text = formats.markdown(Plan(), rows_like_published())
    numbers = [*published.TRAINING_GOODPUT.values(), *published.INFRASTRUCTURE_GOODPUT.values()]
    numbers += [
        *published.SHORT_INTERVAL.values(),
        *(value for pair in published.EFFICIENCY.values() for value in pair),
    ]
    assert [number for number in numbers if f"{number:.1%}" not in text] == []
    assert [one for one in published.RECOVERY_SECONDS.values() if f"| {one:g} |" not in text] == []
