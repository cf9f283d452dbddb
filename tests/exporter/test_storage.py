"""Volumes: their space, and what becomes of a scrape when one of them stalls."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from journal_folder import finish, trainer
from sidecar_process import IMPATIENT, Sidecar, sidecar

from headway_exporter.health.instruments import AbsentError
from headway_exporter.health.storage import Space, VolumeProbe, told

AVAILABLE = "headway_storage_available_bytes"
SUCCESS = "headway_collector_success"
CC = shutil.which("cc")
HERE = Path(__file__).parent


def test_space_is_the_file_systems(tmp_path: Path) -> None:
    """As `df` says it, of a folder on it."""
    probe = VolumeProbe("state", lambda: tmp_path)
    shown = {name: value for name, _, value in probe.samples(probe.read())}
    found = os.statvfs(tmp_path)
    assert shown["headway_storage_size_bytes"] == found.f_blocks * found.f_frsize
    assert 0 <= float(str(shown[AVAILABLE])) <= found.f_blocks * found.f_frsize
    assert {labels for _, labels, _ in probe.samples(probe.read())} == {("state",)}


@pytest.mark.parametrize(
    ("space", "names"),
    [
        (Space(1, 2, 0, 0), {AVAILABLE, "headway_storage_size_bytes"}),
        (Space(0, 0, 5, 10), {"headway_storage_inodes_available_ratio"}),
        (Space(0, 0, 0, 0), set()),
    ],
)
def test_what_a_file_system_does_not_limit_is_absent(space: Space, names: set[str]) -> None:
    """Zero of zero is not full, and no division by it."""
    found = list(VolumeProbe("state", lambda: None).samples(space))
    assert {name for name, _, _ in found} == names
    assert all(value == 0.5 for name, _, value in found if "inodes" in name)


@pytest.mark.parametrize("folder", ["", "relative/folder", "/no/such/folder", "/with\0zero"])
def test_a_folder_that_is_not_there_is_no_fault(folder: str) -> None:
    """The trainer's folder need not be mounted in the sidecar's container, and journals are not to be trusted."""
    with pytest.raises(AbsentError):
        VolumeProbe("checkpoints", lambda: told(folder)).read()


def test_checkpoints_are_where_the_trainer_says(tmp_path: Path) -> None:
    """Without any option; and the folder of the option, where the sidecar sees it under another name."""
    (tmp_path / "saved").mkdir()
    (tmp_path / "journals").mkdir()
    with sidecar(tmp_path / "journals", "--state-dir", str(tmp_path / "state"), program=IMPATIENT) as exporter:
        finish(trainer(tmp_path / "journals", 0, f"saves_in={tmp_path / 'saved'}", "steps=1-2", "finish=2", ranks=1))
        exporter.until(lambda _: _volumes(exporter) == {"checkpoints", "state", "journal"}, "all volumes")
    with sidecar(tmp_path / "none", "--checkpoint-dir", str(tmp_path / "saved"), program=IMPATIENT) as exporter:
        exporter.until(lambda _: _volumes(exporter), "a volume")
        assert _volumes(exporter) == {"checkpoints"}


@pytest.mark.skipif(CC is None, reason="there is no C compiler")
def test_a_stalled_mount_costs_its_own_metrics_only(tmp_path: Path) -> None:
    """Nobody waits for it: not the scrape, not the other volumes, not the end of the sidecar; and it is seen when it answers again."""
    assert CC is not None
    library = tmp_path / "slow.so"
    subprocess.run([CC, "-shared", "-fPIC", "-o", library, HERE / "slow_statvfs.c", "-ldl"], check=True)
    (tmp_path / "mount").mkdir()
    stalls = tmp_path / "mount.stalls"
    stalls.touch()
    environ = {"LD_PRELOAD": str(library), "STALLED": str(tmp_path / "mount")}
    with sidecar(tmp_path, "--checkpoint-dir", str(tmp_path / "mount"), program=IMPATIENT, **environ) as exporter:
        exporter.until(lambda _: _success(exporter, "checkpoints") == 0.0, "that the mount stalls")
        assert _volumes(exporter) == {"journal"}
        assert _success(exporter, "journal") == 1
        stalls.unlink()
        exporter.until(lambda _: _success(exporter, "checkpoints") == 1.0, "that it answers")
        assert _volumes(exporter) == {"checkpoints", "journal"}
        stalls.touch()
        exporter.until(lambda _: _success(exporter, "checkpoints") == 0.0, "that it stalls again")
        assert _volumes(exporter) == {"journal"}
        code, errors = exporter.stop()
    assert (code, errors) == (0, "")


def _volumes(exporter: Sidecar) -> set[str]:
    return {dict(labels)["volume"] for name, labels in exporter.samples() if name == AVAILABLE}


def _success(exporter: Sidecar, volume: str) -> float | None:
    return exporter.value(SUCCESS, collector=f"storage_{volume}")
