"""For all tests: in CI a test that could run must not be skipped, and what a lane is for is what runs."""

from __future__ import annotations

import importlib.metadata
import os
import signal
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Iterator

# How long an example takes is the machine's affair, which may have more to do.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

FORBID_SKIPS = "HEADWAY_TEST_FORBID_SKIPS"
"""Set to 1 where everything that the tests need can be installed: a skip is then a failure."""

NVRX = "HEADWAY_TEST_NVRX"
"""The version of NVRx that the tests are meant to run on (`.ci/lane`)."""


def pytest_configure() -> None:
    """A lane that runs on another version than it says would protect nothing; and tests run alike wherever they are started."""
    asked, found = (
        os.environ.get(NVRX),
        importlib.metadata.version("nvidia-resiliency-ext") if NVRX in os.environ else None,
    )
    if asked != found:
        raise pytest.UsageError(f"{NVRX} asks for NVRx {asked}, installed is {found}")
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
        if (
            signal.getsignal(number) is signal.SIG_IGN
        ):  # a shell's background job; what tests start would ignore them too
            signal.signal(number, handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Turn a skip into a failure, but for tests that need a GPU."""
    report = yield
    if report.skipped and os.environ.get(FORBID_SKIPS) == "1" and item.get_closest_marker("gpu") is None:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"skipped although {FORBID_SKIPS}=1: {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Likewise where a whole file is skipped, for want of a package."""
    report = yield
    if report.skipped and os.environ.get(FORBID_SKIPS) == "1":
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid}: skipped although {FORBID_SKIPS}=1: {report.longrepr}"
    return report


@pytest.fixture(autouse=True)
def no_launcher_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests speak for themselves: nothing of a job that the test run itself may be part of reaches them."""
    for name in list(os.environ):
        if name.startswith(("HEADWAY_", "TORCHELASTIC_", "SLURM_")) and name != FORBID_SKIPS:
            monkeypatch.delenv(name)
