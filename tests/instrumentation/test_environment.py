from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.environment import Identity, default_directory, run_name_problem

TORCHELASTIC = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_MAX_RESTARTS": "5",
    "TORCHELASTIC_RUN_ID": "job-7",
    "HOSTNAME": "worker-b",
}
SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_NODEID": "3",
    "SLURM_NNODES": "4",
    "SLURM_PROCID": "13",
    "SLURM_NTASKS": "16",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS_PER_NODE": "4",
    "SLURM_RESTART_COUNT": "2",
    "SLURMD_NODENAME": "gpu-17",
    "HOSTNAME": "gpu-17.cluster",
}
KUBERNETES = {
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "JOB_COMPLETION_INDEX": "2",
    "HOSTNAME": "llama-3-2",
    "NODE_NAME": "node-a",
}
HEADWAY = {
    "HEADWAY_DIR": "/journal",
    "HEADWAY_STATE_DIR": "/state",
    "HEADWAY_RUN": "my-run",
    "HEADWAY_POD_INDEX": "9",
    "HEADWAY_PODS": "10",
    "HEADWAY_SLOT": "6",
    "HEADWAY_ATTEMPT": "3",
    "HEADWAY_NODE": "rack-1",
}
HOST = {"HOSTNAME": "host-a"}

CASES: list[tuple[str, dict[str, str], dict[str, Any]]] = [
    (
        "nothing at all",
        HOST,
        {
            "run": "default",
            "pod_index": "host-a",
            "slot": 0,
            "rank": 0,
            "world_size": 1,
            "local_world_size": None,
            "pods": None,
            "attempt": 0,
            "cycle": 0,
            "node": "host-a",
            "restart_budget": None,
            "state_directory": None,
            "directory": default_directory(),
            "shared_place": True,
        },
    ),
    (
        "torchelastic",
        TORCHELASTIC,
        {
            "run": "job-7",
            "pod_index": "1",
            "slot": 1,
            "rank": 5,
            "world_size": 8,
            "local_world_size": 4,
            "pods": 2,
            "cycle": 2,
            "restart_budget": 5,
            "node": "worker-b",
        },
    ),
    ("torchrun's default id", {**TORCHELASTIC, "TORCHELASTIC_RUN_ID": "none"}, {"run": "default"}),
    (
        "Slurm, a task for each rank",
        SLURM,
        {
            "run": "4711",
            "pod_index": "3",
            "pods": 4,
            "slot": 1,
            "rank": 13,
            "world_size": 16,
            "local_world_size": 4,
            "attempt": 2,
            "node": "gpu-17",
        },
    ),
    (
        "torchelastic inside Slurm: ranks are the launcher's, the place is Slurm's",
        SLURM | TORCHELASTIC,
        {"run": "4711", "pod_index": "3", "pods": 4, "slot": 1, "rank": 5, "world_size": 8, "local_world_size": 4},
    ),
    (
        "a rank without a world size is not mixed with Slurm's",
        SLURM | {"RANK": "1"},
        {"rank": 13, "world_size": 16},
    ),
    ("an indexed Kubernetes job", KUBERNETES, {"run": "llama-3", "pod_index": "2", "node": "node-a"}),
    (
        "an indexed job whose variable was not passed on",
        {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "llama-11"},
        {"run": "llama", "pod_index": "11", "node": "llama-11"},
    ),
    ("a numbered host outside Kubernetes is no pod", {"HOSTNAME": "gpu-17"}, {"run": "default", "pod_index": "gpu-17"}),
    (
        "Headway's own variables win",
        TORCHELASTIC | SLURM | KUBERNETES | HEADWAY,
        {
            "directory": Path("/journal"),
            "shared_place": False,
            "state_directory": Path("/state"),
            "run": "my-run",
            "pod_index": "9",
            "pods": 10,
            "slot": 6,
            "attempt": 3,
            "node": "rack-1",
            "folder": Path("/journal/my-run"),
        },
    ),
    ("empty is the same as not set", {**HOST, "HEADWAY_RUN": " ", "HEADWAY_POD_INDEX": ""}, {"run": "default"}),
]


@pytest.mark.parametrize(("environ", "wanted"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_identity_from_variables(environ: dict[str, str], wanted: dict[str, Any]) -> None:
    """Each launcher and scheduler, alone and together, gives the identity that its documentation promises."""
    identity = Identity.from_env(environ)
    assert {name: getattr(identity, name) for name in wanted} == wanted
    assert identity.warnings == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LOCAL_RANK", "x"),
        ("LOCAL_RANK", "-1"),
        ("LOCAL_RANK", "5000"),
        ("HEADWAY_PODS", "0"),
        ("HEADWAY_ATTEMPT", "1.5"),
        ("TORCHELASTIC_RESTART_COUNT", "9" * 5_000),
        ("JOB_COMPLETION_INDEX", "٣"),
        ("RANK", "1e3"),
        ("HEADWAY_SAMPLE_SECONDS", "often"),
        ("HEADWAY_SAMPLE_SECONDS", "-1"),
        ("HEADWAY_SAMPLE_SECONDS", "nan"),
    ],
)
def test_a_bad_number_is_ignored_with_one_warning(name: str, value: str) -> None:
    """A misspelt variable never stops training; a person is told which one, and the next source is used."""
    identity = Identity.from_env({**HOST, name: value})
    assert len(identity.warnings) == 1
    assert identity.warnings[0].startswith(f"{name}=")
    assert len(identity.warnings[0]) < 250
    assert (identity.slot, identity.rank, identity.world_size, identity.pods) == (0, 0, 1, None)
    assert identity.sample_seconds is None


def test_the_next_variable_stands_in_for_a_bad_one() -> None:
    """Precedence goes on past a value that is no number."""
    assert Identity.from_env({**HOST, "HEADWAY_SLOT": "first", "LOCAL_RANK": "3"}).slot == 3


@pytest.mark.parametrize("run", ["..", ".", "a/b", "", "-x", ".hidden", "a b", "run\n", "ü", "x" * 129])
def test_a_run_name_that_is_no_file_name_is_refused(run: str) -> None:
    """A run's name becomes a folder: nothing that leaves it or cannot be typed."""
    problem = run_name_problem(run)
    assert problem is not None
    assert "HEADWAY_RUN" in problem


def test_usual_run_names_are_accepted() -> None:
    """What schedulers give is fine."""
    for run in ("default", "4711", "job_7.b", "A-1", "x" * 128):
        assert run_name_problem(run) is None


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an argument the real variables and the real host name count."""
    monkeypatch.setenv("HEADWAY_RUN", "from-env")
    monkeypatch.delenv("HOSTNAME", raising=False)
    identity = Identity.from_env()
    assert identity.run == "from-env"
    assert socket.gethostname() in (identity.node, identity.pod_index) or identity.node


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(
        st.sampled_from([*TORCHELASTIC, *SLURM, *KUBERNETES, *HEADWAY]),
        st.text(st.characters(exclude_characters="\0"), max_size=30),
    )
)
def test_no_value_of_any_variable_raises(environ: dict[str, str]) -> None:
    """Whatever is in the environment, there is an identity."""
    identity = Identity.from_env(environ)
    assert identity.slot >= 0
    assert identity.world_size >= 1


def test_the_default_directory_is_the_users_own() -> None:
    """Two users of one machine do not share a folder."""
    assert default_directory().name == f"headway-{os.getuid()}"


def test_a_relative_directory_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainers change their working directory; the journal must not move, or stop, with it."""
    monkeypatch.chdir(tmp_path)
    directory = Identity.from_env({"HEADWAY_DIR": "journal", "HEADWAY_RUN": "r"}).directory
    monkeypatch.chdir("/")
    assert directory == tmp_path / "journal"
