"""Every selector, threshold, window and objective of the rules, in one frozen object.

The defaults suit runs of hours to months. A YAML file with the same names overrides them (`headway rules --config FILE`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import yaml

from headway_exporter.labels import LAYERS

if TYPE_CHECKING:
    from pathlib import Path

Severity = Literal["critical", "warning", "info"]
ObjectiveKind = Literal["training", "infrastructure"]

PHASES_WITH_BUDGET: Final = ("eval", "checkpoint_save", "checkpoint_load", "init")
"""States that may last long without a step, each with a budget of its own."""

_MATCHERS: Final = re.compile(r'\s*[a-zA-Z_]\w*\s*(=|!=|=~|!~)\s*"(\\.|[^"\\{}])*"\s*')

_ADDRESS: Final = re.compile(r"(?:https?://)?[^\s{}:`]*(?::\d+[^\s{}:`]*)?")


class ConfigError(ValueError):
    """The configuration cannot be used; the message says what to change."""


SCRAPES_IN_WINDOW_SECONDS: Final = 120
"""No rate is taken over less: it needs a few scrapes."""

RESET_MARGIN_SECONDS: Final = 120
"""A few scrapes."""


def duration(seconds: float) -> str:
    """Seconds as PromQL writes them: 300 is 5m."""
    whole = round(seconds)
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if whole and whole % size == 0:
            return f"{whole // size}{unit}"
    return f"{whole}s"


def reset_window(seconds: float) -> float:
    """Where to look for a reset that an increase over so many seconds must not count.

    Longer than the increase's own window: when the last sample from before the reset has left that one, the 0 after it is its first, and
    the way back up to the old count looks like news.
    """
    return seconds + RESET_MARGIN_SECONDS


@dataclass(frozen=True)
class BurnWindow:
    """Two windows that must both burn too fast: the long one says that it matters, the short one that it still goes on."""

    severity: Severity
    long_seconds: int
    short_seconds: int
    budget_share: float
    """Share of the period's whole error budget that the long window may burn, 0 to 1."""


DEFAULT_WINDOWS: Final = (
    BurnWindow("critical", 3_600, 300, 0.005),
    BurnWindow("critical", 21_600, 1_800, 0.02),
    BurnWindow("warning", 259_200, 21_600, 0.12),
)


@dataclass(frozen=True)
class Objective:
    """A goodput that a run should have over a period.

    Raises:
        ConfigError: a number is out of range, or a window could never fire or would fire although the objective is met.
    """

    kind: ObjectiveKind
    ratio: float
    """The goodput, 0 to 1. What is missing to 1 is the error budget."""
    period_seconds: int = 2_592_000
    windows: tuple[BurnWindow, ...] = DEFAULT_WINDOWS

    def __post_init__(self) -> None:
        if self.kind not in get_args(ObjectiveKind):
            raise ConfigError(f"objective {self.kind!r}: expected one of {', '.join(get_args(ObjectiveKind))}")
        if not 0 < self.ratio < 1:
            raise ConfigError(f"objective {self.kind}: ratio must lie between 0 and 1, not {self.ratio:g}")
        if not self.windows:
            raise ConfigError(f"objective {self.kind}: needs at least one window")
        for window in self.windows:
            self._check(window)

    @property
    def most_factor(self) -> float:
        """The burn rate of a run that makes no progress at all: 1 / (1 - ratio)."""
        return 1 / (1 - self.ratio)

    def factor(self, window: BurnWindow) -> float:
        """Burn rate at which the window burns its share of the budget: 1 burns the whole budget in just the period."""
        return window.budget_share * self.period_seconds / window.long_seconds

    def least_goodput(self, window: BurnWindow) -> float:
        """Goodput under which the window burns too fast, 0 to 1."""
        return round(1 - self.factor(window) * (1 - self.ratio), 4)

    def _check(self, window: BurnWindow) -> None:
        where = f"objective {self.kind}, window of {duration(window.long_seconds)}"
        if window.severity not in ("critical", "warning"):
            raise ConfigError(f"{where}: severity must be critical or warning, not {window.severity!r}")
        if not 0 < window.short_seconds < window.long_seconds:
            raise ConfigError(f"{where}: the short window must be shorter, not {duration(window.short_seconds)}")
        if window.short_seconds < SCRAPES_IN_WINDOW_SECONDS:
            raise ConfigError(f"{where}: the short window must be at least {duration(SCRAPES_IN_WINDOW_SECONDS)}")
        factor = self.factor(window)
        if not factor < self.most_factor:
            raise ConfigError(
                f"{where}: a burn factor of {factor:.3g} can never be reached, since a goodput of 0 burns at {self.most_factor:.3g} "
                f"when the objective is {self.ratio:.3g}; lower budget_share below {self._share(window, self.most_factor):.3g}"
            )
        if factor < 1:
            raise ConfigError(
                f"{where}: a burn factor of {factor:.3g} fires although the objective is met; "
                f"raise budget_share to at least {self._share(window, 1):.3g}"
            )

    def _share(self, window: BurnWindow, factor: float) -> float:
        return factor * window.long_seconds / self.period_seconds


def _frozen(**values: float) -> Mapping[str, float]:
    return MappingProxyType(values)


@dataclass(frozen=True)
class Config:
    """What the rules depend on. Durations in seconds, ratios from 0 to 1.

    Raises:
        ConfigError: a value cannot be used.
    """

    selector: str = ""
    """Label matchers for every metric, without braces, for example `cluster="a",job="headway"`."""
    witnesses: str = 'pod_index!~"[0-9]*[1-9][1-9]"'
    """Matchers for the pods that are asked for what every pod of a run sees alike; empty: all are.

    By default the first eleven of each hundred and every tenth of the others, so that no rack holds all of them, and those whose index is
    no number.
    """
    runbook_base_url: str = "alerts/runbooks"
    """Where that folder of the repository is published; `/<Alert>.md` is appended. By default its path in the repository."""
    dashboard_base_url: str = ""
    """Your Grafana's address; `/d/headway-postmortem?…` is appended. By default a path on whichever Grafana one has open."""

    memory_seconds: float = 600
    """How long the last word of a pod that is gone still counts."""
    note_seconds: float = 600
    """How long the note of a recovery stands, and how long ago a replay that diverged still fires."""
    keep_firing_seconds: float = 300
    """How long an alert outlives its condition: a missed scrape does not resolve it."""

    recovery_budget_seconds: Mapping[str, float] = field(
        default_factory=lambda: _frozen(in_process=300, launcher=900, orchestrator=1_800)
    )
    """By layer, from the first evidence of a failure to the first step."""
    phase_budget_seconds: Mapping[str, float] = field(
        default_factory=lambda: _frozen(eval=1_800, checkpoint_save=600, checkpoint_load=900, init=1_800)
    )
    """How long an evaluation, the blocking part of a save, a load or the start-up may last."""
    stalled_steps: float = 10
    """Steps, each as long as the median one, for which training may stand still."""
    stalled_floor_seconds: float = 120

    budget_low_ratio: float = 0.2
    """Share of a restart budget at which it is low."""
    budget_low_restarts: float = 1
    """Restarts left at which it is low, however small the budget."""
    budget_burn_hours: float = 6
    """A burn that would spend what is left within so long is too fast."""
    budget_burn_restarts: float = 2
    """Restarts within an hour that make a burn: a single one tells nothing."""

    stale_intervals: float = 3
    """Checkpoint intervals after which the newest durable checkpoint is stale."""
    stale_floor_seconds: float = 120
    failing_saves: float = 2
    """Failed or aborted saves since the last commit."""
    failing_window_seconds: float = 21_600
    """Where saves that failed are told from those that a single restart took with it."""
    backlog_depth: float = 2
    """Queued saves from which a growing queue is a backlog."""
    overlap_ratio: float = 0.8
    """Share of the checkpoint interval that a write may take."""

    trainer_silent_seconds: float = 120
    """Silence of trainers that live; they write a sample every 5 s."""
    sidecar_down_seconds: float = 300
    """How long a pod may be missing: it takes a while to start one again."""
    sidecar_memory_seconds: float = 3_600
    """How long a run whose pods are all gone is still missed."""

    throttled_seconds: float = 600
    memory_pressure_ratio: float = 0.95
    """Use of the container's memory limit."""
    storage_low_ratio: float = 0.1
    """Free share of a volume."""

    objectives: tuple[Objective, ...] = (Objective("training", 0.8),)

    wait_ratio: float = 1
    """By how much every `for` is shortened. Below 1 only to try the rules out: an alert shall wait out what mends itself."""
    notify_wait_seconds: float = 15
    """How long Alertmanager waits for more of a run before its first message."""
    notify_interval_seconds: float = 120
    """Between two messages on one run when something changed."""
    webhook_base_url: str = "http://127.0.0.1:9000"
    """Where the example's receivers are; `/page`, `/ticket` and `/channel` are appended."""

    def __post_init__(self) -> None:
        for name in ("selector", "witnesses"):
            matchers = getattr(self, name)
            if matchers and not all(_MATCHERS.fullmatch(one) for one in _split(matchers)):
                raise ConfigError(f'{name}: expected matchers like cluster="a",job=~"b.*", not {matchers!r}')
        for name in ("runbook_base_url", "dashboard_base_url"):
            if not _ADDRESS.fullmatch(getattr(self, name)):
                raise ConfigError(
                    f"{name}: expected an http or https address, or a path, without spaces and braces, not {getattr(self, name)!r}"
                )
        if not re.fullmatch(r"https?://[^\s{}]+", self.webhook_base_url):
            raise ConfigError(f"webhook_base_url: expected an http or https address, not {self.webhook_base_url!r}")
        _check_budgets("recovery_budget_seconds", self.recovery_budget_seconds, LAYERS)
        _check_budgets("phase_budget_seconds", self.phase_budget_seconds, PHASES_WITH_BUDGET)
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, (int, float)) and not 0 < value < math.inf:
                raise ConfigError(f"{one.name}: must be above 0, not {value}")
            if one.name.endswith("_ratio") and value > 1:
                raise ConfigError(f"{one.name}: must be at most 1, not {value}")
        kinds = [objective.kind for objective in self.objectives]
        if len(set(kinds)) != len(kinds):
            raise ConfigError("objectives: at most one of each kind")


def load(path: Path) -> Config:
    """The defaults, overridden by a YAML file.

    Raises:
        ConfigError: the file cannot be read, or says something that there is not.
    """
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: cannot be read: {' '.join(str(reason).split())}") from error
    try:
        return parse({} if document is None else document)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def parse(document: object) -> Config:
    """The defaults, overridden by a mapping of names to values."""
    values = _known(document, Config, "the configuration")
    for name in ("recovery_budget_seconds", "phase_budget_seconds"):
        if name in values:
            if not isinstance(values[name], Mapping):
                raise ConfigError(f"{name}: expected names with seconds")
            values[name] = MappingProxyType({**getattr(Config(), name), **values[name]})
    if "objectives" in values:
        values["objectives"] = tuple(_objective(one) for one in _list(values["objectives"], "objectives"))
    return replace(Config(), **values)


def _objective(document: object) -> Objective:
    values = _known(document, Objective, "an objective")
    if missing := {"kind", "ratio"} - values.keys():
        raise ConfigError(f"an objective needs {' and '.join(sorted(missing))}")
    if "windows" in values:
        values["windows"] = tuple(_window(one) for one in _list(values["windows"], "windows"))
    return Objective(**values)


def _window(document: object) -> BurnWindow:
    values = _known(document, BurnWindow, "a window")
    if missing := {one.name for one in fields(BurnWindow)} - values.keys():
        raise ConfigError(f"a window needs {', '.join(sorted(missing))}")
    return BurnWindow(**values)


def _known(document: object, kind: type, what: str) -> dict[str, Any]:
    """A mapping whose names are fields of `kind`, each with a value of the field's sort."""
    if not isinstance(document, Mapping):
        raise ConfigError(f"{what}: expected names with values, not {document!r:.60}")
    allowed = {one.name: str(one.type) for one in fields(kind)}
    for name, value in document.items():
        if name not in allowed:
            raise ConfigError(f"{what}: there is no {name!r}; known are {', '.join(allowed)}")
        _check_sort(str(name), value, allowed[name])
    return dict(document)


def _check_sort(name: str, value: object, sort: str) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if sort in ("float", "int") and not number:
        raise ConfigError(f"{name}: expected a number, not {value!r:.60}")
    if sort == "str" and not isinstance(value, str):
        raise ConfigError(f"{name}: expected a text, not {value!r:.60}")


def _list(value: object, what: str) -> list[object]:
    if not isinstance(value, list):
        raise ConfigError(f"{what}: expected a list, not {value!r:.60}")
    return value


def _check_budgets(name: str, budgets: Mapping[str, float], known: tuple[str, ...]) -> None:
    if set(budgets) != set(known):
        raise ConfigError(f"{name}: expected exactly {', '.join(known)}, not {', '.join(map(str, budgets))}")
    for key, value in budgets.items():
        _check_sort(f"{name}.{key}", value, "float")
        if not 0 < value < math.inf:
            raise ConfigError(f"{name}.{key}: must be above 0 seconds, not {value}")


def _split(selector: str) -> list[str]:
    """The matchers of a selector; a comma inside of quotes parts nothing."""
    return re.findall(r'(?:"(?:\\.|[^"\\])*"|[^,"])+', selector)
