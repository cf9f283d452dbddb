"""sdist and wheel: all that belongs into them, nothing else, and metadata that an index takes."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path
from typing import TYPE_CHECKING

import places
import pytest
from markdown_it import MarkdownIt
from packaging.metadata import Metadata
from pathspec import GitIgnoreSpec
from trove_classifiers import classifiers

from headway._version import __version__
from headway.cli import COMMANDS

if TYPE_CHECKING:
    from collections.abc import Iterator


COLLECTED = ("tests/contract/test_readme.py", "tests/exporter/test_sidecar.py", "tests/instrumentation/test_cli.py")
"""Of different folders; reading all takes as long as a small run of training."""


@pytest.fixture(scope="session")
def tree(archives: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, unpacked."""
    return places.unpacked(archives[0], tmp_path_factory.mktemp("sdist"))


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a source tree but those that `.gitignore` names, by its path; links are followed."""
    ignored = GitIgnoreSpec.from_lines([".git", *(places.ROOT / ".gitignore").read_text().splitlines()])

    def walk() -> Iterator[Path]:
        for parent, folders, files in os.walk(folder, followlinks=True):
            below = Path(parent).relative_to(folder)
            folders[:] = [name for name in folders if not ignored.match_file(f"{below / name}/")]
            yield from (below / name for name in files if not ignored.match_file(below / name))

    return {str(path): (folder / path).read_bytes() for path in walk()}


def test_the_sdist_is_the_whole_tree(tree: Path) -> None:
    """Tests, Makefile, manifests, pictures: what is missing there cannot be made, tested or deployed by who has only the archive."""
    there, here = contents(tree), contents(places.ROOT)
    there.pop("PKG-INFO"), here.pop("PKG-INFO", None)
    assert {*there} == {*here}
    assert [path for path, content in here.items() if there[path] != content] == []
    assert {"Makefile", "tests/conftest.py", ".ci/run", "exporter/Containerfile"} <= {*there}


def test_the_sdist_makes_the_same_wheel(tree: Path, archives: tuple[Path, Path], tmp_path: Path) -> None:
    """Byte for byte, whoever builds it."""
    (wheel,) = places.built(tree, tmp_path, "wheel")
    assert wheel.name == archives[1].name
    assert wheel.read_bytes() == archives[1].read_bytes()


def test_the_readmes_commands_are_understood_in_the_sdist(tree: Path) -> None:
    """`make demo` and `make test` know their way, and pytest finds tests and their helpers in the archive alone."""
    for target, program in (("demo", "headway demo"), ("test", "pytest")):
        said = subprocess.run(["make", "--dry-run", target], cwd=tree, capture_output=True, text=True, check=True)
        assert "pip install" in said.stdout
        assert program in said.stdout
    paths = os.pathsep.join([*(str(tree / folder) for folder in places.PACKAGES.values()), *sys.path[1:]])
    command = [sys.executable, "-m", "pytest", "--collect-only", "--quiet", "-p", "no:cacheprovider", *COLLECTED]
    found = subprocess.run(
        command,
        cwd=tree,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert found.returncode == 0, found.stdout
    assert {line.partition("::")[0] for line in found.stdout.splitlines() if "::" in line} == {*COLLECTED}


def test_the_wheel_holds_the_packages_and_nothing_else(archives: tuple[Path, Path]) -> None:
    """Every template, style sheet, table and `py.typed`, beside the code; no tests, no manifests."""
    with zipfile.ZipFile(archives[1]) as wheel:
        there = {name: wheel.read(name) for name in wheel.namelist() if ".dist-info/" not in name}
    here = {
        f"{package}/{path}": content
        for package, folder in places.PACKAGES.items()
        for path, content in contents(places.ROOT / folder / package).items()
    }
    assert there == here
    assert [package for package in places.PACKAGES if f"{package}/py.typed" not in there] == []
    assert len({Path(name).suffix for name in there}) > 5


def test_an_index_takes_the_metadata(archives: tuple[Path, Path]) -> None:
    """Every field is valid, every classifier known, extras are those that commands ask for, and nothing is needed without one."""
    raw = metadata(archives[1])
    found = Metadata.from_email(raw, validate=True)
    assert (found.name, str(found.version)) == ("headway", __version__)
    assert found.license_expression == "Apache-2.0"
    assert {*(found.classifiers or [])} <= classifiers
    asked = {extra for command in COMMANDS.values() for extra in (command.extra or "").split(",") if extra}
    assert asked <= {*(found.provides_extra or [])}
    assert [
        str(one) for one in found.requires_dist or [] if one.marker is None or one.marker.evaluate({"extra": ""})
    ] == []


def test_an_index_can_show_the_readme(archives: tuple[Path, Path]) -> None:
    """It is there as Markdown, whole, and becomes a page with its headings and blocks."""
    message = message_from_bytes(metadata(archives[1]))
    assert message["Description-Content-Type"] == "text/markdown"
    text = message.get_payload(decode=True).decode()
    assert text.strip() == (places.ROOT / "README.md").read_text().strip()
    page = MarkdownIt("commonmark").enable("table").render(text)
    assert "<h1>Headway</h1>" in page
    assert page.count("<pre>") == sum(line.startswith("```") for line in text.splitlines()) / 2


def metadata(wheel: Path) -> bytes:
    """As it lies in the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(f"headway-{__version__}.dist-info/METADATA")
