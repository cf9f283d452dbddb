"""What the fold keeps of GPUs: counts that only rise, the latest happenings, and which GPU a rank's setting means."""

from __future__ import annotations

from headway_exporter import collectors
from headway_exporter.gpus import MOST_COUNTED, MOST_KEPT, MOST_NAMED, Gpus
from headway_exporter.memory import encoder, recall
from headway_exporter.observations import GpuSeen, GpusFound
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
    """Whatever a driver reports, memory and series are bounded; the newest is counted in the place of what was not heard of for longest."""
    gpus = Gpus()
    for number in range(MOST_COUNTED + 500):
        gpus.fold(xid(number, at=1.0 + number))
        gpus.fold(xid(0, at=1.5 + number))
        gpus.found(found(("0", f"GPU-{number:09}", "", ""), parts=((f"MIG-{number:09}", "GPU-1"),)))
    assert (len(gpus.xids), len(gpus.last_xid_wall), len(gpus.recent)) == (MOST_COUNTED, MOST_COUNTED, MOST_KEPT)
    assert gpus.xids[ONE[1], 0] == MOST_COUNTED + 501
    assert gpus.xids[ONE[1], MOST_COUNTED + 499] == 1
    assert (ONE[1], 3) not in gpus.xids
    assert len(gpus.labels) == len(gpus.parents) == MOST_NAMED
    assert gpus.labels_of(f"GPU-{MOST_COUNTED + 499:09}")[0] == "0"


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
