"""What the trainer says about itself when it starts, and the limits that are in force."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headway_exporter.labels import PHASES
from headway_exporter.slots import number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headway.events import Event

_TEXT_LIMIT: Final = 128
_PATH_LIMIT: Final = 4_096
_MOST_DECLARED: Final = 64
_SETTINGS: Final = (
    "total_steps",
    "checkpoint_interval_steps",
    "heartbeat_initial_seconds",
    "heartbeat_rank_seconds",
    "in_process_restart_budget",
)


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What was in force at one moment."""

    node: str
    world_size: int | None
    pods_expected: int | None
    versions: dict[str, str]
    settings: dict[str, float | str]


class RunInfo:
    """The newest word on each; texts are cut, unknown names left out."""

    def __init__(self) -> None:
        self.started_wall: float | None = None
        self.node = ""
        self.backend = ""
        self.torch_version = ""
        self.nvrx_version = ""
        self.checkpoint_dir = ""
        """Folder of the checkpoints, as the trainer sees it; empty: it does not say."""
        self.pods_expected: int | None = None
        self.world_size: int | None = None
        self.settings: dict[str, float] = {}
        self.budget_limit: dict[str, int] = {}
        self.budget_remaining: dict[str, int] = {}
        self.phase_gaps: dict[str, float] = {}
        self.versions: dict[str, str] = {}
        self.declared: dict[str, float | str] = {}
        """Settings as the trainer named them, whether this version knows them or not."""
        self._declared: tuple[tuple[tuple[str, object], ...], ...] = ((), ())  # asked for at every step

    def process_started(self, event: Event) -> None:
        """Takes what a `process_started` event tells."""
        fields = event.fields
        if self.started_wall is None:
            self.started_wall = event.wall
        self.node = _text(fields.get("node"), self.node)
        self.backend = _text(fields.get("backend"), self.backend)
        self.checkpoint_dir = fields.get("checkpoint_dir", self.checkpoint_dir)[:_PATH_LIMIT]
        versions = fields.get("versions", {})
        told = {name: text for name, text in versions.items() if isinstance(text, str)}
        self.versions = _with(self.versions, told)
        self._declared = tuple(self.declared.items()), tuple(self.versions.items())
        self.torch_version = _text(versions.get("torch"), self.torch_version)
        self.nvrx_version = _text(versions.get("nvrx"), self.nvrx_version)
        self.pods_expected = fields.get("pods_expected", self.pods_expected)
        self.world_size = fields.get("world_size", self.world_size)
        self.settings_seen(fields.get("settings", {}))
        limit = fields.get("restart_budget")
        if limit is not None:
            self.budget_limit["launcher"] = limit
            self.budget_remaining["launcher"] = max(0, limit - fields.get("cycle", 0))

    def moves_to(self, node: object) -> bool:
        """Whether a process that starts on `node` starts elsewhere than those before."""
        return self.node not in ("", _text(node, self.node))

    @property
    def losses_depend_on(self) -> tuple[object, ...]:
        """World size, configuration and code, as far as the trainer told: where one differs, the same step has another loss."""
        return self.world_size, self._declared

    @property
    def circumstances(self) -> Circumstances:
        """What is in force now."""
        settings, budget = dict(self.declared), self.budget_limit.get("launcher")
        if budget is not None:
            settings["restart_budget"] = budget
        return Circumstances(self.node, self.world_size, self.pods_expected, dict(self.versions), settings)

    def settings_seen(self, settings: Mapping[str, Any]) -> None:
        """What is in force, as far as this version knows the names."""
        plain = {name: value for name, value in settings.items() if isinstance(value, (int, float, str))}
        self.declared = _with(self.declared, plain)
        self._declared = tuple(self.declared.items()), tuple(self.versions.items())
        found = {name: number(settings.get(name)) for name in _SETTINGS}
        self.settings |= {name: value for name, value in found.items() if value is not None}

    def train_entered(self, fields: Mapping[str, Any]) -> None:
        """Every in-process restart takes one off that layer's budget, which a new process has whole."""
        self.settings_seen(fields.get("settings", {}))
        limit = self.settings.get("in_process_restart_budget")
        if limit is not None:
            self.budget_limit["in_process"] = int(limit)
            self.budget_remaining["in_process"] = max(0, int(limit) - fields.get("iteration", 0))

    def group_failed(self, fields: Mapping[str, Any]) -> None:
        """The launcher told its budget; the restart it announces is taken off."""
        if "restarts_limit" in fields:
            self.budget_limit["launcher"] = fields["restarts_limit"]
        if "restarts_left" in fields:
            self.budget_remaining["launcher"] = max(0, fields["restarts_left"] - 1)

    def phase_gaps_seen(self, gaps: Mapping[str, Any]) -> None:
        """Longest silences between heartbeats by phase."""
        for name, value in gaps.items():
            seconds = number(value)
            phase = name if name in PHASES else "other"
            if seconds is not None and seconds >= 0:
                self.phase_gaps[phase] = max(self.phase_gaps.get(phase, 0.0), seconds)


def _with(known: dict[str, Any], told: Mapping[str, Any]) -> dict[str, Any]:
    """What is known and what was told last, in the order of names; bounded."""
    cut = {_text(name, ""): _text(value, "") if isinstance(value, str) else value for name, value in told.items()}
    return dict(sorted((known | cut).items())[:_MOST_DECLARED])


def _text(value: object, otherwise: str) -> str:
    return value[:_TEXT_LIMIT].encode("utf-8", "replace").decode() if isinstance(value, str) else otherwise
