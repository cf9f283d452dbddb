"""Findings about the journal folder and the state folder, from facts of `probes_folder`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headway.doctor.findings import Finding
from headway.mounts import DATED_BY_SERVER

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headway.doctor.findings import Role
    from headway.doctor.gather import Answer

    Facts = Mapping[str, Any]

RANK_BYTES: Final = 17 << 20
"""What one rank may write: two step rings of 4 MiB, a journal of at most 8 MiB, its locks."""
_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
_LOCAL: Final = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs"})
_SKEW_SECONDS: Final = 1.0
_BOTH_READ: Final = 0o005


@dataclass(frozen=True, slots=True)
class Place:
    """The journal folder, as it is asked for."""

    path: str
    run: str
    role: Role
    shared_place: bool
    user: int
    ranks: int


def directory(place: Place, answer: Answer) -> Iterator[Finding]:
    """All about the journal folder."""
    facts = answer.facts
    if facts is None:
        do = "mend or unmount its file system, or set HEADWAY_DIR to a folder in memory"
        yield Finding("directory", "fail", f"{place.path}: {answer.problem}", do)
        return
    yield _directory(place, facts)
    yield _room(place, facts)
    yield _kind(place, facts)
    yield _files(facts)
    yield _lock(facts)


def _directory(place: Place, facts: Facts) -> Finding:
    path = place.path
    if not facts["is_folder"]:
        return Finding("directory", "fail", f"{facts['place']} is no folder", "remove it, or set HEADWAY_DIR")
    if place.shared_place and facts["exists"] and (facts["owner"] != place.user or facts["is_link"]):
        do = "remove it, or set HEADWAY_DIR to a folder of this user's"
        return Finding("directory", "fail", f"{path} belongs to user {facts['owner']}, not to {place.user}", do)
    if place.role == "sidecar":
        return _looked_into(path, facts)
    if facts.get("write") is not None:
        what = f"{path}: this user ({place.user}) cannot write in {facts['tried']}: {facts['write']}"
        do = "make room there" if facts.get("full") else "give it to the trainer's user, or set HEADWAY_DIR"
        return Finding("directory", "fail", what, do)
    if not facts["exists"]:
        return Finding("directory", "ok", f"{path} is not there yet; the trainer can make it")
    if facts["mode"] & _BOTH_READ != _BOTH_READ:
        what = f"{path} has mode {facts['mode']:04o}: a sidecar of another user cannot look into it"
        return Finding("directory", "warn", what, f"chmod o+rx {path}, unless both are the same user")
    return Finding("directory", "ok", f"{path} can be written, and read by everybody")


def _looked_into(path: str, facts: Facts) -> Finding:
    if not facts["exists"]:
        do = "mount the trainer's volume in this container, or set HEADWAY_DIR as the trainer has it"
        return Finding("directory", "warn", f"{path} is not there", do)
    if not facts["can_list"]:
        what = f"{path} has mode {facts['mode']:04o} and belongs to user {facts['owner']}: it cannot be looked into"
        return Finding("directory", "fail", what, "chmod o+rx it, or run the sidecar as that user")
    return Finding("directory", "ok", f"{path} can be looked into")


def _room(place: Place, facts: Facts) -> Finding:
    needed = place.ranks * RANK_BYTES
    what = f"{_mib(facts['free_bytes'])} of {_mib(facts['total_bytes'])} free; needed: {_mib(needed)} ({place.ranks} x {_mib(RANK_BYTES)})"
    do = f"give the volume a sizeLimit (size=) of {_mib(2 * needed)}, and delete folders of old runs"
    if facts["free_files"] == 0:
        return Finding("directory-room", "fail", "no inode is free", "delete files there, or mount it with more inodes")
    if facts.get("full") or facts["free_bytes"] < RANK_BYTES:
        return Finding("directory-room", "fail", f"{what}: steps will not be recorded", do)
    if facts["free_bytes"] < needed or facts["total_bytes"] < 2 * needed:
        return Finding("directory-room", "warn", what, do)
    return Finding("directory-room", "ok", what)


def _kind(place: Place, facts: Facts) -> Finding:
    kind = facts["kind"] or "unknown"
    if kind in _MEMORY:
        return Finding("directory-kind", "ok", f"in memory ({kind})")
    do = "use memory: an emptyDir with medium: Memory, or /dev/shm"
    if kind in _LOCAL or kind == "overlay":
        return Finding("directory-kind", "ok", f"on a local disk ({kind}): memory would never make training wait", do)
    what = f"{place.path} lies in a file system of type {kind}: where that hangs, training hangs with it"
    return Finding("directory-kind", "warn", what, do)


def _files(facts: Facts) -> Finding:
    if facts.get("write", "") is not None:
        return _not_tried("directory-files", facts)
    problems = [
        f"{what}: {facts[name]}" for name, what in (("allocate", "reserving blocks"), ("map", "mapping")) if facts[name]
    ]
    if facts.get("allocate") and "space" in facts["allocate"]:
        return Finding("directory-files", "fail", "; ".join(problems), "make room there")
    if problems:
        do = "steps are then written by system calls, which is slower: use memory (tmpfs) where that counts"
        return Finding("directory-files", "warn", "; ".join(problems), do)
    return Finding("directory-files", "ok", "blocks can be reserved and mapped")


def _lock(facts: Facts) -> Finding:
    if facts.get("write", "") is not None:
        return _not_tried("life-lock", facts)
    if facts["lock"]:
        what = f"byte locks do not work: {facts['lock']}"
        do = "a death is then noticed by silence only (HEADWAY_SILENCE_SECONDS); on Lustre mount with flock, or use memory"
        return Finding("life-lock", "warn", what, do)
    return Finding("life-lock", "ok", "another process sees a byte lock")


def _not_tried(check: str, facts: Facts) -> Finding:
    why = "nothing can be written there" if "write" in facts else "only the trainer writes there (--role trainer)"
    return Finding(check, "skip", why)


def journals(place: Place, answer: Answer) -> Iterator[Finding]:
    """Whether what lies there is the run's, and readable."""
    facts = answer.facts
    if facts is None:
        yield Finding("journals", "skip", answer.problem)
    elif facts["unreadable"]:
        do = "they have mode 0644 where the recorder made them: look at who owns the folder, and at its mode"
        yield Finding("journals", "fail", "not to be read: " + ", ".join(facts["unreadable"][:3]), do)
    elif facts["unwritable"] and place.role != "sidecar":
        do = "they are another user's, of a run before: delete the run's folder, or take another name (HEADWAY_RUN)"
        yield Finding("journals", "fail", "not to be written: " + ", ".join(facts["unwritable"][:3]), do)
    elif facts["others"]:
        what = f"there are journals of {', '.join(facts['others'])}, and none of {place.run}"
        yield Finding("journals", "warn", what, "set HEADWAY_RUN alike for trainer and sidecar")
    elif not facts["files"]:
        yield Finding("journals", "skip", f"no trainer has written for run {place.run} yet")
    elif facts["mono"] is not None and facts["mono"] > facts["monotonic"] + 1:
        what = "the newest event is of a time that has not come yet by this machine's CLOCK_MONOTONIC"
        do = "it is from before a reboot: delete it; or trainer and sidecar are in different time namespaces: run both in one"
        yield Finding("journals", "warn", what, do)
    else:
        yield Finding("journals", "ok", f"{facts['files']} of run {place.run} can be read")


def state(path: str | None, role: Role, pods: int, answer: Answer | None) -> Iterator[Finding]:
    """All about the state folder; `answer` is None where there is nothing to ask."""
    if role == "trainer":
        yield Finding("state", "skip", "only the sidecar uses it (--role sidecar)")
    elif path is None or answer is None:
        what = "HEADWAY_STATE_DIR is not set: the sidecar forgets all when it ends, and each pod decides alone"
        yield Finding("state", "warn", what, "set it to a folder that outlives the pod and that all pods share")
    elif answer.facts is None:
        do = "mend or unmount its file system: while it hangs, the sidecar's counters stand still"
        yield Finding("state", "fail", f"{path}: {answer.problem}", do)
    else:
        yield _written(path, answer.facts)
        yield _state_kind(answer.facts, pods)
        yield _state_clock(answer.facts)


def _written(path: str, facts: Facts) -> Finding:
    if not facts["is_folder"]:
        return Finding("state", "fail", f"{facts['place']} is no folder", "remove it, or set HEADWAY_STATE_DIR")
    problem = facts["write"] or facts.get("replace")
    if problem:
        do = "make room there" if facts.get("full") else "give it to the sidecar's user (65532 in our image)"
        return Finding("state", "fail", f"{path}: cannot be written in {facts['place']}: {problem}", do)
    return Finding("state", "ok", f"{path} can be written" if facts["exists"] else f"{path} can be made")


def _state_kind(facts: Facts, pods: int) -> Finding:
    kind = facts["kind"] or "unknown"
    do = "put it on a volume that all pods share: a claim with ReadWriteMany, NFS, Lustre"
    if kind in _MEMORY or kind == "overlay":
        owner = "the machine's memory" if kind in _MEMORY else "the container"
        return Finding("state-kind", "warn", f"it is of type {kind}, and goes with {owner}", do)
    if kind in _LOCAL and pods > 1:
        return Finding("state-kind", "warn", f"it is a local disk ({kind}), and there are {pods} pods", do)
    return Finding("state-kind", "ok", f"it is of type {kind}")


def _state_clock(facts: Facts) -> Finding:
    ahead = facts.get("ahead_seconds")
    if ahead is None:
        return Finding("state-clock", "skip", "nothing can be written there")
    if facts["kind"] not in DATED_BY_SERVER:
        return Finding(
            "state-clock", "skip", f"files of {facts['kind'] or 'this type'} are dated by whoever writes them"
        )
    if abs(ahead) > _SKEW_SECONDS:
        what = f"the folder's clock is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} this machine's"
        return Finding("state-clock", "warn", what, "keep all clocks by NTP: times in records are this machine's")
    return Finding("state-clock", "ok", "the folder's clock and this machine's agree within 1 s")


def _mib(count: int) -> str:
    return f"{count / (1 << 20):.0f} MiB"
