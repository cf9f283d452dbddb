"""A real sidecar beside GPUs that are scripted: what a scrape shows while they fail, and what the next sidecar still knows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from fake_nvml import FakeNvml, uuid
from journal_folder import RUN, finish, trainer, wait_ready
from sidecar_process import Sidecar, sidecar

from headway_exporter import schema

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FIRST, SECOND = uuid(0), uuid(1)


pytestmark = pytest.mark.slow


@pytest.fixture
def fake(tmp_path: Path) -> FakeNvml:
    """Two GPUs in good health."""
    return FakeNvml(tmp_path / "nvml")


@pytest.fixture
def journals(tmp_path: Path) -> Path:
    """The pod's own folder."""
    made = tmp_path / "pod"
    (made / RUN).mkdir(parents=True)
    return made


def of_gpus(exporter: Sidecar) -> dict[tuple[str, str, str], float]:
    """Metrics of GPUs by name, UUID, and the value of the label that a metric has of its own."""
    own = ("xid", "class", "sensor", "domain", "reason", "type", "state", "kind")
    found = {}
    for (name, labels), value in exporter.samples().items():
        known = dict(labels)
        if name.startswith("headway_gpu_"):
            word = next((known[label] for label in own if label in known), "")
            found[name.removeprefix("headway_gpu_"), known["UUID"], word] = value
    return found


def until(exporter: Sidecar, condition: Callable[[dict[tuple[str, str, str], float]], object]) -> None:
    """Scrapes until something holds."""
    deadline = time.monotonic() + 30
    while not condition(found := of_gpus(exporter)):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def test_without_a_driver_one_line_tells(journals: Path, fake: FakeNvml) -> None:
    """Most machines that a test or a laptop has: no series, no failed collector, and one line for who expects GPUs."""
    fake.machine["init"] = "!9"
    fake.play()
    with sidecar(journals, **fake.environ) as exporter:
        time.sleep(1)
        samples = exporter.samples()
        code, errors = exporter.stop()
    assert [key for key in samples if "gpu" in key[0] or ("collector", "nvml") in key[1]] == []
    assert (code, errors.count("\n")) == (0, 1)
    assert "INFO no GPUs are watched: no NVIDIA driver (Driver Not Loaded)" in errors


def test_gpus_can_be_left_alone(journals: Path, fake: FakeNvml) -> None:
    """A GPU is reset only when nobody holds it."""
    with sidecar(journals, "--gpus", "off", **fake.environ) as exporter:
        time.sleep(1)
        assert of_gpus(exporter) == {}


def test_a_scrape_never_waits_for_the_driver(journals: Path, fake: FakeNvml) -> None:
    """With a driver that hangs from the first call on, the sidecar serves, follows the trainer, and ends as always."""
    fake.machine["hang"] = 1
    fake.play()
    with sidecar(journals, **fake.environ) as exporter:
        finish(trainer(journals, 0, "enter=a", "steps=1-5", "finish=5", ranks=1))
        exporter.until(lambda status: status["finished"], "the end of training")
        assert exporter.value("headway_step") == 5
        assert of_gpus(exporter) == {}
        code, errors = exporter.stop()
    assert (code, errors) == (0, "")


def test_xids_are_counted_across_sidecars(journals: Path, fake: FakeNvml, tmp_path: Path) -> None:
    """An XID that a scrape showed outlives the sidecar, and the next of its kind adds one, whether or not the GPU still answers."""
    state = str(tmp_path / "state")
    with sidecar(journals, "--state-dir", state, **fake.environ) as exporter:
        until(exporter, lambda found: found.get(("up", SECOND, "")) == 1)
        fake.report(1, 79)
        fake.report(0, 45, times=500)
        until(exporter, lambda found: found.get(("xid_errors_total", FIRST, "45")) == 500)
        until(exporter, lambda found: found.get(("xid_errors_total", SECOND, "79")) == 1)
        exporter.kill()
    fake.change(1, all="!15")
    with sidecar(journals, "--state-dir", state, **fake.environ) as exporter:
        found = of_gpus(exporter)
        assert (found["xid_errors_total", FIRST, "45"], found["xid_errors_total", SECOND, "79"]) == (500, 1)
        until(exporter, lambda found: ("up", FIRST, "") in found)
        fake.report(0, 45)
        until(exporter, lambda found: found["xid_errors_total", FIRST, "45"] == 501)
        assert of_gpus(exporter)["xid_last_timestamp_seconds", SECOND, "hardware"] == pytest.approx(time.time(), abs=60)


def test_a_gpu_that_was_lost_before_stays_lost(journals: Path, fake: FakeNvml, tmp_path: Path) -> None:
    """The next sidecar is not told of it by the driver any more, and must not count one GPU less and call that well."""
    state = str(tmp_path / "state")
    with sidecar(journals, "--state-dir", state, **fake.environ) as exporter:
        until(exporter, lambda found: found.get(("up", FIRST, "")) == 1)
        exporter.stop()
    fake.gpus = fake.gpus[1:]
    fake.machine["count"] = 1
    fake.play()
    with sidecar(journals, "--state-dir", state, **fake.environ) as exporter:
        until(exporter, lambda found: (found.get(("up", FIRST, "")), found.get(("up", SECOND, ""))) == (0, 1))
        exporter.stop()
    fake.machine["init"] = "@hang"  # and now the driver hangs from the first call on
    fake.play()
    with sidecar(journals, "--state-dir", state, **fake.environ) as exporter:
        until(exporter, lambda found: (found.get(("up", FIRST, "")), found.get(("up", SECOND, ""))) == (0, 0))


def test_another_pods_gpus_are_not_missed(journals: Path, fake: FakeNvml, tmp_path: Path) -> None:
    """The pod was made again, perhaps elsewhere: nobody may be paged for the GPUs of the one before."""
    state = str(tmp_path / "state")
    finish(trainer(journals, 0, "enter=a", "steps=1-2", "finish=2", ranks=1))
    with sidecar(journals, "--state-dir", state, **fake.environ) as exporter:
        until(exporter, lambda found: found.get(("up", FIRST, "")) == 1)
        exporter.until(lambda status: status["step"] == 2, "the steps")
        exporter.stop()
    another = tmp_path / "another"
    (another / RUN).mkdir(parents=True)
    fake.gpus, fake.machine["count"] = fake.gpus[1:], 1
    fake.play()
    with sidecar(another, "--state-dir", state, **fake.environ) as exporter:
        until(exporter, lambda found: found.get(("up", SECOND, "")) == 1)
        assert ("up", FIRST, "") not in of_gpus(exporter)


def test_a_crash_of_the_drivers_library_leaves_the_sidecar_alone(journals: Path, fake: FakeNvml) -> None:
    """SIGSEGV beneath it: it serves, follows the trainer, watches the other GPU, and ends as always."""
    with sidecar(journals, **fake.environ) as exporter:
        until(exporter, lambda found: found.get(("up", SECOND, "")) == 1)
        fake.change(1, power="@crash")
        until(exporter, lambda found: found.get(("up", SECOND, "")) == 0)
        finish(trainer(journals, 0, "enter=a", "steps=1-5", "finish=5", ranks=1))
        exporter.until(lambda status: status["finished"], "the end of training")
        assert of_gpus(exporter)["up", FIRST, ""] == 1
        code, errors = exporter.stop()
    assert (code, errors.count("\n")) == (0, 1)
    assert "ended by SIGSEGV when it asked about GPU 1" in errors


def test_a_ranks_part_of_a_gpu_is_joined_to_the_gpu(journals: Path, fake: FakeNvml) -> None:
    """`headway_rank_info` names the GPU whose metrics there are, by the driver's number, whatever the rank's setting names."""
    fake.change(1, **{"mig": 1, "mig.0": "MIG-cafe-1"})
    rank = trainer(journals, 0, "enter=a", "steps=1-2", "ready", "wait", ranks=1, CUDA_VISIBLE_DEVICES="MIG-cafe-1")
    with sidecar(journals, **fake.environ) as exporter:
        wait_ready(rank)
        until(exporter, lambda found: ("up", SECOND, "") in found)
        deadline = time.monotonic() + 20
        wanted = {"rank": "0", "slot": "0", "gpu": "1", "UUID": SECOND}
        while exporter.value("headway_rank_info", **wanted) is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert exporter.value("headway_rank_info", **wanted) == 1
    rank.kill()
    rank.communicate()


def test_eight_gpus_stay_within_the_series_budget(journals: Path, tmp_path: Path) -> None:
    """At most 40 series a GPU, with eighteen NVLinks each and as many XIDs as a bad day has; all of them as the catalogue says."""
    fake = FakeNvml(tmp_path / "eight", 8)
    with sidecar(journals, **fake.environ) as exporter:
        until(exporter, lambda found: sum(key[0] == "up" for key in found) == 8)
        for gpu in range(8):
            for number in (13, 31, 45, 79):
                fake.report(gpu, number)
        until(exporter, lambda found: sum(key[0] == "xid_errors_total" for key in found) == 32)
        families = exporter.families()
    count = sum(len(family.samples) for name, family in families.items() if name.startswith("headway_gpu_"))
    assert count <= 8 * 40
    for name, family in families.items():
        if name.startswith("headway_gpu_"):
            metric = schema.METRICS[name + ("_total" if family.type == "counter" else "")]
            for sample in family.samples:
                assert set(sample.labels) == {*schema.COMMON_LABELS, *metric.labels}
                for label, allowed in metric.labels.items():
                    assert allowed is None or sample.labels[label] in allowed
