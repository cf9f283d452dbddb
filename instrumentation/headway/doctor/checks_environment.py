"""Findings about `HEADWAY_*` variables."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final

from headway.doctor.findings import Finding
from headway.environment import run_name_problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

KNOWN: Final = frozenset({
    "HEADWAY_DIR", "HEADWAY_RUN", "HEADWAY_POD_INDEX", "HEADWAY_PODS", "HEADWAY_SLOT", "HEADWAY_NODE", "HEADWAY_ATTEMPT",
    "HEADWAY_SAMPLE_SECONDS", "HEADWAY_LISTEN", "HEADWAY_WEB_CONFIG", "HEADWAY_SILENCE_SECONDS", "HEADWAY_STATE_DIR",
    "HEADWAY_CHECKPOINT_DIR", "HEADWAY_SYSFS_ROOT", "HEADWAY_LINGER_SECONDS", "HEADWAY_GPUS", "HEADWAY_KUBERNETES",
    "HEADWAY_SERVICE_ACCOUNT", "HEADWAY_THRESHOLDS", "HEADWAY_XID_TABLE", "HEADWAY_POD_SUPERVISOR_PID", "HEADWAY_STATUS_URL",
    "HEADWAY_STATUS_CA_FILE", "HEADWAY_STATUS_CERT_FILE", "HEADWAY_STATUS_KEY_FILE", "HEADWAY_STATUS_SERVER_NAME",
    "HEADWAY_STATUS_USER", "HEADWAY_STATUS_PASSWORD", "HEADWAY_STATUS_PASSWORD_FILE", "HEADWAY_RULES_CONFIG", "HEADWAY_RULES_OUT",
    "HEADWAY_RULES_FORMAT", "HEADWAY_RULES_SELECTOR", "HEADWAY_RULES_RUNBOOK_BASE_URL", "HEADWAY_RULES_DASHBOARD_BASE_URL",
    "HEADWAY_DASHBOARDS_OUT", "HEADWAY_DASHBOARDS_DATASOURCE", "HEADWAY_DASHBOARDS_SELECTOR",
})  # fmt: skip
_OWN_FAMILIES: Final = ("HEADWAY_TRAIN_", "HEADWAY_TEST_", "HEADWAY_SOAK_", "HEADWAY_FUZZ_")


def environment(names: Iterable[str], warnings: Iterable[str], run: str) -> Iterator[Finding]:
    """One finding for each trouble, or that there is none.

    Args:
        names: of all variables that are set.
        warnings: the identity's, of values that it ignored.
        run: the run's name.
    """
    troubles = [*_misspelt(names), *(Finding("environment", "warn", words, "correct it") for words in warnings)]
    problem = run_name_problem(run)
    if problem is not None:
        what, _, do = problem.partition(": ")
        troubles.append(Finding("environment", "fail", what, do))
    yield from troubles or [Finding("environment", "ok", "all HEADWAY_ variables that are set are known")]


def _misspelt(names: Iterable[str]) -> Iterator[Finding]:
    for name in sorted(names):
        if not name.startswith("HEADWAY_") or name in KNOWN or name.startswith(_OWN_FAMILIES):
            continue
        near = difflib.get_close_matches(name, KNOWN, 1)
        do = f"is {near[0]} meant?" if near else "unset it, or see the README's table of variables"
        yield Finding("environment", "warn", f"{name} is not a variable of Headway's, and has no effect", do)
