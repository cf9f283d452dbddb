"""The README's example of a secured port: the two files as they stand there, a real sidecar and a real Prometheus."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
import readme
from certificates import authority, client, needs_openssl
from secured import basic, needs_prometheus, prometheus, until_up
from sidecar_process import sidecar

if TYPE_CHECKING:
    from pathlib import Path

SECTION = readme.README.read_text().partition("### Securing the port")[2].partition("\n#")[0]


@needs_openssl
@needs_prometheus
def test_the_secured_port_works_as_it_stands_there(tmp_path: Path) -> None:
    """Copied beside certificates of those names, it is scraped; without certificate or password nothing is to be had."""
    web, scrape = re.findall(r"```yaml\n(.*?)```", SECTION, re.DOTALL)
    ours = authority(tmp_path / "ours")
    tls, own = ours.issue("tls"), ours.issue("prometheus")
    for file in (ours.cert, tls.cert, tls.key, own.cert, own.key):
        file.rename(tmp_path / file.name)
    (tmp_path / "password").write_text("example\n")
    (tmp_path / "web.yml").write_text(web)
    with sidecar(tmp_path / "journals", "--web-config", str(tmp_path / "web.yml")) as exporter:
        scrape = scrape.replace("localhost:9838", f"{exporter.address[0]}:{exporter.address[1]}")
        with prometheus(tmp_path, scrape) as address:
            assert until_up(address) == {"health": "up", "lastError": ""}
        moved = type(ours)(tmp_path)
        exporter.context = client(moved, type(own)(tmp_path / own.cert.name, tmp_path / own.key.name))
        assert exporter.get("/metrics")[0] == 401
        exporter.headers = basic("prometheus", "example")
        assert exporter.get("/metrics")[0] == 200
        exporter.context = client(moved)
        with pytest.raises(OSError, match=r".+"):
            exporter.get("/metrics")
