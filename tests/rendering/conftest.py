"""One live Prometheus for the tests of this folder, which are in one file so that one process runs them: its story takes a minute."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from live import PROMETHEUS, Live, live

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def alive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A faulty run that has been watched for a minute."""
    if PROMETHEUS is None:
        pytest.skip("prometheus is not installed")
    with live(tmp_path_factory.mktemp("live")) as found:
        yield found
