"""A state folder in trouble, and two sidecars at once: real processes."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from journal_folder import RUN, finish, trainer, wait_ready
from sidecar_process import sidecar

from headway_exporter.state_files import LEDGER, RECORDS, pod_folder, read_ledger, read_records

if TYPE_CHECKING:
    from pathlib import Path

    from sidecar_process import Sidecar

pytestmark = pytest.mark.slow

STATE = (("collector", "state"),)
NO_LIMIT = resource.RLIM_INFINITY


def until_success(exporter: Sidecar, wanted: float) -> None:
    """Waits until the metric says that the folder works, or not."""
    deadline = time.monotonic() + 20
    while exporter.value("headway_collector_success", collector="state") != wanted:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def until_step(exporter: Sidecar, wanted: int) -> None:
    """Waits for a gauge, which goes live when the folder fails."""
    deadline = time.monotonic() + 20
    while exporter.value("headway_step") != wanted:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def adds_up(exporter: Sidecar) -> bool:
    samples = exporter.samples()
    booked = sum(value for (name, _), value in samples.items() if name == "headway_rank_seconds_total")
    elapsed = samples["headway_rank_elapsed_seconds_total", ()]
    return booked + samples["headway_pending_rank_seconds", ()] == pytest.approx(elapsed, abs=1e-3)


def test_a_full_disk_stops_the_counters_and_nothing_else(tmp_path: Path) -> None:
    """What could not be written is not promised; what is going on now is shown all the same, and all is well once there is room."""
    acts = ("enter=a", "load=0", "steps=1-5", "meet", "steps=6-9", "ready", "wait")
    process = trainer(tmp_path / "pod", 0, *acts, ranks=1)
    with sidecar(tmp_path / "pod", "--state-dir", str(tmp_path / "state")) as exporter:
        wait_ready(process)
        exporter.until(lambda status: status["step"] == 5, "the first steps")
        resource.prlimit(exporter.process.pid, resource.RLIMIT_FSIZE, (1_000, NO_LIMIT))
        until_success(exporter, 0)
        stood = exporter.counters(), exporter.value("headway_source_last_update_timestamp_seconds", source="state")
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        wait_ready(process)
        until_step(exporter, 9)
        assert exporter.status()["step"] == 5
        assert adds_up(exporter)
        now = exporter.counters(), exporter.value("headway_source_last_update_timestamp_seconds", source="state")
        assert now == stood
        assert exporter.get("/healthz")[0] == 200
        resource.prlimit(exporter.process.pid, resource.RLIMIT_FSIZE, (NO_LIMIT, NO_LIMIT))
        exporter.until(lambda status: status["step"] == 9, "room again")
        until_success(exporter, 1)
        assert exporter.value("headway_steps_total", kind="productive") == 9
        process.kill()
        process.communicate()
        errors = exporter.stop()[1].splitlines()
    assert [line.partition("WARNING ")[2] for line in errors] == [
        f"state folder: cannot write {tmp_path}/state/{RUN}/0: File too large; the counters stand still until that works",
        f"state folder: {tmp_path}/state/{RUN}/0 is written again",
    ]


def test_a_small_file_system_that_is_full(tmp_path: Path) -> None:
    """The same with a real one, where this machine lets us mount it."""
    state = tmp_path / "state"
    state.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(state)]
    if (
        os.getuid() != 0
        or shutil.which("mount") is None
        or subprocess.run(mount, capture_output=True, check=False).returncode
    ):
        pytest.skip("mounting a tmpfs needs root and CAP_SYS_ADMIN")
    try:
        (state / "ballast").write_bytes(bytes(60_000))
        finish(trainer(tmp_path / "pod", 0, "enter=a", "load=0", "steps=1-5", "finish=5", ranks=1))
        with sidecar(tmp_path / "pod", "--state-dir", str(state)) as exporter:
            until_success(exporter, 0)
            assert exporter.value("headway_step") == 5
            assert exporter.value("headway_steps_total", kind="productive") == 0
            (state / "ballast").unlink()
            exporter.until(lambda status: status["finished"], "room")
            assert exporter.value("headway_steps_total", kind="productive") == 5
    finally:
        subprocess.run(["umount", str(state)], check=True)


FULL = """
import resource, signal, sys
from pathlib import Path
from headway_exporter.state_files import append_record
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = Path(sys.argv[1])
append_record(path, {"v": 1, "id": "a"})
size = path.stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, resource.RLIM_INFINITY))
for _ in range(3):
    try:
        append_record(path, {"v": 1, "id": "b" * 1000})
    except OSError:
        assert path.stat().st_size == size
    else:
        sys.exit("it was written")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
append_record(path, {"v": 1, "id": "c"})
"""


def test_no_parts_of_records_are_left_by_a_full_disk(tmp_path: Path) -> None:
    """What did not fit is tried again every few seconds: parts of it must not pile up, nor be what every report warns of ever after."""
    path = tmp_path / RECORDS
    subprocess.run([sys.executable, "-c", FULL, str(path)], check=True)
    assert [record["id"] for record in read_records(path) if isinstance(record, dict)] == ["a", "c"]
    assert len(path.read_bytes().splitlines()) == 2


HANGING_FSYNC = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>
int fsync(int fd) {
    while (access(getenv("HANG_WHILE"), F_OK) == 0) usleep(20000);
    return ((int (*)(int)) dlsym(RTLD_NEXT, "fsync"))(fd);
}
"""
IMPATIENT = "import headway_exporter.store as s; s.HUNG_SECONDS = s.LAST_SECONDS = 1; from headway_exporter.cli import main; exit(main())"


def test_a_folder_that_hangs_holds_up_nobody(tmp_path: Path) -> None:
    """A network file system without its server: neither the fold nor a scrape nor the end waits for it."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("a library that makes fsync hang needs a C compiler (cc)")
    (tmp_path / "hang.c").write_text(HANGING_FSYNC)
    library, hang = tmp_path / "hang.so", tmp_path / "hang"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(tmp_path / "hang.c"), "-ldl"], check=True)
    options = ("--state-dir", str(tmp_path / "state"))
    environ = {"LD_PRELOAD": str(library), "HANG_WHILE": str(hang)}
    process = trainer(
        tmp_path / "pod", 0, "enter=a", "load=0", "steps=1-5", "meet", "steps=6-9", "ready", "wait", ranks=1
    )
    with sidecar(tmp_path / "pod", *options, program=("-c", IMPATIENT), **environ) as exporter:
        wait_ready(process)
        exporter.until(lambda status: status["step"] == 5, "the first steps")
        hang.touch()
        until_success(exporter, 0)
        stood = exporter.counters()
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        wait_ready(process)
        until_step(exporter, 9)
        assert exporter.counters() == stood
        hang.unlink()
        exporter.until(lambda status: status["step"] == 9, "the server is back")
        until_success(exporter, 1)
        hang.touch()
        process.kill()
        process.communicate()
        code, errors = exporter.stop()
    assert code == 0
    assert errors.splitlines()[0].endswith(f"{RUN}/0 does not answer; the counters stand still until it does")


def test_a_folder_that_cannot_be_read_is_done_without(tmp_path: Path) -> None:
    """A wrong mount costs the memory, never the metrics; somebody is told at once and by the metrics ever after."""
    (tmp_path / "state").write_text("a file where the folder should be")
    finish(trainer(tmp_path / "pod", 0, "enter=a", "load=0", "steps=1-5", "finish=5", ranks=1))
    with sidecar(tmp_path / "pod", "--state-dir", str(tmp_path / "state")) as exporter:
        exporter.until(lambda status: status["finished"], "the end")
        assert exporter.value("headway_steps_total", kind="productive") == 5
        assert exporter.value("headway_collector_success", collector="state") == 0
        code, errors = exporter.stop()
    assert (code, errors.count("\n")) == (0, 1)
    assert f"cannot read {tmp_path}/state/{RUN}/0/ledger.json: Not a directory; going on without it" in errors


def test_a_link_in_place_of_the_ledger_is_not_followed(tmp_path: Path) -> None:
    """Others may write to the shared folder: what they point to is neither read nor written."""
    folder = pod_folder(tmp_path / "state", RUN, "0")
    folder.mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    (folder / LEDGER).symlink_to(tmp_path / "secret")
    with sidecar(tmp_path / "pod", "--state-dir", str(tmp_path / "state")) as exporter:
        assert exporter.value("headway_collector_success", collector="state") == 0
        exporter.stop()
    assert (folder / LEDGER).is_symlink()
    assert (tmp_path / "secret").read_text() == "secret"


def test_the_newer_of_two_sidecars_takes_over(tmp_path: Path) -> None:
    """A pod's old sidecar may live on unseen: it must not write its own truth over the new one's."""
    options = ("--state-dir", str(tmp_path / "state"))
    process = trainer(
        tmp_path / "pod", 0, "enter=a", "load=0", "steps=1-5", "meet", "steps=6-9", "ready", "wait", ranks=1
    )
    with sidecar(tmp_path / "pod", *options) as old:
        wait_ready(process)
        old.until(lambda status: status["step"] == 5, "the first steps")
        with sidecar(tmp_path / "pod", *options) as new:
            until_success(old, 0)
            assert new.value("headway_collector_success", collector="state") == 1
            shown = old.counters()
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
            new.until(lambda status: status["step"] == 9, "the last steps")
            assert old.counters() == shown
            code, errors = old.stop()
            ledger = read_ledger(pod_folder(tmp_path / "state", RUN, "0") / LEDGER)
            assert ledger.body["summary"]["step"] == 9
        process.kill()
        process.communicate()
    assert (code, errors.count("has taken over")) == (0, 1)
