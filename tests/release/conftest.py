"""The archives, built once for each test process, and a place that has the wheel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import places
import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Source archive and wheel of this tree."""
    sdist, wheel = places.built(places.ROOT, tmp_path_factory.mktemp("archives"), "sdist", "wheel")
    return sdist, wheel


@pytest.fixture(scope="session")
def installed(archives: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> places.Place:
    """A Python environment in which `pip install headway` was run, without any extra."""
    return places.place(tmp_path_factory.mktemp("environments") / "headway", archives[1])
