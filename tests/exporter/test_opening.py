"""The first moments of a real sidecar: its memory is slow to come, or it is told to end before it has begun."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from journal_folder import RUN, finish, trainer
from sidecar_process import Sidecar, sidecar

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HANGING_OPEN = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static int real(const char *name, const char *path, int flags, mode_t mode) {
    if (strstr(path, "ledger.json")) while (access(getenv("HANG_WHILE"), F_OK) == 0) usleep(20000);
    return ((int (*)(const char *, int, ...)) dlsym(RTLD_NEXT, name))(path, flags, mode);
}
#define WRAP(name) int name(const char *path, int flags, ...) { \
    va_list more; va_start(more, flags); mode_t mode = va_arg(more, int); va_end(more); \
    return real(#name, path, flags, mode); }
WRAP(open)
WRAP(open64)
"""


@pytest.fixture
def hanging(tmp_path: Path) -> dict[str, str]:
    """Environment in which nobody can open a ledger as long as there is a file named `hang`."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("a library that makes open hang needs a C compiler (cc)")
    (tmp_path / "hang.c").write_text(HANGING_OPEN)
    library = tmp_path / "hang.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(tmp_path / "hang.c"), "-ldl"], check=True)
    return {"LD_PRELOAD": str(library), "HANG_WHILE": str(tmp_path / "hang")}


@contextlib.contextmanager
def opening(pod: Path, state: Path, environ: dict[str, str]) -> Iterator[Sidecar]:
    """A sidecar that answers, whatever it has to say yet."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    command = [sys.executable, "-m", "headway_exporter", "--dir", str(pod), "--listen", f"127.0.0.1:{port}"]
    base = {"HEADWAY_RUN": RUN, "HEADWAY_POD_INDEX": "0", "HEADWAY_LINGER_SECONDS": "0"}
    process = subprocess.Popen(
        [*command, "--state-dir", str(state)],
        env=os.environ | base | environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not listens(port):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield Sidecar(process, ("127.0.0.1", port))
    finally:
        process.kill()
        process.communicate(timeout=20)


def listens(port: int) -> bool:
    """Whether somebody takes connections there."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def remembered(tmp_path: Path) -> tuple[Path, Path]:
    """Folders of a pod and of its state, in which a sidecar remembers five steps of a run that is over."""
    pod, state = tmp_path / "pod", tmp_path / "state"
    with sidecar(pod, "--state-dir", str(state)) as exporter:
        finish(trainer(pod, 0, "enter=a", "load=0", "steps=1-5", "finish=5", ranks=1))
        assert exporter.stop() == (0, "")
    return pod, state


def test_who_scrapes_early_gets_an_answer_and_no_counter(tmp_path: Path, hanging: dict[str, str]) -> None:
    """A counter from before its memory was read would step; a door that stays shut looks like death."""
    pod, state = remembered(tmp_path)
    (tmp_path / "hang").touch()
    with opening(pod, state, hanging) as exporter:
        samples = exporter.samples()
        assert samples["headway_collector_success", (("collector", "state"),)] == 0
        assert {name for name, _ in samples if name.endswith(("_total", "_bucket", "_count", "_sum"))} == set()
        code, _, text = exporter.get("/healthz")
        assert (code, "state folder is being read" in text) == (200, True)
        assert exporter.get("/status.json")[0] == 503
        (tmp_path / "hang").unlink()
        deadline = time.monotonic() + 60
        while exporter.value("headway_steps_total", kind="productive") is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert exporter.value("headway_steps_total", kind="productive") == 5
        assert exporter.get("/healthz")[::2] == (200, "ok\n")
        assert exporter.status()["finished"]
        assert exporter.stop()[0] == 0


def test_nobody_waits_for_a_hung_folder_to_end(tmp_path: Path, hanging: dict[str, str]) -> None:
    """Nothing is known that could be lost, so an orderly end needs no answer of the folder."""
    pod, state = remembered(tmp_path)
    (tmp_path / "hang").touch()
    with opening(pod, state, hanging) as exporter:
        assert exporter.get("/healthz")[0] == 200
        assert exporter.stop()[0] == 0


@pytest.mark.parametrize("program", ["headway_exporter", "headway"])
def test_told_to_end_while_it_imports(tmp_path: Path, program: str) -> None:
    """A pod may be given up at once: what ends by an unhandled SIGTERM looks like a failure to whoever counts them."""
    command = [sys.executable, "-X", "importtime", "-m", program, *(["exporter"] if program == "headway" else [])]
    options = ["--dir", str(tmp_path), "--listen", "127.0.0.1:0", "--linger-seconds", "0"]
    with subprocess.Popen(
        [*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:  # a line for each module, once it is imported
            if "prometheus_client" in line:
                break
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()
        assert process.wait(20) == 0, rest
    assert "headway_exporter.sidecar" in rest  # it was told in the middle of it
