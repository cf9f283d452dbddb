"""Whole pods that die and are started again, and faults that all pods of a run see, as the run's Prometheus has them in the end."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Final

import harness
import live
import pods
import pytest
from prometheus_client.parser import text_string_to_metric_families

from headway_trainer.demo import alerting, runner, stack

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

try:
    PROGRAMS: stack.Programs | None = stack.programs()
except stack.MissingError:
    PROGRAMS = None
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.alone,
    pytest.mark.skipif(PROGRAMS is None, reason="Prometheus or Alertmanager is not installed"),
]

ENDLESS: Final = 2_000
"""Steps that no test waits for."""
PATIENCE_SECONDS: Final = 240.0
DOWN_SECONDS: Final = 2.0
PACE: Final = {**stack.PACE, "note_seconds": 5}
"""A recovery is news for so short a time that each one is told apart from the one before."""
COUNTERS: Final = '{__name__=~"headway_.+_(total|sum|count|bucket)"}[10m]'

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def job(folder: Path, number: int, *faults: str) -> pods.Job:
    """Pods of two ranks each that save every five steps, ten steps a second at most."""
    options = harness.trainer_options(
        folder / "output",
        steps=ENDLESS,
        faults=faults,
        more=("--checkpoint.every=5", "--checkpoint.mode=sync", "--simulation.step-seconds=0.1"),
    )
    return pods.Job(folder, number, 2, options, runner.free_ports())


@contextlib.contextmanager
def prometheus(folder: Path, *sidecars: int) -> Iterator[stack.Stack]:
    """It scrapes these ports every second, with the rendered rules at a quick pace."""
    assert PROGRAMS is not None
    with stack.stack(PROGRAMS, folder / "stack", PACE) as both:
        both.watch(*(f"127.0.0.1:{port}" for port in sidecars))
        yield both


def asked(watching: stack.Stack, expr: str) -> list[tuple[dict[str, str], float]]:
    """What Prometheus answers now: labels and value of each series."""
    found = live.Live(watching.prometheus, 0, time.time()).at_the_end(expr)
    return [(one["metric"], float(one["value"][1])) for one in found]


def values(watching: stack.Stack, expr: str, *labels: str) -> dict[tuple[str, ...], float]:
    """Values by these labels, those of 0 left out."""
    found = asked(watching, f"{expr} > 0")
    assert len({tuple(labelled[name] for name in labels) for labelled, _ in found}) == len(found)
    return {tuple(labelled[name] for name in labels): value for labelled, value in found}


def stepped_back(watching: stack.Stack) -> list[dict[str, str]]:
    """The counters that one of Prometheus' scrapes found lower than the one before."""
    series = live.Live(watching.prometheus, 0, time.time()).at_the_end(COUNTERS)
    assert len(series) > 100
    seen = [(one["metric"], [float(value) for _, value in one["values"]]) for one in series]
    return [labels for labels, found in seen if found != sorted(found)]


def reaches(pod: pods.Pod, *, step: int, recovered: int) -> dict[str, Any]:
    """The pod's status once it has made so many steps, and recovered so often."""
    held: list[dict[str, Any]] = []

    def there() -> bool:
        status = pod.sidecar.status()
        if status is None:
            return False
        held[:] = [status]
        ended = [one for one in status["incidents"] if one["state"] == "recovered"]
        return (status["step"] or 0) >= step and len(ended) >= recovered

    harness.wait_until(there, f"step {step} and {recovered} recoveries", PATIENCE_SECONDS, pod.log)
    return held[0]


def scraped(pod: pods.Pod) -> Samples:
    """All samples of one scrape."""
    families = text_string_to_metric_families(pod.sidecar.scrape())
    return {(one.name, tuple(sorted(one.labels.items()))): one.value for family in families for one in family.samples}


def total(samples: Samples, name: str, **labels: str) -> float:
    """Sum of the samples with this name and these labels."""
    return sum(
        value for (found, inside), value in samples.items() if found == name and labels.items() <= dict(inside).items()
    )


def test_a_pod_goes_on_on_another_node(tmp_path: Path) -> None:
    """Killed whole in mid-run and started elsewhere with the same state folder, it continues its counters, mark, time and history."""
    run, port = job(tmp_path, 1, "exception@7"), runner.free_ports(1)
    with prometheus(tmp_path, port) as watching:
        with pods.pod(run, 0, node="node-a", port=port) as first:
            status_before = reaches(first, step=18, recovered=1)
            before = scraped(first)
            first.kill()
        time.sleep(DOWN_SECONDS)
        with pods.pod(run, 0, node="node-b", port=port) as second:
            mark = int(total(before, "headway_high_water_step"))
            status_after = reaches(second, step=mark + 6, recovered=2)
            after = scraped(second)
            harness.wait_until(
                lambda: values(watching, "run:headway_restarts_total:max", "layer").get(("orchestrator",)),
                "Prometheus heard of the restart",
                20,
            )
            lower = stepped_back(watching)

    counters = [key for key in before if key[0].endswith(("_total", "_sum", "_count", "_bucket"))]
    assert len(counters) > 100
    assert [(key, before[key], after.get(key)) for key in counters if not before[key] <= after.get(key, -1)] == []
    assert lower == []
    assert total(after, "headway_high_water_step") >= mark
    assert total(after, "headway_run_start_timestamp_seconds") == total(before, "headway_run_start_timestamp_seconds")
    down = {"state": "down"}
    assert total(before, "headway_rank_seconds_total", **down) == 0
    assert total(after, "headway_rank_seconds_total", **down) >= run.ranks * DOWN_SECONDS
    booked = total(after, "headway_rank_seconds_total") + total(after, "headway_pending_rank_seconds")
    assert booked == pytest.approx(total(after, "headway_rank_elapsed_seconds_total"), abs=0.001)
    restarts = {layer: total(after, "headway_restarts_total", layer=layer) for layer in status_after["restarts"]}
    assert restarts == {"in_process": 1, "launcher": 0, "orchestrator": 1}
    assert total(after, "headway_run_info", node="node-b") == 1
    kept, new = status_after["incidents"]
    assert kept == status_before["incidents"][0]
    assert (new["state"], new["layer"], new["cause"]) == ("recovered", "orchestrator", "node_lost")


def test_a_fault_on_one_of_three_pods_is_counted_once(tmp_path: Path) -> None:
    """On whichever layer, all three see it: the run has one incident and one restart of it, which began on the one pod."""
    run = job(tmp_path, 3, "exception@7:rank=1", "sigkill@13:rank=3", "pod_loss@28:rank=5")
    ports = [runner.free_ports(1) for _ in range(run.pods)]
    with contextlib.ExitStack() as started:
        watching = started.enter_context(prometheus(tmp_path, *ports))
        found = [started.enter_context(pods.pod(run, index, port=port, restarts=1)) for index, port in enumerate(ports)]
        for pod in found:
            reaches(pod, step=31, recovered=3)
        told_of = ("headway_incident_causes_total", "headway_restart_causes_total", "run:headway_incidents_total:max")
        for counter in told_of:
            heard = lambda counter=counter: sum(value for _, value in asked(watching, counter)) >= 3  # noqa: E731 - called at once
            harness.wait_until(heard, f"Prometheus heard of the last one: {counter}", 30)
        time.sleep(3 * stack.SECONDS)  # for whoever counts what was counted already
        layers = values(watching, "run:headway_restarts_total:max", "layer")
        incidents = values(watching, "run:headway_incidents_total:max", "outcome")
        causes = values(watching, "headway_incident_causes_total", "pod_index", "layer", "cause")
        restart_causes = values(watching, "headway_restart_causes_total", "pod_index", "layer", "cause")
        failures = values(watching, "headway_rank_failures_total", "pod_index", "rank")
        told = [one for one in alerting.episodes(watching.history()) if one.firing is not None]
        lower = stepped_back(watching)

    assert layers == {("in_process",): 1, ("launcher",): 1, ("orchestrator",): 1}
    assert incidents == {("recovered",): 3}
    once = {
        ("0", "in_process", "app_exception"): 1,
        ("1", "launcher", "process_killed"): 1,
        ("2", "orchestrator", "node_lost"): 1,
    }
    assert causes == once
    assert restart_causes == once
    assert failures == {("0", "1"): 1, ("1", "3"): 1}
    assert [one.alert for one in told] == ["HeadwayRecovered"] * 3
    assert lower == []
