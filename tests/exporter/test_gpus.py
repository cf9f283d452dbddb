"""What the fold keeps of GPUs: counts that only rise, the latest happenings, and which GPU a rank's setting means."""

from __future__ import annotations

from headway_exporter import collectors
from headway_exporter.gpus import MOST_COUNTED, MOST_KEPT, MOST_NAMED, MOST_UNKNOWN, MOST_XIDS, Gpus
from headway_exporter.health import nvml_reports
from headway_exporter.memory import encoder, recall
from headway_exporter.observations import EventsMissed, GpuSeen, GpusFound
from headway_exporter.pod import Pod

ONE, OTHER = (
    ("0", "GPU-aaaa-1", "00000000:1B:00.0", "NVIDIA H200"),
    ("1", "GPU-abbb-2", "00000000:1C:00.0", "NVIDIA H200"),
)


def xid(number: int, at: float = 1.0, uuid: str = ONE[1], count: int = 1) -> GpuSeen:
    return GpuSeen(uuid, "xid", at, at + 1e9, xid=number, count=count)


def found(*gpus: tuple[str, ...], parts: tuple[tuple[str, str], ...] = ()) -> GpusFound:
    return GpusFound(gpus, parts, 0.0)


def series(pod: Pod) -> dict[tuple[str, ...], float]:
    """What the pod shows of XIDs, and of the GPUs of ranks."""
    return {(name.removeprefix("headway_gpu_xid_"), *labels): value for name, labels, value in collectors.gpus(pod)}


def test_each_xid_is_counted_by_gpu_and_number() -> None:
    """Several at once count as several; the newest of a class dates it, in whatever order they came."""
    pod = Pod("r", "0")
    pod.fold(
        [found(ONE, OTHER), xid(79), xid(45, 5.0), xid(45, 3.0, count=11_759), xid(48, 2.0), xid(31, uuid=OTHER[1])]
    )
    assert series(pod) == {
        ("errors_total", *ONE, "79", "hardware"): 1,
        ("errors_total", *ONE, "45", "echo"): 11_760,
        ("errors_total", *ONE, "48", "hardware"): 1,
        ("errors_total", *OTHER, "31", "application"): 1,
        ("last_timestamp_seconds", *ONE, "hardware"): 1e9 + 2,
        ("last_timestamp_seconds", *ONE, "echo"): 1e9 + 5,
        ("last_timestamp_seconds", *OTHER, "application"): 1e9 + 1,
    }


def test_counts_and_labels_outlive_the_sidecar() -> None:
    """A counter that steps back, or a series that changes its labels, would be a second failure in an alert's eyes."""
    pod, next_one = Pod("r", "0"), Pod("r", "0")
    pod.fold([found(ONE, parts=(("MIG-1", ONE[1]),)), xid(79), xid(79)])
    recall(next_one, encoder().encode(pod))
    assert series(next_one) == series(pod)
    assert next_one.gpus.whole("MIG-1") == ONE[1]
    next_one.fold([found(OTHER), xid(79)])  # on another machine now: the old one's GPU keeps its name
    assert series(next_one)[("errors_total", *ONE, "79", "hardware")] == 3


def test_a_storm_fills_nothing() -> None:
    """Whatever a driver reports, memory and series are bounded, each report is counted, and none pushes out what is known to matter."""
    pod = Pod("r", "0")
    pod.fold([found(ONE)])
    pod.fold([xid(100_000 + number, at=1.0 + number, count=2) for number in range(3_000)])
    pod.fold([xid(number, at=4_000.0 + number) for number in range(200)])  # the whole table, and more
    pod.fold([xid(79, at=5_000.0), xid(nvml_reports.OTHER, at=5_001.0, count=7), xid(100_000, at=5_002.0)])
    shown = series(pod)
    counts = {key[5:]: value for key, value in shown.items() if key[0] == "errors_total"}
    assert sum(counts.values()) == 6_000 + 200 + 9
    assert counts["100000", "unknown"] == 3
    assert sum(counts[key] for key in counts if key[0] == "other" and key[1] != "unknown") > 50
    assert len(counts) <= MOST_XIDS + 7
    assert shown[("last_timestamp_seconds", *ONE, "hardware")] == 1e9 + 5_000
    kept = [seen.xid for seen in pod.gpus.recent]
    assert 79 in kept
    assert sum(number >= 100_000 for number in kept) <= MOST_UNKNOWN + 1


def test_what_a_driver_names_fills_nothing() -> None:
    """GPUs, their parts and their XIDs: those of machines that were left long ago make room."""
    gpus = Gpus()
    for number in range(MOST_KEPT + 100):
        gpus.fold(xid(79, at=1.0 + number, uuid=f"GPU-{number:09}"))
        gpus.found(found(("0", f"GPU-{number:09}", "", ""), parts=((f"MIG-{number:09}", "GPU-1"),)))
    assert (len(gpus.xids), len(gpus.last_xid_wall), len(gpus.recent)) == (MOST_COUNTED, MOST_COUNTED, MOST_KEPT)
    assert ("GPU-000000003", 79) not in gpus.xids
    assert len(gpus.labels) == len(gpus.parents) == MOST_NAMED
    assert gpus.labels_of(f"GPU-{MOST_KEPT + 99:09}")[0] == "0"


def test_others_are_counted_on_by_the_next_sidecar() -> None:
    """What is counted under no number of its own is one counter, whoever counts it."""
    pod, next_one = Pod("r", "0"), Pod("r", "0")
    pod.fold([found(ONE), *(xid(100_000 + number) for number in range(20))])
    recall(next_one, encoder().encode(pod))
    next_one.fold([xid(200_000)])
    assert series(next_one)[("errors_total", *ONE, "other", "unknown")] == 20 - MOST_UNKNOWN + 1


def test_a_gpu_that_is_still_gone_is_no_news() -> None:
    """The next sidecar finds it gone, too: it went when it went, which is what a failure is explained with."""
    gpus = Gpus()
    for kind, at in (
        ("lost", 5.0),
        ("lost", 500.0),
        ("back", 600.0),
        ("hung", 700.0),
        ("hung", 800.0),
        ("lost", 900.0),
    ):
        gpus.fold(GpuSeen(ONE[1], kind, at, at))  # type: ignore[arg-type]
    assert [(seen.kind, seen.mono) for seen in gpus.recent] == [
        ("lost", 5.0),
        ("back", 600.0),
        ("hung", 700.0),
        ("lost", 900.0),
    ]


def test_missed_reports_are_shown() -> None:
    """Whoever reads the counts must see that there may be more."""
    pod = Pod("r", "0")
    pod.fold([EventsMissed(2, 1.0), EventsMissed(1, 2.0)])
    assert pod.dropped["gap"] == 3


def test_a_ranks_setting_leads_to_its_gpu() -> None:
    """CUDA_VISIBLE_DEVICES may name a GPU, a part of one in two spellings, or the beginning of either; anything else stays as it is."""
    gpus = Gpus()
    gpus.found(found(ONE, OTHER, parts=(("MIG-cccc-3", OTHER[1]),)))
    for name, uuid in (
        (ONE[1], ONE[1]),
        ("MIG-cccc-3", OTHER[1]),
        ("MIG-GPU-dddd-4/7/0", "GPU-dddd-4"),
        ("GPU-aa", ONE[1]),
        ("MIG-c", OTHER[1]),
        ("GPU-a", "GPU-a"),  # both begin so
        ("GPU-", "GPU-"),
        ("GPU-eeee-5", "GPU-eeee-5"),
        ("", ""),
    ):
        assert gpus.whole(name) == uuid, name
