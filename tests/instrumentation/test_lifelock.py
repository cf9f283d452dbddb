from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from headway.lifelock import LifeLock, lock_name, wait_until_released

if TYPE_CHECKING:
    from pathlib import Path

LIFE = 2**62 - 1


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / lock_name(0)


class Holder:
    """A process that holds a life lock, runs `then`, says so, and lives until its standard input ends."""

    def __init__(self, path: Path, life: int, then: str = "") -> None:
        code = f"""
import os, sys
from pathlib import Path
from headway.lifelock import LifeLock
lock = LifeLock(Path({str(path)!r}), {life})
{then}
print(lock.held, flush=True)
sys.stdin.read()
"""
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.held = self.process.stdout.readline().strip() == "True"

    def __enter__(self) -> Holder:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


def is_locked(path: Path, life: int) -> bool:
    """Whether another process holds the byte; looking does not disturb it."""
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, life)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV, None])
def test_the_end_of_a_process_is_told_whatever_ended_it(path: Path, how: signal.Signals | None) -> None:
    """A waiting reader is let go by any death and not before, SIGKILL and an orderly exit alike."""
    with Holder(path, LIFE) as holder:
        assert holder.held
        waiter = threading.Thread(target=wait_until_released, args=(path, LIFE), daemon=True)
        waiter.start()
        waiter.join(0.2)
        assert waiter.is_alive()
        if how is None:
            assert holder.process.stdin is not None
            holder.process.stdin.close()
            holder.process.wait()
        else:
            holder.process.send_signal(how)
        waiter.join(10)
        assert not waiter.is_alive()


def test_who_waits_is_told_who_holds_the_lock(path: Path) -> None:
    """A lock that nobody held before the wait says nothing of when its life ended, however fast the wait was over."""
    met: list[int | None] = []
    with Holder(path, LIFE) as holder:

        def meet(pid: int | None) -> None:
            met.append(pid)
            holder.process.kill()

        wait_until_released(path, LIFE, meet)
        assert met == [holder.process.pid]
    wait_until_released(path, LIFE, met.append)
    assert met[1:] == [None]


def test_two_lives_of_one_slot_are_told_apart(path: Path) -> None:
    """An old process that is still dying and its successor each hold a byte of their own."""
    with Holder(path, 1) as old, Holder(path, LIFE) as new:
        assert old.held
        assert new.held
        assert (is_locked(path, 1), is_locked(path, LIFE), is_locked(path, 2)) == (True, True, False)
        old.process.kill()
        wait_until_released(path, 1)
        assert is_locked(path, LIFE)


def test_a_forked_child_neither_drops_nor_keeps_the_lock(path: Path) -> None:
    """The lock survives the exit of a child, which closes the inherited file, and ends although another child lives on."""
    children = """
if os.fork() == 0:
    lock.close()
    os._exit(0)
os.wait()
if os.fork() == 0:
    os.close(1)
    sys.stdin.read()  # lives for as long as its parent's input is open
    os._exit(0)
"""
    with Holder(path, LIFE, children) as holder:
        assert is_locked(path, LIFE)
        holder.process.kill()
        wait_until_released(path, LIFE)


def test_a_second_open_in_the_process_is_the_trap_that_the_singleton_avoids(path: Path) -> None:
    """Any close of the file drops the lock: should that ever change, the one-recorder rule could go."""
    with Holder(path, LIFE, f"os.close(os.open({str(path)!r}, os.O_RDONLY))") as holder:
        assert holder.held
        assert not is_locked(path, LIFE)


def test_an_unlinked_lock_file_harms_nobody(path: Path) -> None:
    """The holder keeps its lock on the nameless file, a reader gets an error, and a new life makes a new file."""
    with Holder(path, 1) as old:
        path.unlink()
        with pytest.raises(FileNotFoundError):
            wait_until_released(path, 1)
        with Holder(path, 2) as new:
            assert new.held
            assert is_locked(path, 2)
            assert old.process.poll() is None


def test_a_lock_that_is_refused_is_not_held(tmp_path: Path) -> None:
    """A byte that somebody else holds, a link, a folder: no exception, only `held` is False."""
    path = tmp_path / lock_name(0)
    with Holder(path, LIFE):
        lock = LifeLock(path, LIFE)
        assert not lock.held
        lock.close()
    link = tmp_path / lock_name(1)
    link.symlink_to(path)
    assert not LifeLock(link, LIFE).held
    assert not LifeLock(tmp_path, LIFE).held
    assert not LifeLock(path, 2**64).held


def test_the_lock_file_can_be_read_by_others_under_any_umask(path: Path) -> None:
    """The sidecar may run as another user: it needs to read the file, and no more."""
    before = os.umask(0o077)
    try:
        lock = LifeLock(path, LIFE)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o644
    assert lock.held
    lock.close()


def test_a_closed_lock_is_free(path: Path) -> None:
    """Closing ends the life at once, and does so once."""
    code = f"""
from pathlib import Path
from headway.lifelock import LifeLock
lock = LifeLock(Path({str(path)!r}), 5)
lock.close()
lock.close()
assert not lock.held
print(flush=True)
input()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert not is_locked(path, 5)
        process.communicate(b"\n")
