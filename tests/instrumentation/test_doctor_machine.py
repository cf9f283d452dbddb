"""`headway doctor` on clocks, drivers and ports that are really there, silent, wrong or hung."""

from __future__ import annotations

import ctypes
import shutil
import socket
import subprocess
from http import HTTPStatus
from typing import TYPE_CHECKING

import pytest
from doctored import PYTHON, Found, doctor, needs_nvrx
from fake_nvml import FakeNvml
from journal_folder import RUN, finish, trainer, wait_ready
from sidecar_process import sidecar

from headway.doctor.checks_machine import clock, nvml
from headway.doctor.gather import Answer
from headway.doctor.probes_machine import clocks
from headway_exporter.routes import text
from headway_exporter.server import Server

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

LOOK_ELSEWHERE = {"clock", "no-gpu", "state-kind", "advice"}
"""What the machine that the tests run on decides, and a run too short for advice."""


def test_a_trainer_and_a_sidecar_that_are_fine(tmp_path: Path) -> None:
    """Exit code 0, nothing failed, and no warning but for what the machine itself lacks; the sidecar's scrape was read."""
    for name in ("journals", "state"):
        (tmp_path / name).mkdir(mode=0o755)
    folders = ("--state-dir", str(tmp_path / "state"))
    with sidecar(tmp_path / "journals", *folders) as exporter:
        living = trainer(tmp_path / "journals", 0, "enter=a", "steps=1-5", "ready", "wait", ranks=1)
        wait_ready(living)
        exporter.until(lambda found: found["step"] == 5, "the steps")
        listen = f"127.0.0.1:{exporter.address[1]}"
        found = doctor("--dir", str(tmp_path / "journals"), *folders, "--run", RUN, "--listen", listen)
        other = doctor("--dir", str(tmp_path / "journals"), "--run", "another", "--listen", listen)
        living.kill()
        finish(living)
    assert (found.code, found.status("fail")) == (0, set())
    assert found.status("warn") <= LOOK_ELSEWHERE
    assert found.status("ok") >= {
        "environment",
        "directory",
        "life-lock",
        "journals",
        "state",
        "port",
        "sidecar",
        "extra",
    }
    assert (other.code, other.status("fail")) == (1, {"sidecar"})
    assert "'testrun', and this is 'another'" in other.one("sidecar")[1]


def test_the_run_s_own_silences(tmp_path: Path) -> None:
    """What `headway advise` would change is told, in its words and with the command that says why."""
    state = tmp_path / "state"
    with sidecar(tmp_path / "journals", "--state-dir", str(state)) as exporter:
        acts = ("set=heartbeat_rank_seconds:20", "enter=a", "steps=1-5", "gap=30", "steps=6-9", "finish=9")
        finish(trainer(tmp_path / "journals", 0, *acts, ranks=1))
        exporter.until(lambda found: found["finished"], "the end")
        exporter.stop()
    found = doctor("--dir", str(tmp_path / "journals"), "--state-dir", str(state), "--run", RUN)
    status, what, do = found.one("advice")
    assert (status, do) == ("warn", f"headway advise {state / RUN}")
    assert "Heartbeat time-out: 20 s in force" in what


def test_a_port_that_another_program_has(tmp_path: Path) -> None:
    """One that answers otherwise and one that is silent are told apart from a sidecar and from each other."""
    web = Server(("127.0.0.1", 0), {"/metrics": lambda _: text("node_load1 0.5\n")})
    try:
        status, what, do = _on(tmp_path, web.server_address[1]).one("port")
        assert (status, "another program listens" in what, "HEADWAY_LISTEN" in do) == ("fail", True, True)
    finally:
        web.stop()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        found = _on(tmp_path, silent.getsockname()[1])
        assert found.code == 1
        assert found.one("port")[1].endswith("another program listens and does not answer")
        assert found.one("sidecar")[0] == "skip"


def test_a_sidecar_that_is_not_as_it_should_be(tmp_path: Path) -> None:
    """One that reads its memory, one that wants a password, and one whose scrape is spoiled on its way."""
    answers = [
        (text("later", status=HTTPStatus.SERVICE_UNAVAILABLE), "warn"),
        (text("no", status=HTTPStatus.UNAUTHORIZED), "skip"),
        (text('headway_step{run="testrun"} 5\n<html> no metrics\n'), "fail"),
        (text('headway_step{run="test\\"run"} 5\n'), "fail"),
        (text('headway_step{run="testrun"} 5\n'), "ok"),
    ]
    for answer, status in answers:
        server = Server(("127.0.0.1", 0), {"/metrics": lambda _, answer=answer: answer})  # type: ignore[misc]
        try:
            assert _on(tmp_path, server.server_address[1]).one("sidecar")[0] == status
        finally:
            server.stop()


def test_a_port_that_is_free(tmp_path: Path) -> None:
    """To the sidecar that is good, to the trainer's container it means that no sidecar is beside it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = taken.getsockname()[1]
    assert _on(tmp_path, free).one("port")[0] == "ok"
    assert _on(tmp_path, free, "--role", "trainer").one("port")[0] == "warn"
    status, what, _ = doctor("--dir", str(tmp_path), "--listen", "192.0.2.1:9838").one("port")
    assert (status, "cannot be listened on" in what) == ("fail", True)


def _on(folder: Path, port: int, *options: str) -> Found:
    return doctor("--dir", str(folder), "--run", RUN, "--listen", f"127.0.0.1:{port}", *options)


@needs_nvrx
def test_a_driver_that_answers_and_one_that_does_not(tmp_path: Path) -> None:
    """GPUs are counted; a driver without GPUs, one that is not loaded and one that hangs are told apart."""
    gpus = FakeNvml(tmp_path / "gpus")
    journals = ("--dir", str(tmp_path))
    found = doctor(*journals, **gpus.environ)
    assert found.one("nvml")[:2] == ("ok", "GPUs that answer: 2")
    assert found.one("nccl")[0] == "warn"
    assert doctor(*journals, TORCH_NCCL_RETHROW_CUDA_ERRORS="0", **gpus.environ).one("nccl")[0] == "ok"
    for answer, status, words in (
        ({"count": 0}, "warn", "no GPU"),
        ({"init": "!9"}, "fail", "not loaded"),
        ({"init": "!18"}, "fail", "different versions"),
        ({"init": "!999"}, "fail", "NVML code 999"),
        ({"hang": 1}, "fail", "hangs"),
    ):
        gpus.machine = {"count": 2, **answer}
        gpus.play()
        found = doctor(*journals, **gpus.environ)
        assert found.one("nvml")[0] == status
        assert words in found.one("nvml")[1]
    assert doctor(*journals, HEADWAY_GPUS="off", **gpus.environ).one("nvml")[:2] == ("skip", "HEADWAY_GPUS is off")


def test_a_machine_without_a_driver() -> None:
    """That is no fault, and what to do where there should be GPUs is said."""
    found = nvml(Answer({"library": False}))
    assert (found.status, "NVIDIA_DRIVER_CAPABILITIES" in found.do) == ("skip", True)


@pytest.mark.parametrize(
    ("shifted", "kept", "status"),
    [(False, True, "ok"), (False, False, "warn"), (True, True, "warn"), (None, None, "skip"), (None, True, "ok")],
)
def test_clocks(shifted: bool | None, kept: bool | None, status: str) -> None:
    """A time namespace and a clock that nobody keeps are warned of."""
    assert clock(Answer({"shifted": shifted, "kept": kept})).status == status


class Timex(ctypes.Structure):
    """The beginning of the kernel's `struct timex` (adjtimex(2)), and room for the rest."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        *((name, ctypes.c_long) for name in ("offset", "freq", "maxerror", "esterror")),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 400),
    )


def test_the_kernel_is_asked() -> None:
    """Whether the clock is kept is what the kernel says; and this process has the machine's own CLOCK_MONOTONIC."""
    told = Timex()
    assert ctypes.CDLL(None).adjtimex(ctypes.byref(told)) >= 0
    assert clocks() == {"shifted": False, "kept": not told.status & 0x40}


def test_a_time_namespace(tmp_path: Path) -> None:
    """A container with a clock of its own is told, by a process in one."""
    command = ("unshare", "--time", "--monotonic", "1000", "--fork")
    if (
        shutil.which("unshare") is None
        or subprocess.run([*command, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("needs unshare (util-linux) and the right to make a time namespace (CAP_SYS_ADMIN)")
    status, what, _ = doctor("--dir", str(tmp_path), command=(*command, *PYTHON)).one("clock")
    assert (status, "time namespace" in what) == ("warn", True)
