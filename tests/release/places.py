"""Headway as others get it: the archives built from this tree, and environments that have a wheel and nothing of the tree."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path
from typing import TYPE_CHECKING, Final

from packaging.requirements import Requirement

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = {
    "headway": "instrumentation",
    "headway_alerts": "alerts",
    "headway_dashboards": "dashboards",
    "headway_exporter": "exporter",
    "headway_trainer": "trainer",
}
"""Each package and the folder that it lies in."""


def built(source: Path, target: Path, *kinds: str) -> list[Path]:
    """The archives of a source tree, made by its build backend alone: nothing is downloaded."""
    options = [word for kind in kinds for word in ("--target", kind)]
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(target), *options]
    subprocess.run(command, cwd=source, check=True, capture_output=True, text=True, timeout=120)
    return [next(target.glob({"sdist": "*.tar.gz", "wheel": "*.whl"}[kind])) for kind in kinds]


def unpacked(sdist: Path, folder: Path) -> Path:
    """The one folder that an sdist consists of."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (tree,) = folder.iterdir()
    return tree


@dataclass(frozen=True)
class Place:
    """An environment with a wheel of Headway's; `more` holds what its extras need."""

    folder: Path
    more: Path | None = None

    @property
    def packages(self) -> Path:
        """Where the wheel is."""
        (found,) = self.folder.glob("lib/python3.*/site-packages")
        return found

    def run(
        self, *words: str | Path, cwd: Path, timeout: float = 120, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """What a program of this environment makes of these words."""
        command = [self.folder / "bin" / words[0], *words[1:]]
        return subprocess.run(
            command,
            cwd=cwd,
            env=self.environment(**environ),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def environment(self, **more: str) -> dict[str, str]:
        """The variables of a process here: none that leads to the tree or to another environment."""
        inherited = {
            name: text
            for name, text in os.environ.items()
            if not name.startswith(("PYTHON", "VIRTUAL_ENV", "HEADWAY_"))
        }
        own = {"PATH": f"{self.folder / 'bin'}:/usr/local/bin:/usr/bin:/bin"}
        own |= {} if self.more is None else {"PYTHONPATH": str(self.more)}
        return inherited | own | more

    def having(self, *extras: str) -> Place:
        """The same with what these extras need and no other: those distributions of the tests' own environment, linked.

        pip would download them again (torch: 200 MB), and would not notice that one is needed and not asked for.
        """
        more = self.folder.parent / f"{self.folder.name}-{'-'.join(extras)}"
        (own,) = distributions(name="headway", path=[str(self.packages)])
        if not more.exists():
            more.mkdir()
            for needed in closure(own, extras):
                link(needed, more)
        return Place(self.folder, more)


def place(folder: Path, wheel: Path) -> Place:
    """A new environment with the wheel and nothing else."""
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", folder], check=True, capture_output=True, timeout=120
    )
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "install", "--no-deps", "--no-index", "--no-compile", wheel],
        env={name: text for name, text in os.environ.items() if name != "PYTHONPATH"},
        check=True,
        capture_output=True,
        timeout=120,
    )
    return Place(folder)


def closure(of: Distribution, extras: Iterable[str]) -> Iterator[Distribution]:
    """What a distribution with these extras needs, and what that needs, each once."""
    seen: set[tuple[str, str]] = set()
    waiting = [(of, extra) for extra in ("", *extras)]
    while waiting:
        one, extra = waiting.pop()
        for text in one.requires or []:
            needed = Requirement(text)
            if needed.marker is not None and not needed.marker.evaluate({"extra": extra}):
                continue
            for wanted in ("", *needed.extras):
                if (needed.name.lower(), wanted) not in seen:
                    seen.add((needed.name.lower(), wanted))
                    found = distribution(needed.name)
                    waiting.append((found, wanted))
                    yield found


def link(one: Distribution, packages: Path) -> None:
    """The distribution's files appear in another folder of packages; programs and headers stay where they are."""
    for file in one.files or []:
        top = file.parts[0]
        if top == ".." or top == "__pycache__" or (packages / top).exists():
            continue
        (packages / top).symlink_to(Path(str(one.locate_file(top))))
