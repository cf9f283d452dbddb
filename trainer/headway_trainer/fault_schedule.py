"""The language of fault schedules: kinds, what each should lead to, and the parser. No I/O, nothing is injected here.

A schedule is text on the command line or a list in YAML, and both say the same::

    exception@50, sigkill@90:rank=0, slow_storage@120:seconds=8:repeat=2

    - exception@50
    - {kind: sigkill, step: 90, rank: 0}

Most kinds strike when the run is about to execute step `step`; `repeat=2` strikes again when a restart brings the run
back to that step. Kinds that concern saves strike at the first save of step `step` or later, and `repeat` counts the
saves that follow.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from headway_trainer.config import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class ScheduleError(ConfigError):
    """A fault schedule makes no sense: one line that names the item and what is allowed."""


@dataclass(frozen=True)
class Outcome:
    """What should be seen: the layer that recovers, and the cause of the closed list; None when nothing restarts."""

    layer: str | None = None
    cause: str | None = None

    @property
    def restarts(self) -> bool:
        """Whether the training function is entered again."""
        return self.layer is not None


@dataclass(frozen=True)
class Kind:
    """One kind of fault.

    Attributes:
        meaning: What is done to the rank.
        outcome: With all three NVRx layers on.
        outcome_without_in_process: With the in-process layer off.
        save_fails: A save is lost, and training goes on.
        checkpoint_rejected: The resume rejects the newest checkpoint and falls back to the one before.
        at_saves: It strikes at a save, not at a step.
        seconds: Default of the option `seconds`; None when the kind has no such option.
        code: Default of the option `code`; None when the kind has no such option.
    """

    meaning: str
    outcome: Outcome = Outcome()
    outcome_without_in_process: Outcome = Outcome()
    save_fails: bool = False
    checkpoint_rejected: bool = False
    at_saves: bool = False
    seconds: float | None = None
    code: int | None = None

    @property
    def options(self) -> tuple[str, ...]:
        """The options that its items may have."""
        own = {"seconds": self.seconds, "code": self.code}
        return ("rank", "repeat", *(name for name, default in own.items() if default is not None))


_FOR_EVER: Final = 10_000.0
_KILLED: Final = Outcome("launcher", "process_killed")
_EXITED: Final = Outcome("launcher", "process_exited")
_SILENT: Final = Outcome("launcher", "heartbeat_timeout")
_LOST: Final = Outcome("orchestrator", "node_lost")

KINDS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "exception": Kind(
            "raises InjectedFault", Outcome("in_process", "app_exception"), Outcome("launcher", "app_exception")
        ),
        "nan_loss": Kind(
            "makes the loss NaN", Outcome("in_process", "numeric_nan"), Outcome("launcher", "numeric_nan")
        ),
        "cuda_oom": Kind(
            "raises torch.OutOfMemoryError", Outcome("in_process", "cuda_oom"), Outcome("launcher", "cuda_oom")
        ),
        "soft_hang": Kind(
            "hangs in Python, interruptible", Outcome("in_process", "hang_soft"), _SILENT, seconds=_FOR_EVER
        ),
        "hard_hang": Kind("hangs in one system call", _SILENT, _SILENT, seconds=_FOR_EVER),
        "sigkill": Kind("kills the rank", _KILLED, _KILLED),
        "exit": Kind("ends the rank with an exit code", _EXITED, _EXITED, code=3),
        "host_oom": Kind("kills the rank as the kernel does when memory runs out", _KILLED, _KILLED),
        "slow_step": Kind("makes one step slow", seconds=2.0),
        "data_stall": Kind("makes the input of one step late", seconds=2.0),
        "slow_storage": Kind("makes one shard's write slow", at_saves=True, seconds=5.0),
        "write_error": Kind("fills the disk half-way through one shard (ENOSPC)", at_saves=True, save_fails=True),
        "writer_killed": Kind("kills the rank's writer process as it gets a save", at_saves=True, save_fails=True),
        "corrupt_checkpoint": Kind(
            "damages the newest checkpoint, then kills the rank", _KILLED, _KILLED, checkpoint_rejected=True
        ),
        "pod_loss": Kind("kills every process of the pod", _LOST, _LOST),
    }
)


def markdown_table() -> str:
    """The kinds as a table for the README: what is done, and what should be seen with all three layers on."""
    rows = [f"| `{name}` | {kind.meaning} | {_expectation(kind)} |" for name, kind in KINDS.items()]
    return "\n".join(["| fault | what it does | what should follow |", "|---|---|---|", *rows])


def _expectation(kind: Kind) -> str:
    if kind.outcome.restarts:
        fall_back = ", one checkpoint further back" if kind.checkpoint_rejected else ""
        return f"{kind.outcome.layer} restart, cause `{kind.outcome.cause}`{fall_back}"
    return "a failed save, no restart" if kind.save_fails else "no restart"


@dataclass(frozen=True)
class Fault:
    """One item of a schedule.

    Attributes:
        kind: A key of `KINDS`.
        step: When; counts from 1.
        rank: Where; None is rank 1, or 0 in a world of one (rank 0 hosts the store of a rendezvous: only on request).
        repeat: How often in the whole run, across restarts of every kind.
        seconds: How long, for the kinds that take time; None for the others.
        code: Exit code, for `exit`; None for the others.
    """

    kind: str
    step: int
    rank: int | None = None
    repeat: int = 1
    seconds: float | None = None
    code: int | None = None

    def __str__(self) -> str:
        """The item as text, defaults left out; it parses to an equal fault."""
        kind = KINDS[self.kind]
        options = [
            ("rank", self.rank, None),
            ("repeat", self.repeat, 1),
            ("seconds", self.seconds, kind.seconds),
            ("code", self.code, kind.code),
        ]
        given = "".join(
            f":{name}={value:g}" for name, value, default in options if value != default and value is not None
        )
        return f"{self.kind}@{self.step}{given}"

    @property
    def outcome(self) -> Outcome:
        """What should be seen with all three layers on."""
        return KINDS[self.kind].outcome

    def target(self, world_size: int) -> int:
        """The rank it strikes in a world of that size."""
        return min(1, world_size - 1) if self.rank is None else self.rank


def parse_schedule(items: str | Iterable[str | Mapping[str, Any]]) -> tuple[Fault, ...]:
    """Reads a schedule: one text with commas, or a list of texts and of tables with the same keys.

    Raises:
        ScheduleError: One line that names the item and what is allowed.
    """
    if isinstance(items, str):
        return tuple(_from_text(item) for item in _split(items))
    faults: list[Fault] = []
    for item in items:
        if isinstance(item, str):
            faults.extend(_from_text(part) for part in _split(item))
        else:
            faults.append(_from_table(item))
    return tuple(faults)


def read_schedule(path: Path) -> tuple[Fault, ...]:
    """Reads a schedule from a YAML file: a list as `parse_schedule` takes it, or one text."""
    import yaml  # only schedules in files need it

    try:
        items = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ScheduleError(f"{path}: not readable as YAML: {' '.join(str(error).split())}") from error
    if items is None:
        return ()
    if not isinstance(items, (str, list)):
        raise ScheduleError(f"{path}: should hold a list of faults, not a {type(items).__name__}")
    try:
        return parse_schedule(items)
    except ScheduleError as error:
        raise ScheduleError(f"{path}: {error}") from None


def load_schedule(items: Iterable[str], file: str | None = None) -> tuple[Fault, ...]:
    """The schedule of the options `--faults.schedule` and `--faults.file`, in that order."""
    return (*parse_schedule(items), *(read_schedule(Path(file)) if file else ()))


def check_schedule(schedule: Iterable[Fault], world_size: int) -> None:
    """ScheduleError when a fault names a rank that does not exist; for the start of a run, before anything else."""
    for fault in schedule:
        if fault.target(world_size) >= world_size:
            raise ScheduleError(f"fault {str(fault)!r}: no such rank; this run has ranks 0 to {world_size - 1}")


_FORM: Final = "kind@step[:rank=R][:repeat=N][:seconds=S][:code=C]"
_HEAD: Final = re.compile(r"([a-z_]+)@([0-9]{1,12})")


def _split(text: str) -> list[str]:
    """Items between commas; a text of nothing but spaces is an empty schedule."""
    return [item.strip() for item in text.split(",")] if text.strip() else []


def _from_text(item: str) -> Fault:
    head, *options = item.split(":")
    match = _HEAD.fullmatch(head)
    if not match:
        raise ScheduleError(f"fault {item!r}: should look like {_FORM}")
    table: dict[str, object] = {"kind": match[1], "step": int(match[2])}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals or name in table:
            raise ScheduleError(f"fault {item!r}: {option!r} is no option or is given twice; should look like {_FORM}")
        table[name] = _number(item, name, value)
    return _build(item, table)


def _number(item: str, name: str, text: str) -> float | int:
    try:
        return float(text) if name == "seconds" else int(text)
    except ValueError:
        raise ScheduleError(f"fault {item!r}: {name} should be a number, not {text!r}") from None


def _from_table(item: object) -> Fault:
    if not isinstance(item, dict) or not {"kind", "step"} <= item.keys():
        raise ScheduleError(
            f"fault {item!r:.80}: should be a text like {_FORM}, or a table with at least kind and step"
        )
    return _build(f"{item}", item)


def _build(item: str, table: Mapping[str, Any]) -> Fault:
    """Checks every field; `item` is how messages call it."""
    kind = KINDS.get(table["kind"]) if isinstance(table["kind"], str) else None
    if kind is None:
        raise ScheduleError(f"fault {item!r}: unknown kind; there are {', '.join(KINDS)}")
    unknown = [name for name in table if name not in {"kind", "step", *kind.options}]
    if unknown:
        raise ScheduleError(
            f"fault {item!r}: {table['kind']} has no option {unknown[0]}; it has {', '.join(kind.options)}"
        )
    return Fault(
        kind=table["kind"],
        step=_whole(item, table, "step", 1, 10**12),
        rank=_whole(item, table, "rank", 0, 10**6) if "rank" in table else None,
        repeat=_whole(item, table, "repeat", 1, 1000) if "repeat" in table else 1,
        seconds=_seconds(item, table["seconds"]) if "seconds" in table else kind.seconds,
        code=_whole(item, table, "code", 1, 255) if "code" in table else kind.code,
    )


def _whole(item: str, table: Mapping[str, Any], name: str, least: int, most: int) -> int:
    value = table[name]
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ScheduleError(f"fault {item!r}: {name} should be a whole number from {least} to {most}, not {value!r}")
    return value


def _seconds(item: str, value: object) -> float:
    number = not isinstance(value, bool) and isinstance(value, (int, float))
    if not number or not math.isfinite(value) or not 0 < value <= _FOR_EVER:  # type: ignore[arg-type, operator]
        raise ScheduleError(f"fault {item!r}: seconds should be above 0 and at most {_FOR_EVER:g}, not {value!r}")
    return float(value)  # type: ignore[arg-type]
