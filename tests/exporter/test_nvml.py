"""GPUs as the driver tells of them: a real shared library in its place, loaded by NVML's own bindings."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import pytest
from fake_nvml import HOPPER_LINKS, MEMORY_ERROR, FakeNvml, hopper, uuid
from nvml_process import Reader, reader

from headway_exporter.schema import METRICS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FIRST, SECOND = uuid(0), uuid(1)


@pytest.fixture
def fake(tmp_path: Path) -> FakeNvml:
    """Two GPUs in good health."""
    return FakeNvml(tmp_path / "nvml")


@pytest.fixture
def read(fake: FakeNvml) -> Iterator[Reader]:
    """A process that has read them once."""
    with reader(fake.environ) as process:
        process.do()
        yield process


def test_every_figure_is_in_base_units(read: Reader) -> None:
    """Milliwatts, megahertz, millijoules and percent of the driver become watts, hertz, joules and ratios."""
    wanted = {
        "up": 1,
        "utilization_ratio": 0.98,
        "memory_used_bytes": 75_377_410_048,
        "memory_total_bytes": 150_754_820_096,
        "power_watts": 652,
        "power_limit_watts": 700,
        "energy_joules_total": 7_200.5,
        "row_remap_pending": 0,
        "row_remap_failed": 0,
        "pcie_replays_total": 3,
        "nvlinks_active": HOPPER_LINKS,
        "recovery_action": 0,
    }
    assert {name: read.samples[f"gpu_{name}", FIRST] for name in wanted} == pytest.approx(wanted)
    labelled = {
        ("temperature_celsius", "gpu"): 61,
        ("temperature_celsius", "memory"): 52,
        ("clock_hertz", "sm"): 1.98e9,
        ("clock_hertz", "memory"): 3.201e9,
        ("remapped_rows", "correctable"): 1,
        ("remapped_rows", "uncorrectable"): 0,
        ("nvlink_errors_total", "replay"): 4,
        ("nvlink_errors_total", "crc"): 0,
    }
    assert {key: read.samples[f"gpu_{key[0]}", FIRST, key[1]] for key in labelled} == pytest.approx(labelled)
    errors = {key[2:]: value for key, value in read.samples.items() if key[:2] == ("gpu_ecc_errors_total", FIRST)}
    assert errors == {
        ("corrected", "volatile"): 12,
        ("uncorrected", "volatile"): 0,
        ("corrected", "aggregate"): 340,
        ("uncorrected", "aggregate"): 0,
    }


def test_labels_are_those_that_dcgms_users_know(read: Reader) -> None:
    """Dashboards of DCGM's exporter join on number, UUID, bus address and model; the fold keeps them, and hears of them once."""
    assert read.labels[SECOND] == ("1", SECOND, "00000000:1C:00.0", "NVIDIA H200")
    (found,) = read.told
    assert found["what"] == "GpusFound"
    assert [labels[1] for labels in found["gpus"]] == [FIRST, SECOND]
    assert read.do() == []


def test_names_and_labels_are_the_catalogues(read: Reader) -> None:
    """What rules and dashboards were written against is what a GPU shows, and a Hopper shows nearly all of it in 40 series."""
    shown = {key for key in read.samples if key[0].startswith("gpu_") and key[1] == FIRST}
    assert len(shown) <= 40
    for name, _, *own in shown:
        closed = [allowed for allowed in METRICS[f"headway_{name}"].labels.values() if allowed is not None]
        assert len(own) == len(closed), name
        assert all(value in allowed for value, allowed in zip(own, closed, strict=True)), (name, own)
    missing = {name for name in METRICS if name.startswith("headway_gpu_")} - {f"headway_{key[0]}" for key in shown}
    assert missing == {
        "headway_gpu_retired_pages",  # of older GPUs
        "headway_gpu_xid_errors_total",
        "headway_gpu_xid_last_timestamp_seconds",
    }


def test_what_a_gpu_does_not_measure_is_absent(fake: FakeNvml) -> None:
    """A zero that nobody measured reads as good health: an older or smaller GPU just has fewer metrics."""
    kept = ("uuid", "name", "pci", "memory_total", "memory_used", "temperature")
    fake.gpus[0] = {key: fake.gpus[0][key] for key in kept} | {"field.29.0": 2, "field.30.0": 1}
    fake.gpus[1] |= {"utilization": "!4", "field.82.0": 0, "power": 2**32 - 1}
    fake.play()
    with reader(fake.environ) as read:
        read.do()
    assert {key[0] for key in read.samples if FIRST in key} == {
        "gpu_up",
        "gpu_memory_used_bytes",
        "gpu_memory_total_bytes",
        "gpu_temperature_celsius",
        "gpu_retired_pages",
    }
    assert read.samples["gpu_retired_pages", FIRST] == 3
    assert not {("gpu_utilization_ratio", SECOND), ("gpu_power_watts", SECOND)} & read.samples.keys()
    assert ("gpu_temperature_celsius", SECOND, "memory") not in read.samples


def test_a_generation_without_totals_is_asked_link_by_link(fake: FakeNvml) -> None:
    """Eighteen links of a Blackwell are five kinds of errors at most, not ninety series."""
    totals = ("38", "45", "52", "59")
    for gpu in fake.gpus:
        for number in totals:
            del gpu[f"field.{number}.0"]
        gpu |= {f"field.{number}.{link}": link for number in (208, 211, 215) for link in range(HOPPER_LINKS)}
        gpu |= {"link.5": 0}
    fake.play()
    with reader(fake.environ) as read:
        read.do()
    errors = {key[2]: value for key, value in read.samples.items() if key[:2] == ("gpu_nvlink_errors_total", FIRST)}
    assert errors == dict.fromkeys(("receive", "integrity", "recovery"), sum(range(HOPPER_LINKS)))
    assert read.samples["gpu_nvlinks_active", FIRST] == HOPPER_LINKS - 1


@pytest.mark.parametrize(
    ("bits", "reasons"),
    [(0x01, set()), (0x04 | 0x40 | 0x08, {"sw_power_cap", "hw_thermal", "hw_slowdown"}), (0x20, {"sw_thermal"})],
    ids=["idle", "hot", "warm"],
)
def test_a_clock_that_is_held_down_has_its_reasons(fake: FakeNvml, read: Reader, bits: int, reasons: set[str]) -> None:
    """Each reason is a series of its own, and an idle GPU is not held down."""
    fake.change(0, throttle=bits)
    read.do()
    active = {key[2]: value for key, value in read.samples.items() if key[:2] == ("gpu_throttle_active", FIRST)}
    assert {reason for reason, value in active.items() if value} == reasons
    assert len(active) == 6


@pytest.mark.parametrize(
    "answer", ["!15", "!2", "!16", "!999"], ids=["lost", "unknown handle", "reset", "unknown error"]
)
def test_a_gpu_off_the_bus_is_down_and_the_others_go_on(fake: FakeNvml, read: Reader, answer: str) -> None:
    """However the driver says that a GPU is gone: only `up` is left of it, once told, and so is that it is back."""
    healthy = dict(read.samples)
    fake.change(0, all=answer)
    (lost,) = read.do()
    assert (lost["uuid"], lost["kind"]) == (FIRST, "lost")
    assert lost["text"]
    assert {key: value for key, value in read.samples.items() if FIRST in key} == {("gpu_up", FIRST): 0}
    assert {key for key in read.samples if SECOND in key} == {key for key in healthy if SECOND in key}
    assert read.samples["collector_success", "nvml"] == 1
    assert read.do() == []
    del fake.gpus[0]["all"]
    fake.play()
    (back,) = read.do()
    assert (back["uuid"], back["kind"]) == (FIRST, "back")
    assert read.samples.keys() == healthy.keys()


def test_a_gpu_that_gives_no_handle_is_down_from_the_start(fake: FakeNvml) -> None:
    """A sidecar that is started on a broken node must not count one GPU less and call that well; nothing is joined to no name."""
    fake.change(0, handle="!15")
    with reader(fake.environ) as read:
        told = read.do()
    assert read.samples["gpu_up", ""] == 0
    assert read.labels[""] == ("0", "", "", "")
    assert read.samples["gpu_up", SECOND] == 1
    assert [seen["what"] for seen in told] == ["GpusFound"]


def test_another_containers_gpu_is_none_of_ours(fake: FakeNvml) -> None:
    """The driver counts GPUs that this container may not use; they are neither up nor down."""
    fake.change(0, handle="!4")
    with reader(fake.environ) as read:
        read.do()
    assert {key[1] for key in read.samples if key[0] == "gpu_up"} == {SECOND}


def test_memory_links_and_rows_tell_of_their_errors(fake: FakeNvml, read: Reader) -> None:
    """The fold hears by how much a counter rose, and that a row could not be replaced; corrected errors and replays are no news."""
    more = {"field.4.0": 3, "field.3.0": 500, "field.145.0": 1, "field.38.0": 7, "field.59.0": 1, "field.52.0": 90}
    fake.change(1, **more)
    told = {seen["kind"]: seen for seen in read.do()}
    assert told.keys() == {"ecc", "remap", "nvlink"}
    assert {seen["uuid"] for seen in told.values()} == {SECOND}
    assert (told["ecc"]["count"], told["nvlink"]["count"]) == (3, 8)
    assert told["nvlink"]["text"] == "NVLink errors: 7 crc, 1 recovery"
    fake.change(1, **{"field.4.0": 0, "field.38.0": 0})  # the driver was loaded anew: its counters begin anew
    assert read.do() == []


def test_a_memory_error_is_dated_by_its_report(fake: FakeNvml, read: Reader) -> None:
    """A failure comes at once after an uncorrected error, not at the next reading: evidence must not look later than it."""
    fake.report(0, 0, kind=MEMORY_ERROR)
    fake.report(0, 31)  # heard after it
    read.until(lambda: read.happened("xid"))
    fake.change(0, **{"field.4.0": 1})
    (ecc,) = read.do()
    (xid,) = read.happened("xid")
    assert ecc["kind"] == "ecc"
    assert ecc["mono"] <= xid["mono"]
    assert ecc["wall"] <= xid["wall"] + 0.01


def test_equal_xids_are_all_seen(fake: FakeNvml, read: Reader) -> None:
    """A gauge that latches the last XID hides the second of its kind; here each one counts."""
    for number in range(1, 4):
        fake.report(1, 13)
        read.until(lambda number=number: sum(seen["count"] for seen in read.happened("xid")) == number)
    assert {(seen["uuid"], seen["xid"]) for seen in read.happened("xid")} == {(SECOND, 13)}


def test_a_storm_is_counted_exactly_and_takes_no_room(fake: FakeNvml, read: Reader) -> None:
    """11,760 echoes of one job arrive as a few happenings with their number, and one XID that matters is not lost among them."""
    fake.report(0, 45, times=6_000)
    fake.report(0, 79)
    fake.report(0, 45, times=5_760)
    read.until(lambda: sum(seen["count"] for seen in read.happened("xid")) == 11_761)
    counts = {xid: sum(seen["count"] for seen in read.happened("xid") if seen["xid"] == xid) for xid in (45, 79)}
    assert counts == {45: 11_760, 79: 1}
    assert len(read.happened("xid")) < 1_000
    fake.report(0, 45, times=1_000)
    fake.report(1, 8)
    read.until(lambda: any(seen["xid"] == 8 for seen in read.happened("xid")))
    assert sum(seen["count"] for seen in read.happened("xid") if seen["xid"] == 45) == 12_760


def test_events_are_heard_again_after_the_driver_refused(fake: FakeNvml, read: Reader) -> None:
    """With a GPU gone the driver may refuse to wait for events: those of the others must be heard again, without a busy loop."""
    fake.change(0, all="!15")
    fake.machine["wait"] = "!15"
    fake.play()
    read.do()
    read.do()
    del fake.machine["wait"]
    fake.play()
    read.do()
    read.do()

    def heard() -> bool:
        fake.report(1, 74)
        read.do()
        return bool(read.happened("xid"))

    read.until(heard)
    assert {seen["uuid"] for seen in read.happened("xid")} == {SECOND}
    del fake.gpus[0]["all"]  # and those of the lost one once it is back
    fake.play()
    read.do()
    read.do()
    fake.report(0, 13)
    read.until(lambda: {seen["uuid"] for seen in read.happened("xid")} == {FIRST, SECOND})


def test_a_gpu_without_events_is_read_all_the_same(fake: FakeNvml) -> None:
    """Where the driver reports nothing by itself, the figures are still there."""
    for gpu in fake.gpus:
        del gpu["events"]
    fake.play()
    with reader(fake.environ) as read:
        for _ in range(3):
            read.do()
    assert read.samples["gpu_up", FIRST] == 1


def test_instances_of_a_gpu_lead_to_it(fake: FakeNvml) -> None:
    """With MIG a rank names an instance; figures and errors are the GPU's, so that the fold must know which one that is."""
    parts = {"mig": 1, "mig.0": "MIG-aaaa", "mig.2": "MIG-cccc"}
    fake.change(1, **parts, utilization="!3")
    with reader(fake.environ, look_seconds=0.0) as read:
        (found,) = read.do()
        assert found["parts"] == [["MIG-aaaa", SECOND], ["MIG-cccc", SECOND]]
        assert ("gpu_utilization_ratio", SECOND) not in read.samples
        assert read.samples["gpu_memory_used_bytes", SECOND] == 75_377_410_048
        fake.change(1, **{"mig.3": "MIG-dddd"})
        (again,) = read.do()
        assert again["parts"][-1] == ["MIG-dddd", SECOND]
        fake.report(0, 45)
        fake.report(1, 31)
        read.until(lambda: len(read.happened("xid")) == 2)
        fake.change(1, all="!15")
        read.do()
    told = {(seen["uuid"], seen["kind"]): seen["parts"] for seen in read.told if seen["what"] == "GpuSeen"}
    instances = ["MIG-aaaa", "MIG-cccc", "MIG-dddd"]
    assert told == {(FIRST, "xid"): [], (SECOND, "xid"): instances, (SECOND, "lost"): instances}


GARBAGE = b"\xff\xfe(".decode("utf-8", "surrogateescape")


@pytest.mark.parametrize("what", ["name", "pci", "uuid", "mig.0"])
def test_a_text_in_no_encoding_costs_only_itself(fake: FakeNvml, what: str) -> None:
    """One broken GPU must not take the others' metrics with it; one whose UUID cannot be read is down."""
    fake.change(1, **{"mig": 1, "mig.0": "MIG-cafe-1"})
    fake.change(1, **{what: GARBAGE})
    with reader(fake.environ) as process:
        process.do()
        assert process.samples["gpu_up", FIRST] == 1
        assert process.samples["gpu_up", "" if what == "uuid" else SECOND] == (what != "uuid")
        assert process.samples["collector_success", "nvml"] == 1


@pytest.mark.parametrize("value", ["nan.", "inf.", "-5.0"])
def test_a_number_that_can_be_none_is_absent(fake: FakeNvml, read: Reader, value: str) -> None:
    """No counter is negative or not a number, and none of them makes a failure of the whole reading."""
    for _ in range(2):
        fake.change(1, **{"field.4.0": value, "link.3": 4_294_967_290})
        read.do()
    assert read.samples["gpu_up", SECOND] == 1
    assert ("gpu_ecc_errors_total", SECOND, "uncorrected", "volatile") not in read.samples
    assert read.samples["gpu_nvlinks_active", SECOND] == HOPPER_LINKS - 1
    assert read.happened("ecc") == []


def test_a_count_beyond_reason_is_not_believed(fake: FakeNvml) -> None:
    """The look for GPUs ends, and those that there are are shown."""
    fake.machine["count"] = 4_000_000_000
    fake.play()
    with reader(fake.environ) as process:
        process.do()
        assert (process.samples["gpu_up", FIRST], process.samples["gpu_up", SECOND]) == (1, 1)


def test_a_gpu_in_anothers_place_takes_it(fake: FakeNvml) -> None:
    """After a swap of cards the old one is not lost, it is out of the machine; a GPU that nobody replaced stays down."""
    with reader(fake.environ, look_seconds=0.0) as process:
        process.do()
        fake.change(0, all="!15")
        for number in range(3):
            fake.change(1, uuid=f"GPU-beef{number:04x}")
            process.do()
        up = {key[1]: value for key, value in process.samples.items() if key[0] == "gpu_up"}
        assert up == {FIRST: 0, "GPU-beef0002": 1}
        assert [labels[1] for labels in process.told[-1]["gpus"]] == [FIRST, "GPU-beef0002"]
        fake.gpus[0] = hopper(0) | {
            "uuid": "GPU-cafe",
            "pci": "00000000:99:00.0",
        }  # in another slot, under the same number
        fake.play()
        process.do()
        assert {key[1] for key in process.samples if key[0] == "gpu_up"} == {"GPU-cafe", "GPU-beef0002"}


def test_gpus_that_change_places_keep_their_own_errors(fake: FakeNvml) -> None:
    """An XID belongs to the UUID that the GPU has now."""
    with reader(fake.environ, look_seconds=0.0) as process:
        process.do()
        fake.gpus[0]["uuid"], fake.gpus[1]["uuid"] = SECOND, FIRST
        fake.play()
        process.do()
        fake.report(0, 79)
        process.until(lambda: process.happened("xid"))
    assert [seen["uuid"] for seen in process.happened("xid")] == [SECOND]


@pytest.mark.slow
@pytest.mark.parametrize(
    "what", ["0.handle", "uuid", "name", "pci", "power", "link.3", "field.4.0", "mig", "init", "count"]
)
def test_a_hang_at_any_call_is_survived(fake: FakeNvml, what: str) -> None:
    """Whichever call hangs, all GPUs are down until it ends, and well afterwards."""
    healthy, machine = dict(fake.gpus[0]), dict(fake.machine)
    (fake.machine if what in ("0.handle", "init", "count") else fake.gpus[0])[what] = "@hang"
    fake.play()
    with reader(fake.environ, look_seconds=0.0) as process:
        process.do("start")
        process.until(lambda: process.samples.get(("collector_success", "nvml")) == 0)
        fake.machine, fake.gpus[0] = machine, healthy
        fake.play()
        process.until(lambda: process.samples.get(("gpu_up", FIRST)) == 1)


def test_no_driver_is_absence(fake: FakeNvml) -> None:
    """A machine without GPUs, or whose driver is not loaded, has no series; with a driver they come."""
    fake.machine["init"] = "!9"
    fake.play()
    with reader(fake.environ) as read:
        read.do()
        assert read.samples == {}
        del fake.machine["init"]
        fake.machine["count"] = 0
        fake.play()
        read.do()
        assert read.samples == {}
        fake.machine["count"] = 2
        fake.play()
        read.do()
        assert read.samples["gpu_up", SECOND] == 1


def test_a_driver_that_goes_away_takes_its_gpus_down(fake: FakeNvml, read: Reader) -> None:
    """Unloaded beneath us it is a fault, not a machine without GPUs; once it is there again all is as before, under the same names."""
    healthy = dict(read.samples)
    fake.machine["init"] = "!9"
    fake.machine["count"] = "!1"
    for gpu in fake.gpus:
        gpu["all"] = "!1"
    fake.play()
    for _ in range(2):
        read.do()
        assert {key: value for key, value in read.samples.items() if key[0] == "gpu_up"} == {
            ("gpu_up", FIRST): 0,
            ("gpu_up", SECOND): 0,
        }
        assert read.samples["collector_success", "nvml"] == 0
        assert not any(key[0] == "gpu_power_watts" for key in read.samples)
    fake.machine = {"count": 2}
    for gpu in fake.gpus:
        del gpu["all"]
    fake.play()
    read.until(lambda: read.samples.keys() == healthy.keys(), "read")
    fake.report(0, 79)
    read.until(lambda: read.happened("xid"))


def test_a_driver_that_hangs_stalls_nobody(fake: FakeNvml, read: Reader) -> None:
    """No answer is no good answer: all GPUs are down while it hangs, XIDs that were heard are told, and all comes back."""
    read.do("start")
    fake.report(0, 119)
    read.until(lambda: read.happened("xid"))
    fake.machine["hang"] = 1
    fake.play()
    read.until(lambda: read.samples["collector_success", "nvml"] == 0)
    assert {key: value for key, value in read.samples.items() if key[0].startswith("gpu_")} == {
        ("gpu_up", FIRST): 0,
        ("gpu_up", SECOND): 0,
    }
    del fake.machine["hang"]
    fake.play()
    read.until(lambda: read.samples.get(("gpu_power_watts", FIRST)))
    assert read.samples["gpu_up", SECOND] == 1


def test_a_gpu_that_comes_back_under_a_new_beginning(fake: FakeNvml) -> None:
    """When none is left, a reset GPU shows only to who begins anew; it keeps its name, though the driver counts it differently now."""
    with reader(fake.environ, look_seconds=0.0) as read:
        read.do()
        fake.change(0, all="!15")
        fake.change(1, all="!15")
        read.do()
        fake.gpus = fake.gpus[1:]
        del fake.gpus[0]["all"]
        fake.machine["count"] = 1
        fake.play()
        read.do()
    assert {key[1]: value for key, value in read.samples.items() if key[0] == "gpu_up"} == {FIRST: 0, SECOND: 1}
    assert read.labels[SECOND][0] == "1"


@pytest.mark.gpu
def test_a_real_gpu_answers() -> None:
    """The same reader on the machine's own GPU."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        pytest.skip("no NVIDIA driver")
    with reader({}) as read:
        (found,) = read.do()
        read.do()
    if not read.samples:
        pytest.skip("the driver knows no GPU")
    for _, uuid_, bus, model in found["gpus"]:
        assert uuid_.startswith("GPU-")
        assert bus
        assert model
        assert read.samples["gpu_up", uuid_] == 1
        assert 0 < read.samples["gpu_memory_used_bytes", uuid_] < read.samples["gpu_memory_total_bytes", uuid_]
        assert 0 < read.samples["gpu_temperature_celsius", uuid_, "gpu"] < 110
        assert sum(key[1] == uuid_ for key in read.samples if key[0].startswith("gpu_")) <= 40
