"""A secured port and its clients: configuration files, headers, and Prometheus itself."""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import socket
import subprocess
import time
import urllib.request
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from certificates import Authority, Certificate

PROMETHEUS: Final = shutil.which("prometheus")
needs_prometheus = pytest.mark.skipif(
    PROMETHEUS is None, reason="the test wants Prometheus (Debian: apt install prometheus)"
)


def web_config(folder: Path, **sections: Any) -> Path:
    """A file as people write it; JSON is YAML."""
    file = folder / "web.yml"
    fresh = folder / "web.yml.new"
    fresh.write_text(json.dumps({f"{name}": content for name, content in sections.items()}))
    return fresh.replace(file)


def mutual(ours: Authority, **more: Any) -> dict[str, Any]:
    """Server and clients have certificates of the same authority; paths are relative to the file's folder."""
    ours.issue("server")
    files = {"cert_file": "ours/server.crt", "key_file": "ours/server.key", "client_ca_file": "ours/ca.crt"}
    return {**files, "client_auth_type": "RequireAndVerifyClientCert", **more}


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def scrape_configs(address: tuple[str, int], trusted: Authority, own: Certificate, user: str, password: str) -> str:
    """Prometheus' configuration of one job, with certificate and password."""
    job = {
        "job_name": "headway",
        "scheme": "https",
        "tls_config": {"ca_file": str(trusted.cert), "cert_file": str(own.cert), "key_file": str(own.key)},
        "basic_auth": {"username": user, "password": password},
        "static_configs": [{"targets": [f"{address[0]}:{address[1]}"]}],
    }
    return f"scrape_configs: [{json.dumps(job)}]\n"


@contextlib.contextmanager
def prometheus(folder: Path, scrape: str) -> Iterator[str]:
    """One that scrapes by these `scrape_configs`, each second."""
    assert PROMETHEUS is not None
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    config = folder / "prometheus.yml"
    config.write_text(f"global: {{scrape_interval: 1s}}\n{scrape}")
    options = (f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}", f"--web.listen-address={address}")
    with (folder / "log").open("w") as log, subprocess.Popen([PROMETHEUS, *options], stdout=log, stderr=log) as process:
        try:
            yield f"http://{address}"
        finally:
            process.terminate()
            process.wait(30)


def until_up(address: str) -> dict[str, str]:
    """What Prometheus says of its target, once it is up; after two minutes whatever it is."""
    target: dict[str, str] = {}
    deadline = time.monotonic() + 120
    while target.get("health") != "up" and time.monotonic() < deadline:
        time.sleep(0.2)
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"{address}/api/v1/targets", timeout=5) as answer,  # noqa: S310 - our own
        ):
            for found in json.load(answer)["data"]["activeTargets"]:
                target = {name: found[name] for name in ("health", "lastError")}
    return target
