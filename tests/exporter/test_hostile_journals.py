"""No journal content, however broken or hostile, crashes the sidecar, makes it grow, or adds series without bound (design, section 10).

HEADWAY_FUZZ_EXAMPLES sets how many invented folders are tried (default 40), HEADWAY_FUZZ_NAMES how many distinct names a crowd has (default
4,000): thousands and millions take minutes.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hostile_files
import pytest
from hostile_files import LAST, MAKERS, event, header, peak_megabytes
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from journal_folder import RUN, finish, trainer
from prometheus_client.parser import text_string_to_metric_families
from sidecar_process import Sidecar, sidecar

from headway import clock
from headway.events import KINDS
from headway.ring import ring_name
from headway.ring_format import HEADER_BYTES, RECORD, RECORD_BYTES
from headway_exporter.rendering import Rendering
from headway_exporter.sidecar import Sidecar as Inside

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

EXAMPLES = int(os.environ.get("HEADWAY_FUZZ_EXAMPLES", "40"))
MOST_SERIES = 450
MOST_SERIES_A_RANK = 2
"""What each rank above eight may add: the pods of the budget have no more."""
MOST_MEGABYTES = 64
MARGIN_MEGABYTES = 32
"""For what the allocator keeps of a peak, and for the interpreter's own differences."""
STEPS = 30
PATIENCE_SECONDS = 60 + hostile_files.MANY / 1_000
"""A crowd of millions is read for minutes."""


def honest(directory: Path) -> None:
    """Slot 0: thirty steps, a death after twenty, and the end."""
    finish(trainer(directory, 0, "enter=a", "load=0", "commit=10", "steps=1-20", "ready", "wait", ranks=1), kill=True)
    finish(trainer(directory, 0, "enter=b", "load=10", f"steps=11-{STEPS}", f"finish={STEPS}", ranks=1))


def check_serving(exporter: Sidecar) -> None:
    """It answers, with a valid exposition of bounded size, and stays small."""
    assert exporter.get("/healthz")[0] == 200
    assert exporter.process.poll() is None
    samples = exporter.samples()
    ranks = {labels for name, labels in samples if name == "headway_rank_info"}
    failures = {labels for name, labels in samples if name == "headway_rank_failures_total"}
    extra = max(0, len(ranks) - 8) + max(0, len(failures) - 8)
    assert len(samples) <= MOST_SERIES + MOST_SERIES_A_RANK * extra
    assert all(
        samples["headway_collector_success", (("collector", name),)] for name in ("run", "steps", "ledger", "sources")
    )
    assert peak_megabytes(exporter.process.pid) <= MOST_MEGABYTES + MARGIN_MEGABYTES


def wait_for(exporter: Sidecar, condition: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
    """As `Sidecar.until`, with a check of the health at each look: it may at no time be in doubt."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition(status := exporter.status()):
        assert exporter.get("/healthz")[0] == 200, what
        assert time.monotonic() < deadline, f"{what}: {json.dumps(status)[:3000]}"
        time.sleep(0.1)
    return status


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_it_serves_beside_whatever_lies_in_the_folder(
    tmp_path: Path, make: Callable[[Path], hostile_files.Hostile]
) -> None:
    """A real sidecar and a real trainer share the folder with it; the trainer's steps, and its death, count as if they were alone."""
    (tmp_path / RUN).mkdir()
    hostile = make(tmp_path / RUN)
    with sidecar(tmp_path) as exporter:
        check_serving(exporter)
        honest(tmp_path)

        def read(status: dict[str, Any]) -> bool:
            ranks = {rank["slot"]: rank for rank in status["ranks"]}
            told = status["dropped"].get("version", 0) >= hostile.journals
            return told and 0 in ranks and ranks[0]["step"] == STEPS and ranks[0]["state"] == "finished"

        status = wait_for(exporter, read, "the honest trainer's end and the last hostile line")
        check_serving(exporter)
        assert not [reason for reason in hostile.reasons if not status["dropped"].get(reason)], status["dropped"]
        if not hostile.believed:
            samples = exporter.samples()
            assert samples["headway_steps_total", (("kind", "productive"),)] == STEPS
            assert samples["headway_steps_total", (("kind", "replay"),)] == 10
            assert samples["headway_restarts_total", (("layer", "launcher"),)] == 1
        assert exporter.stop()[0] == 0


def test_it_serves_while_files_change_under_it(tmp_path: Path) -> None:
    """Growing, cut short, replaced by folders, removed: between two looks, again and again."""
    folder = tmp_path / RUN
    folder.mkdir()
    with sidecar(tmp_path) as exporter:
        honest(tmp_path)
        for rounds in range(6):
            hostile_files.grow(folder, rounds)
            time.sleep(0.2)
            assert exporter.get("/healthz")[0] == 200
        status = wait_for(
            exporter, lambda status: status["finished"] or status["high_water_step"] == STEPS, "the steps"
        )
        assert status["ranks"][0]["step"] == STEPS
        check_serving(exporter)


# Invented content, read and folded in this process: hundreds of folders in the time of one sidecar.

NOW = clock.monotonic()
"""Read once: what is drawn may not depend on when."""
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 40),
    st.sampled_from([2**31, 2**53, 2**62, 2**63, -(2**63), 10**30, 10**400]),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=8),
    st.sampled_from(
        ["begin", "end", "eval", "active", "inactive", "EXCEPTION", "\ud800", "committed", "loaded", "requested"]
    ),
)
TEXTS = st.text(max_size=4)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=5
)
FIELDS = sorted({name for kind in KINDS.values() for name in kind.fields})
MONO = st.one_of(st.floats(-100.0, 0.0), st.sampled_from([-1e300, 0.0, 1e300, 5.0]), st.floats(-1e6, 1e6))


@st.composite
def lines(draw: st.DrawFn) -> bytes:
    """A journal line between the plausible and the absurd."""
    kind = draw(st.sampled_from(sorted(KINDS)))
    known = sorted(KINDS[kind].fields)
    names = draw(st.lists(st.sampled_from(known or FIELDS) | st.sampled_from(FIELDS), max_size=6))
    fields = {"wall": 1.7e9, "mono": NOW} | {name: draw(VALUES) for name in names}
    line = event(kind, draw(st.integers(1, 3)), draw(st.integers(0, 20)), **fields)
    return line if draw(st.integers(0, 9)) else line[: draw(st.integers(0, len(line)))]


@st.composite
def shifted(draw: st.DrawFn) -> bytes:
    """A line whose clock, number or life is nonsense."""
    common = draw(st.dictionaries(st.sampled_from(["n", "wall", "life", "v", "incarnation"]), SCALARS, max_size=2))
    line = {"v": 1, "kind": "sample", "n": 0, "wall": 0.0, "mono": NOW + draw(MONO), "life": 1}
    return json.dumps(line | common).encode() + b"\n"


NEAR = st.integers(-(10**9), 10**9)


@st.composite
def ring_bytes(draw: st.DrawFn) -> bytes:
    """A small ring: header and records, right, wrong, or cut."""
    capacity = draw(st.sampled_from([1, 2, 8]))
    claimed = capacity if draw(st.integers(0, 5)) else draw(st.sampled_from([0, 1 << 40]))
    now = round(NOW * 1e9)
    body = b""
    for place in range(capacity):
        start, end = now + draw(NEAR), now + draw(NEAR)
        flags, wait, tokens = draw(st.integers(0, 3)), draw(st.integers(0, 2**63)), draw(st.integers(-9, 9))
        record = RECORD.pack(0, flags, wait, 0, tokens, place, draw(st.integers(0, 2**32 - 1)), start, end, 1.0)
        body += with_crc(record) if draw(st.integers(0, 4)) else record
    data = header(claimed, 5, index=draw(st.integers(0, 20))) + body
    return data if draw(st.integers(0, 4)) else data[: draw(st.integers(0, len(data)))]


def with_crc(record: bytes) -> bytes:
    """The record with its checksum."""
    return zlib.crc32(record[4:]).to_bytes(4, sys.byteorder) + record[4:]


JOURNALS = st.lists(lines() | shifted() | st.binary(max_size=60), max_size=25).map(b"".join)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.integers(1, 4), JOURNALS, max_size=3), JOURNALS, st.lists(ring_bytes(), max_size=2))
@example({1: b'{"v":1,"kind":"queue","n":0,"wall":1e999,"mono":0,"life":1}\n'}, b"", [])
@example(
    {1: event("train_entered", 1, 0, rank=-(2**62), world_size=0)}, event("worker_exited", 1, 0, local_rank=2**62), []
)
@example(
    {1: event("process_started", 1, 0, settings={"total_steps": 10**30, "heartbeat_rank_seconds": -1e308})}, b"", []
)
@example({1: LAST}, LAST, [header(1, 5, index=2**64 - 1) + bytes(RECORD_BYTES)])
@example({}, b"", [bytes(HEADER_BYTES)])
def test_what_nobody_thought_of(journals: dict[int, bytes], launcher: bytes, rings: list[bytes]) -> None:
    """Every part of an exposition can be made, its text is valid, it is bounded, and the status is JSON."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory) / RUN
        folder.mkdir()
        for slot, content in journals.items():
            (folder / f"slot-{slot}.jsonl").write_bytes(content)
        (folder / "launcher.jsonl").write_bytes(launcher)
        for slot, content in enumerate(rings):
            (folder / ring_name(slot, 5)).write_bytes(content)
        inside = Inside(Path(directory), RUN, "0", silence_seconds=30.0)
        for _ in range(2):
            inside.poll()
        text = Rendering(inside.collector).exposition("")[0].decode()
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        json.dumps(inside.status(), allow_nan=False)
        inside._follower.close()
    assert all(sample.value for sample in samples if sample.name == "headway_collector_success")
    assert len(samples) <= MOST_SERIES
