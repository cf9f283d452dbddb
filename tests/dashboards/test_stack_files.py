"""The files for containers: valid by the programs that read them where those are here, and true to the rest of the repository."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import blocks
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from headway_alerts.config import load
from headway_alerts.routing import alertmanager

if TYPE_CHECKING:
    from collections.abc import Iterator

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

ROOT: Final = Path(__file__).parents[2]
STACK: Final = ROOT / "dashboards" / "stack"
COMPOSE: Final[dict[str, Any]] = yaml.safe_load((STACK / "compose.yaml").read_text())
SERVICES: Final[dict[str, dict[str, Any]]] = COMPOSE["services"]
DOCKER_COMPOSE: Final = shutil.which("docker-compose", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
PROVISIONING: Final = "/etc/grafana/provisioning"


def read(name: str) -> Any:
    """A YAML file of the stack."""
    return yaml.safe_load((STACK / name).read_text())


def said(*command: str, folder: Path = STACK) -> str:
    """What a program prints; it must agree."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def mounts(service: str) -> Iterator[tuple[str, str, bool]]:
    """Source, target, and whether it is read-only."""
    for text in SERVICES[service].get("volumes", []):
        source, target, *mode = text.split(":")
        yield source, target, mode == ["ro"]


def inside(service: str, path: str) -> Path:
    """The file of the repository that a service sees under this path."""
    for source, target, _ in mounts(service):
        if source.startswith(".") and Path(path).is_relative_to(target):
            return (STACK / source / Path(path).relative_to(target)).resolve()
    raise AssertionError(f"{service} does not see {path}")


@pytest.mark.skipif(DOCKER_COMPOSE is None, reason="docker-compose is not installed")
def test_compose_itself_understands_it() -> None:
    """By Docker's own parser, which knows every key and refuses others."""
    assert DOCKER_COMPOSE is not None
    understood = json.loads(said(DOCKER_COMPOSE, "--file", "compose.yaml", "config", "--format", "json"))
    assert understood["services"].keys() == SERVICES.keys()
    assert understood["services"]["trainer"]["command"][:3] == ["headway", "run", "--"]
    assert understood["services"]["sidecar"]["environment"]["HEADWAY_RUN"] == "compose"


def test_the_readme_starts_it_and_knows_where_it_is() -> None:
    """Compose is given this file, and Grafana answers at the address that is named, on this machine only."""
    (command,) = blocks.only(
        "tests/dashboards/test_stack_files.py::test_the_readme_starts_it_and_knows_where_it_is"
    ).commands()
    assert shlex.split(command, comments=True) == [
        "docker",
        "compose",
        "-f",
        "dashboards/stack/compose.yaml",
        "up",
        "--build",
    ]
    (port,) = re.findall(r"http://localhost:(\d+)", command)
    assert SERVICES["grafana"]["ports"] == [f"127.0.0.1:{port}:{port}"]


def test_every_image_is_pinned() -> None:
    """Nothing changes from one day to the next: a full version of each image, and of every package in ours."""
    images = {one["image"] for one in SERVICES.values()} - {"headway:dev"}
    images |= set(re.findall(r"^FROM (\S+)", (STACK / "Containerfile").read_text(), re.MULTILINE))
    assert len(images) == 4
    for image in images:
        assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+[\w.-]*", image), image
    assert all(re.fullmatch(r"[a-z0-9-]+==[\w.]+", line) for line in constraints())


def constraints() -> list[str]:
    """Lines of the file, without comments."""
    lines = (STACK / "constraints.txt").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


def test_the_image_has_what_its_programs_need() -> None:
    """Each package that the extras ask for is pinned, to a version that they admit; and all that is copied exists."""
    pinned = dict(line.split("==") for line in constraints())
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for text in (*extras["exporter"], *extras["trainer"]):
        asked = Requirement(text)
        assert asked.name in pinned, f"{asked.name}: not in constraints.txt"
        assert asked.specifier.contains(Version(pinned[asked.name])), text
    container = (STACK / "Containerfile").read_text()
    assert "PIP_CONSTRAINT=" in container
    copied = [name for line in re.findall(r"^COPY (.+) \S+$", container, re.MULTILINE) for name in line.split()]
    ignored = (STACK / "Containerfile.dockerignore").read_text().splitlines()
    for name in copied:
        assert (ROOT / name).exists(), name
        assert f"!{name}" in ignored, f"{name}: hidden from the build"


def test_the_build_finds_its_files() -> None:
    """Context and file are relative to the compose file, and to the context."""
    for service in SERVICES.values():
        if "build" in service:
            context = (STACK / service["build"]["context"]).resolve()
            assert context == ROOT
            assert (context / service["build"]["dockerfile"]).is_file()


def test_what_is_mounted_exists_and_is_read_only() -> None:
    """Docker makes an empty folder of a source that is not there, and says nothing."""
    for name in SERVICES:
        for source, target, read_only in mounts(name):
            if source.startswith("."):
                assert (STACK / source).exists(), source
                assert read_only, target
            else:
                assert source in COMPOSE["volumes"], source
    assert ("journal", "/run/headway", True) in mounts("sidecar")
    assert ("journal", "/run/headway", False) in mounts("trainer")
    assert SERVICES["trainer"]["environment"]["HEADWAY_DIR"] == "/run/headway"


def test_nothing_listens_to_the_world() -> None:
    """Prometheus and Alertmanager know no passwords, and Grafana lets everybody read."""
    published = [port for one in SERVICES.values() for port in one.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_understands_its_configuration(tmp_path: Path) -> None:
    """With the rules at the place where the container has them."""
    for source, target, _ in mounts("prometheus"):
        if source.startswith("."):
            place = tmp_path / Path(target).relative_to("/etc/prometheus")
            (shutil.copytree if (STACK / source).is_dir() else shutil.copy)(STACK / source, place)
    assert "3 rule files found" in said("promtool", "check", "config", "prometheus.yaml", folder=tmp_path)


@pytest.mark.skipif(shutil.which("amtool") is None, reason="amtool is not installed")
def test_alertmanager_understands_its_configuration() -> None:
    """It is the example, with the receiver's address in it."""
    assert "SUCCESS" in said("amtool", "check-config", "alertmanager.yaml")
    assert (STACK / "alertmanager.yaml").read_text() == alertmanager(load(STACK / "routing.yaml"))


def test_everybody_is_called_by_name_and_port() -> None:
    """A service that is renamed must not vanish from the others' configuration."""
    config = read("prometheus.yaml")
    (alertmanagers,) = config["alerting"]["alertmanagers"][0]["static_configs"]
    (scraped,) = config["scrape_configs"][0]["static_configs"]
    urls = [one["url"] for one in read("grafana/datasources/headway.yaml")["datasources"]]
    assert alertmanagers["targets"] == ["alertmanager:9093"]
    assert scraped["targets"] == [f"sidecar{SERVICES['sidecar']['environment']['HEADWAY_LISTEN']}"]
    assert urls == ["http://prometheus:9090", "http://alertmanager:9093"]
    assert load(STACK / "routing.yaml").webhook_base_url == f"http://receiver{SERVICES['receiver']['command'][-1]}"
    assert {"alertmanager", "sidecar", "prometheus", "receiver"} <= SERVICES.keys()


def test_grafana_finds_its_sources() -> None:
    """The dashboards choose the default Prometheus; it knows its Alertmanager, and how often it scrapes."""
    document = read("grafana/datasources/headway.yaml")
    assert document["apiVersion"] == 1
    prometheus, alerts = document["datasources"]
    assert (prometheus["type"], prometheus["isDefault"], alerts["type"]) == ("prometheus", True, "alertmanager")
    assert prometheus["jsonData"]["alertmanagerUid"] == alerts["uid"]
    assert prometheus["jsonData"]["timeInterval"] == read("prometheus.yaml")["global"]["scrape_interval"]
    assert prometheus["jsonData"]["prometheusVersion"] == SERVICES["prometheus"]["image"].partition(":v")[2]
    assert alerts["jsonData"]["implementation"] == "prometheus"
    assert all(one["access"] == "proxy" for one in (prometheus, alerts))
    assert inside("grafana", f"{PROVISIONING}/datasources/headway.yaml").is_file()


def test_grafana_finds_its_dashboards() -> None:
    """Those that are committed, the home page among them."""
    document = read("grafana/dashboards/headway.yaml")
    assert document["apiVersion"] == 1
    (provider,) = document["providers"]
    assert provider["type"] == "file"
    assert inside("grafana", f"{PROVISIONING}/dashboards/headway.yaml").is_file()
    assert inside("grafana", provider["options"]["path"]) == ROOT / "dashboards" / "json"
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert json.loads(inside("grafana", home).read_text())["uid"]
    for path in (ROOT / "dashboards" / "json").iterdir():
        assert json.loads(path.read_text())["templating"]["list"][0]["type"] == "datasource"


def test_the_trainer_breaks_in_ways_that_there_are() -> None:
    """Its options are the trainer's own."""
    words = SERVICES["trainer"]["command"]
    options = words[words.index("headway_trainer") + 1 :]
    shown = said(sys.executable, "-m", "headway", "train", *options, "--print_config", folder=ROOT)
    assert yaml.safe_load(shown)["faults"]["schedule"] == options[options.index("--faults") + 1 :]
