"""Whose clock dates files: it decides how much two pods' times can be told apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.mounts import file_system
from headway_exporter.server_time import KEPT_CLOCKS_SECONDS, clock_doubt_seconds

MOUNTS = """\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 27 0:40 / /state rw - lustre 10.0.0.1@tcp:/fsx rw,flock
31 30 0:41 / /state/nfs rw shared:1 - nfs4 server:/export rw,vers=4.1
32 27 0:42 / /with\\040space rw - fuse.s3fs s3fs rw
33 27 0:43 / /twice rw - tmpfs tmpfs rw
34 27 0:44 / /twice rw - ceph mon:/ rw
nonsense
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/state/run", "lustre"),
        ("/state/nfs/run", "nfs4"),
        ("/statement", "ext4"),
        ("/with space/run", "fuse.s3fs"),
        ("/twice", "ceph"),
        ("/", "ext4"),
    ],
)
def test_the_innermost_and_newest_mount_counts(path: str, kind: str) -> None:
    """A state folder is often a mount below another one."""
    assert file_system(Path(path), MOUNTS) == kind


def test_nothing_is_known_of_a_system_that_does_not_tell() -> None:
    """Then times are doubted."""
    assert file_system(Path("/state"), "") == ""


def test_this_machines_memory_is_dated_by_its_kernel() -> None:
    """The real mount table can be read; /proc is dated by nobody we know."""
    assert clock_doubt_seconds(Path("/dev/shm")) == 0.0
    assert clock_doubt_seconds(Path("/proc")) == KEPT_CLOCKS_SECONDS
