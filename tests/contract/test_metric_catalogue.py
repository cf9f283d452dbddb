"""The metric catalogue is the truth: what is in it is exported and documented, and nothing else is exported."""

from __future__ import annotations

import re

import pytest
import readme
import sysfs_tree
from fake_nvml import FakeNvml
from journal_folder import RUN, finish, launcher, trainer
from sidecar_process import sidecar

from headway_exporter import schema

Labels = dict[str, str]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, list[Labels]]]:
    """Type and label sets of every family of a real sidecar after a run that has seen nearly everything."""
    directory = tmp_path_factory.mktemp("journals")
    (directory / RUN).mkdir()
    say = launcher(directory)
    say("launcher_started", pid=1)
    timeouts = ("set=heartbeat_initial_seconds:60", "set=heartbeat_rank_seconds:8")
    acts = (*timeouts, "enter=a", "load=0", "steps=1-6", "save=5", "commit=5", "save=6", "ready", "wait")
    finish(*(trainer(directory, slot, *acts) for slot in (0, 1)), kill=True)
    say("worker_exited", local_rank=1, exit_code=-9)
    say("worker_group_failed", restarts_left=3, restarts_limit=3)
    finish(
        *(
            trainer(
                directory, slot, *timeouts, "enter=b", "load=5", "steps=6-9", "save=8", "gap=3", "finish=9", cycle=1
            )
            for slot in (0, 1)
        )
    )
    sysfs_tree.port(directory / "sys", "mlx5_0")
    fake = FakeNvml(tmp_path_factory.mktemp("nvml"), 1)
    fake.change(
        0, **{"field.29.0": 0}
    )  # a GPU that retires pages and remaps rows is in no machine, but has every metric
    with sidecar(directory, "--sysfs-root", str(directory / "sys"), **fake.environ) as exporter:
        exporter.until(lambda status: status["finished"], "the end")
        exporter.until(lambda _: exporter.labels("headway_gpu_up"), "the GPU")
        fake.report(0, 79)
        exporter.until(lambda _: exporter.labels("headway_gpu_xid_errors_total"), "its error")
        exporter.until(
            lambda _: exporter.value("headway_sidecar_cpu_ratio") is not None, "a second look at the machine"
        )
        assert exporter.get("/metrics", method="POST")[0] == 405
        families = exporter.families()
    found = {}
    for family in families.values():
        name = family.name + ("_total" if family.type == "counter" else "")
        found[name] = (
            family.type,
            [{key: text for key, text in sample.labels.items() if key != "le"} for sample in family.samples],
        )
    return found


def test_every_metric_of_the_catalogue_is_exported(exported: dict[str, tuple[str, list[Labels]]]) -> None:
    """A metric that a dashboard relies on must exist; one that may be absent says when."""
    missing = {name for name in schema.METRICS if name not in exported}
    assert all(schema.METRICS[name].absent for name in missing), missing
    dead = {
        "headway_async_queue_oldest_timestamp_seconds",
        "headway_async_writer_memory_bytes",
        "headway_host_trainer_memory_bytes",
        "headway_host_open_files",
    }
    closed = {
        "headway_incident_opened_timestamp_seconds",
        "headway_incident_attempt_started_timestamp_seconds",
        "headway_incident_recurring",
        "headway_entity_incidents",
        "headway_waiting_since_timestamp_seconds",
        "headway_replay_diverged_timestamp_seconds",
    }
    outside = {"headway_container_restarts", "headway_container_ends_total", "headway_pod_disruptions_total"}
    unknown_here = {"headway_host_memory_pressure_ratio", "headway_storage_inodes_available_ratio"}
    assert missing <= dead | closed | unknown_here | outside
    assert {labels["kind"] for labels in exported["headway_heartbeat_timeout_seconds"][1]} == {"initial", "rank"}


def test_nothing_is_exported_beside_the_catalogue(exported: dict[str, tuple[str, list[Labels]]]) -> None:
    """Names are given in one place only."""
    assert set(exported) <= set(schema.METRICS)


def test_types_and_labels_are_those_of_the_catalogue(exported: dict[str, tuple[str, list[Labels]]]) -> None:
    """Labels exactly as promised, their values inside the closed sets: rules and dashboards join on them."""
    for name, (kind, label_sets) in exported.items():
        metric = schema.METRICS[name]
        assert kind == metric.type, name
        for labels in label_sets:
            assert set(labels) == {*schema.COMMON_LABELS, *metric.labels}, name
            for label, allowed in metric.labels.items():
                assert allowed is None or labels[label] in allowed, (name, label, labels[label])


def test_names_follow_the_conventions() -> None:
    """Counters end in _total, nothing else does, and units are base units."""
    for metric in schema.METRICS.values():
        assert re.fullmatch(r"headway_[a-z0-9_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.type == "counter"), metric.name
        assert not re.search(r"_(ms|milliseconds|minutes|hours|kb|mb|gb|percent)(_|$)", metric.name)
        assert metric.help.endswith("."), metric.name
        assert bool(metric.buckets) == (metric.type == "histogram"), metric.name
        assert metric.buckets == tuple(sorted(set(metric.buckets))), metric.name


def test_labels_never_name_what_has_no_bound() -> None:
    """A step, a path or a text in a label would make a series each."""
    forbidden = {
        "step",
        "path",
        "file",
        "message",
        "text",
        "fingerprint",
        "incarnation",
        "life",
        "pid",
        "instance",
        "pod",
    }
    for metric in schema.METRICS.values():
        assert not forbidden & set(metric.labels), metric.name


def test_every_metric_is_documented() -> None:
    """The document is the catalogue; `make docs` writes it anew."""
    assert readme.METRICS.read_text() == readme.metrics_document()
