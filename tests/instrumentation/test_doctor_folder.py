"""`headway doctor` on journal and state folders that are really broken."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import wrong_clock
from doctored import doctor, needs_nvrx
from journal_folder import RUN, finish, launcher, trainer, wait_ready

import headway
from headway.doctor.checks_folder import Place, directory, state
from headway.doctor.gather import Answer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

pytestmark = pytest.mark.slow

SLOW = Path(__file__).parents[1] / "exporter" / "slow_statvfs.c"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount file systems and to be other users")
AS_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


@contextlib.contextmanager
def mounted(place: Path, options: str) -> Iterator[Path]:
    """A tmpfs, for as long as it is needed."""
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("needs the right to mount a tmpfs (CAP_SYS_ADMIN)")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


def test_a_folder_that_is_fine_is_left_as_it_was(tmp_path: Path) -> None:
    """All that is tried works, and nothing of it stays."""
    for name in ("journals", "state"):
        (tmp_path / name).mkdir(mode=0o755)
    found = doctor("--dir", str(tmp_path / "journals"), "--state-dir", str(tmp_path / "state"))
    assert found.status("ok") >= {"directory", "directory-room", "directory-files", "life-lock", "state", "state-clock"}
    assert [*tmp_path.glob("*/*"), *tmp_path.glob("*/.*")] == []


def test_a_folder_that_is_missing_is_tried_where_it_would_be_made(tmp_path: Path) -> None:
    """The trainer makes it, so that is no fault; a sidecar that does not see it has no volume mounted. Neither is it made here."""
    there = str(tmp_path / "not" / "yet")
    assert doctor("--dir", there).one("directory")[0] == "ok"
    status, what, do = doctor("--dir", there, "--role", "sidecar").one("directory")
    assert (status, what, "mount" in do) == ("warn", f"{there} is not there", True)
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_folders_place(tmp_path: Path) -> None:
    """It is named; both folders are needed as folders."""
    (tmp_path / "file").touch()
    found = doctor("--dir", str(tmp_path / "file"), "--state-dir", str(tmp_path / "file"))
    assert found.code == 1
    assert found.status("fail") == {"directory", "state"}


@needs_root
def test_a_read_only_folder(tmp_path: Path) -> None:
    """For the trainer that is a failure; for the sidecar, which only reads there, it is as it should be."""
    with mounted(tmp_path / "mount", "ro,size=64m") as place:
        found = doctor("--dir", str(place), "--state-dir", str(place))
        assert found.code == 1
        for check in ("directory", "state"):
            assert "Read-only file system" in found.one(check)[1]
        assert found.status("skip") >= {"directory-files", "life-lock", "state-clock"}
        assert doctor("--dir", str(place), "--role", "sidecar").one("directory")[0] == "ok"


@needs_root
def test_a_full_or_small_volume(tmp_path: Path) -> None:
    """Full, without inodes, or too small for what the ranks write: what is needed is said in MiB."""
    with mounted(tmp_path / "mount", "size=4m") as place:
        (place / "filler").write_bytes(bytes(4 << 20))
        full = doctor("--dir", str(place), "--state-dir", str(place))
        assert full.status("fail") >= {"directory-room", "directory-files", "state"}
        assert "needed: 17 MiB" in full.one("directory-room")[1]
    with mounted(tmp_path / "small", "size=64m") as place:
        assert doctor("--dir", str(place)).one("directory-room")[0] == "ok"
        for told, ranks in (
            (["--nproc-per-node", "2"], 2),
            (["--nproc_per_node=3"], 3),
            (["--nproc-per-node", "gpu"], 1),
        ):
            found = doctor("--dir", str(place), "--", "ft_launcher", *told, "train.py")
            assert f"({ranks} x 17 MiB)" in found.one("directory-room")[1]
        status, what, do = doctor("--dir", str(place), LOCAL_WORLD_SIZE="2").one("directory-room")
        assert (status, "34 MiB (2 x 17 MiB)" in what, "68 MiB" in do) == ("warn", True, True)
    with mounted(tmp_path / "inodes", "size=64m,nr_inodes=1") as place:
        found = doctor("--dir", str(place))
        assert found.one("directory-room")[:2] == ("fail", "no inode is free")
        assert found.one("directory")[0] == "fail"


@pytest.fixture
def nobody() -> Iterator[dict[str, Any]]:
    """How `doctor` is run by another user, to whom this checkout and this Python may be closed."""
    code = Path("/dev/shm") / f"headway-test-code-{os.getpid()}"
    shutil.copytree(Path(headway.__file__).parent, code / "headway")
    pythons = [[*AS_NOBODY, python] for python in (sys.executable, "/usr/bin/python3")]
    try:
        found = next((one for one in pythons if _runs(one)), None)
        if found is None:
            pytest.skip("needs setpriv (util-linux) and a Python that every user may run")
        yield {"command": found, "HOME": "/", "PYTHONPATH": str(code)}
    finally:
        shutil.rmtree(code)


def _runs(python: Sequence[str]) -> bool:
    try:
        return not subprocess.run([*python, "-c", "import argparse, json"], capture_output=True, check=False).returncode
    except OSError:
        return False


@needs_root
def test_a_folder_of_another_user(nobody: dict[str, Any]) -> None:
    """Who may not write, or not look into it, is told as that; a mode that shuts the sidecar out is warned of."""
    place = Path("/dev/shm") / f"headway-test-doctor-{os.getpid()}"
    place.mkdir(mode=0o700)
    try:
        status, what, do = doctor("--dir", str(place)).one("directory")
        assert (status, "0700" in what, do.startswith("chmod o+rx")) == ("warn", True, True)
        found = doctor("--dir", str(place / RUN), **nobody)
        assert found.one("directory")[0] == "fail"
        closed = doctor("--dir", str(place), "--state-dir", str(place), **nobody)
        for check in ("directory", "state"):
            status, what, do = closed.one(check)
            assert (status, "Permission denied" in what, do.startswith("give it to")) == ("fail", True, True)
        sidecar = doctor("--dir", str(place), "--role", "sidecar", **nobody)
        assert sidecar.one("directory")[0] == "fail"
        assert "cannot be looked into" in sidecar.one("directory")[1]
        place.chmod(0o777)
        launcher(_run_folder(place).parent)("launcher_started", pid=1, command=["train"], attempt=0)
        again = doctor("--dir", str(place), "--run", RUN, **nobody)
        assert again.status("fail") >= {"directory", "journals"}
        assert f"cannot write in {place / RUN}" in again.one("directory")[1]
        reader = doctor("--dir", str(place), "--run", RUN, "--role", "sidecar", **nobody)
        assert reader.one("journals")[0] == "ok"
    finally:
        shutil.rmtree(place)


def test_the_default_folder_of_somebody_else() -> None:
    """It lies where everybody may write, so that another user could have made it first; a link there is refused as well."""
    place = Place("/dev/shm/headway-1000", "run", "both", shared_place=True, user=1000, ranks=1)
    facts = {
        "is_folder": True,
        "exists": True,
        "owner": 0,
        "is_link": False,
        "write": None,
        "mode": 0o777,
        "kind": "tmpfs",
    }
    rest = {"free_bytes": 1 << 30, "total_bytes": 1 << 30, "free_files": 1, "allocate": None, "map": None, "lock": None}
    for change, status in (({}, "fail"), ({"owner": 1000}, "ok"), ({"owner": 1000, "is_link": True}, "fail")):
        found = next(directory(place, Answer(facts | rest | change)))
        assert (found.check, found.status) == ("directory", status)


def test_file_systems_without_blocks_maps_or_locks() -> None:
    """The step ring is then slower and a death is noticed late: warnings, with what follows from each."""
    place = Place("/fsx", "run", "both", shared_place=False, user=0, ranks=1)
    facts = {
        "is_folder": True, "exists": True, "owner": 0, "is_link": False, "write": None, "mode": 0o755, "kind": "lustre",
        "free_bytes": 1 << 40, "total_bytes": 1 << 40, "free_files": None, "allocate": "Operation not supported", "map": None,
        "lock": "Function not implemented",
    }  # fmt: skip
    found = {one.check: one for one in directory(place, Answer(facts))}
    assert [found[name].status for name in ("directory-files", "life-lock", "directory-kind")] == ["warn"] * 3
    assert "flock" in found["life-lock"].do


@pytest.mark.parametrize(
    ("kind", "pods", "status"),
    [
        ("nfs4", 8, "ok"),
        ("lustre", 8, "ok"),
        ("ext4", 1, "ok"),
        ("ext4", 2, "warn"),
        ("tmpfs", 1, "warn"),
        ("overlay", 1, "warn"),
    ],
)
def test_where_the_state_folder_lies(kind: str, pods: int, status: str) -> None:
    """It must outlive the container, and with several pods be the same for all of them."""
    facts = {"is_folder": True, "exists": True, "write": None, "replace": None, "kind": kind, "ahead_seconds": 0.0}
    found = {one.check: one for one in state("/state", "both", pods, Answer(facts))}
    assert found["state-kind"].status == status
    assert (found["state-clock"].status == "skip") == (kind == "lustre")


def test_no_state_folder(tmp_path: Path) -> None:
    """The sidecar works without, and forgets; the trainer has no use for one."""
    assert doctor("--dir", str(tmp_path)).one("state")[0] == "warn"
    assert doctor("--dir", str(tmp_path), "--role", "trainer").one("state")[0] == "skip"


def test_a_wrong_clock(tmp_path: Path) -> None:
    """The folder's server dates a file otherwise than this machine would."""
    ahead = wrong_clock.wrong_by(wrong_clock.library(tmp_path), 90)
    (tmp_path / "state").mkdir()
    found = doctor("--dir", str(tmp_path), "--state-dir", str(tmp_path / "state"), **ahead)
    status, what, _ = found.one("state-clock")
    assert (status, what) == ("warn", "the folder's clock is 90.0 s behind this machine's")


def test_a_mount_that_hangs(tmp_path: Path) -> None:
    """It costs its own findings only, and the doctor ends."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler (cc)")
    library = tmp_path / "slow.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, SLOW, "-ldl"], check=True)
    (tmp_path / "mount").mkdir()
    (tmp_path / "mount.stalls").touch()
    stalled = {"LD_PRELOAD": str(library), "STALLED": str(tmp_path / "mount")}
    (tmp_path / "mount" / "journals").mkdir()
    folders = ("--dir", str(tmp_path / "mount" / "journals"), "--state-dir", str(tmp_path / "mount"))
    found = doctor(*folders, "--role", "sidecar", **stalled)
    assert (found.code, found.status("fail")) == (1, {"directory", "state"})
    for check in ("directory", "state"):
        assert "no answer within 12 s" in found.one(check)[1]
    assert found.status("ok") >= {"environment", "extra"}


def test_journals_of_another_run(tmp_path: Path) -> None:
    """Trainer and sidecar that do not agree on the run's name are the usual mistake."""
    launcher(_run_folder(tmp_path).parent)("launcher_started", pid=1, command=["train"], attempt=0)
    status, what, do = doctor("--dir", str(tmp_path), "--run", "other").one("journals")
    assert (status, what, "HEADWAY_RUN" in do) == ("warn", f"there are journals of {RUN}, and none of other", True)
    assert doctor("--dir", str(tmp_path), "--run", RUN).one("journals")[0] == "ok"
    assert doctor("--dir", str(tmp_path / "none"), "--run", RUN).one("journals")[0] == "skip"


def test_journals_that_cannot_be_read_or_come_from_the_future(tmp_path: Path) -> None:
    """A link is not followed; an event that is later than now comes from another boot or time namespace."""
    folder = _run_folder(tmp_path)
    later = (
        f'{{"v":1,"n":0,"wall":1.0,"mono":{time.monotonic() + 3600},"life":5,"kind":"launcher_exited","exit_code":0}}\n'
    )
    (folder / "launcher.jsonl").write_text(later)
    status, _, do = doctor("--dir", str(tmp_path), "--run", RUN).one("journals")
    assert (status, "reboot" in do) == ("warn", True)
    (folder / "slot-0.jsonl").symlink_to("/etc/passwd")
    found = doctor("--dir", str(tmp_path), "--run", RUN)
    assert found.one("journals")[0] == "fail"
    assert "slot-0.jsonl" in found.one("journals")[1]


@needs_nvrx
def test_a_living_trainer_keeps_its_lock(tmp_path: Path) -> None:
    """Its life lock is held after the doctor looked, its folder holds what it held, and what it says is in force is read."""
    settings = ("set=soft_timeout_seconds:60", "set=hard_timeout_seconds:40", "set=heartbeat_rank_seconds:90")
    living = trainer(tmp_path, 0, *settings, "steps=1-3", "ready", "wait", ranks=1)
    try:
        wait_ready(living)
        before = sorted(path.name for path in (tmp_path / RUN).iterdir())
        locks = _locks(living.pid)
        found = doctor("--dir", str(tmp_path), "--run", RUN)
        assert locks == _locks(living.pid)
        assert len(locks) == 1
        assert sorted(path.name for path in (tmp_path / RUN).iterdir()) == before
    finally:
        living.kill()
        finish(living)
    status, what, _ = found.one("time-outs")
    assert (status, "hard (40 s) is not above soft (60 s)" in what) == ("warn", True)
    assert found.one("heartbeats")[:2] == ("ok", "a rank that is silent for 90 s is killed")


def _locks(pid: int) -> list[str]:
    lines = Path("/proc/locks").read_text().splitlines()
    return [line.partition(": ")[2] for line in lines if f" {pid} " in line]


def _run_folder(directory: Path) -> Path:
    folder = directory / RUN
    folder.mkdir()
    return folder
