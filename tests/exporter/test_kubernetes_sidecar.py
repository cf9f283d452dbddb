"""A real sidecar in a pod: what the Kubernetes API tells is in its metrics, its memory and its verdicts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from journal_folder import RUN, finish, launcher, trainer, wait_ready
from kubernetes_api import POD, Api, Reply, recorded, service_account, stamp
from sidecar_process import IMPATIENT, Sidecar, sidecar

from headway_exporter.state_files import LEDGER, pod_folder, read_ledger

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("kubernetes.client", reason="the client is not installed: pip install 'headway[kubernetes]'")
pytestmark = pytest.mark.slow
ACTS = ("enter=a", "load=0", "steps=1-6", "commit=5", "ready", "wait")


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    """The API, with the pod that asks."""
    with Api(service_account(tmp_path / "account"), [recorded("running")]) as made:
        yield made


def ended(which: str, wall: float, /, **metadata: Any) -> dict[str, Any]:
    """A recorded pod whose container ended then."""
    pod = recorded(which, **metadata)
    pod["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"] = stamp(wall)
    return pod


def connected(exporter: Sidecar) -> None:
    """Waits for its first answer from the API."""
    deadline = time.monotonic() + 60
    while exporter.value("headway_collector_success", collector="kubernetes") != 1.0:
        assert time.monotonic() < deadline, exporter.families().keys()
        time.sleep(0.1)


def die(directory: Path) -> float:
    """Two ranks train and are killed with all else in their container; returns when."""
    processes = [trainer(directory, slot, *ACTS) for slot in (0, 1)]
    for process in processes:
        wait_ready(process)
    for process in processes:
        process.kill()
    finish(*processes)
    return time.time()


def test_the_last_word_of_a_pod(api: Api, tmp_path: Path) -> None:
    """`restartPolicy: Never`: the pod ends with its trainer, and within seconds its sidecar must have asked why, and written it down."""
    (tmp_path / "pod" / RUN).mkdir(parents=True)
    with sidecar(tmp_path / "pod", "--state-dir", str(tmp_path / "state"), **api.environ) as exporter:
        connected(exporter)
        assert exporter.value("headway_container_restarts", container="trainer") == 0
        exporter.until(lambda status: status["run"], "it runs")
        at = die(tmp_path / "pod")
        exporter.until(lambda status: status["recoveries"], "the deaths")
        api.pods[:] = [ended("oom_killed", at, name=POD, uid="u-now")]
        code, errors = exporter.stop()
    assert (code, errors) == (0, "")
    body = read_ledger(pod_folder(tmp_path / "state", RUN, "0") / LEDGER).body
    assert [one["cause"] for one in body["summary"]["recoveries"]] == ["host_oom"]


def test_what_ended_the_pod_before(api: Api, tmp_path: Path) -> None:
    """The node's kubelet evicted pod and sidecar at once; the pod that the job makes in its place says why, and counts it once."""
    state, folders = tmp_path / "state", [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        (folder / RUN).mkdir(parents=True)
    with sidecar(folders[0], "--state-dir", str(state), program=IMPATIENT, **api.environ) as exporter:
        connected(exporter)
        launcher(folders[0])("launcher_started", pid=1)
        at = die(folders[0])
        exporter.until(lambda status: status["recoveries"], "the deaths")
        exporter.kill()
    evicted = ended("evicted_for_memory", at, uid="u-now", name=POD)
    evicted["status"]["conditions"][-1]["lastTransitionTime"] = stamp(at)
    api.pods[:] = [evicted, recorded("running", uid="u-next", name="llama-3-next")]
    with sidecar(
        folders[1], "--state-dir", str(state), program=IMPATIENT, **api.environ | {"POD_NAME": "llama-3-next"}
    ) as exporter:
        connected(exporter)
        launcher(folders[1], 6)("launcher_started", pid=1)
        finish(*(trainer(folders[1], slot, "enter=b", "load=5", "steps=6-9", "finish=9", attempt=1) for slot in (0, 1)))
        exporter.until(lambda status: status["finished"], "the end")
        (found,) = exporter.status()["recoveries"]
        assert (found["layer"], found["cause"]) == ("orchestrator", "host_oom")
        samples = exporter.samples()
    shown = {
        dict(labels).get("reason"): value
        for (name, labels), value in samples.items()
        if name == "headway_pod_disruptions_total"
    }
    assert shown.pop("evicted") == 1
    assert set(shown.values()) == {0.0}
    assert samples["headway_restart_causes_total", (("cause", "host_oom"), ("layer", "orchestrator"))] == 1


def test_a_sidecar_that_may_not_ask(api: Api, tmp_path: Path) -> None:
    """No right to get pods: everything else is served, one line says what is missing, and `--kubernetes off` is silent."""
    api.broken["get"] = 403
    with sidecar(tmp_path, **api.environ) as exporter:
        deadline = time.monotonic() + 60
        while not api.asked and time.monotonic() < deadline:
            time.sleep(0.1)
        assert api.asked
        assert exporter.value("headway_incident_open") == 0
        assert exporter.value("headway_collector_success", collector="kubernetes") is None
        _, errors = exporter.stop()
    (line,) = errors.splitlines()
    assert "may not get pods in namespace training (HTTP 403)" in line
    asked = len(api.asked)
    with sidecar(tmp_path, "--kubernetes", "off", **api.environ) as exporter:
        assert exporter.stop() == (0, "")
    assert len(api.asked) == asked


def test_an_api_in_trouble_costs_its_own_metrics_only(api: Api, tmp_path: Path) -> None:
    """Errors, garbage, and an answer that never ends: all else is served, and the log has a line for each change and no more."""
    with sidecar(tmp_path, program=IMPATIENT, **api.environ) as exporter:
        connected(exporter)
        for broken in (500, b"{", Reply(headers={"X-Long": "x" * 100_000}, seconds=0.01)):
            asked = len(api.asked)
            api.broken["get"] = broken
            while len(api.asked) < asked + (2 if isinstance(broken, Reply) else 4):
                assert exporter.value("headway_incident_open") == 0
                time.sleep(0.1)
            assert exporter.value("headway_collector_success", collector="kubernetes") == 0
            assert exporter.value("headway_container_restarts", container="trainer") is None
            assert exporter.value("headway_pod_disruptions_total", reason="other") == 0
        api.broken.clear()
        connected(exporter)
        _, errors = exporter.stop()
    words = ("HTTP 500", "no JSON", "no whole answer within", "can be read again")
    assert [next((word for word in words if word in line), line) for line in errors.splitlines()] == list(words)


def test_a_bad_option_is_named(tmp_path: Path) -> None:
    """The option can come from the environment too, where nobody sees a typing error."""
    for variable in ({}, {"HEADWAY_KUBERNETES": "yes"}):
        options = [] if variable else ["--kubernetes", "yes"]
        with pytest.raises(AssertionError, match="neither auto nor off"), sidecar(tmp_path, *options, **variable):
            pass
