"""`headway doctor --prometheus`: a real Prometheus with the committed rules, and what is in its place."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from doctored import Found, doctor
from journal_folder import RUN
from sidecar_process import sidecar

from headway.doctor.checks_prometheus import prometheus
from headway.doctor.gather import Answer
from headway_exporter.routes import text
from headway_exporter.server import Server

pytest.importorskip("headway_alerts", reason="needs the rules")
from alertmanager_process import alertmanager_of
from live import PROMETHEUS, prometheus_of

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "alerts" / "alertmanager.yaml"


@pytest.mark.skipif(PROMETHEUS is None, reason="needs prometheus (Debian: apt-get install prometheus)")
def test_a_prometheus_with_our_rules(tmp_path: Path) -> None:
    """Rules and the run's sidecar are counted; a run that nobody scrapes is told."""
    (tmp_path / "journals").mkdir()
    with sidecar(tmp_path / "journals") as exporter, prometheus_of(tmp_path, [exporter]) as url:
        deadline = time.monotonic() + 30
        while (found := _asked(tmp_path, url, RUN).one("prometheus"))[0] != "ok":
            assert time.monotonic() < deadline, found
        assert found[1].endswith("rules; sidecars of the run that are scraped: 1")
        other = _asked(tmp_path, url, "other")
    status, what, _ = other.one("alertmanager")
    assert (status, "to no Alertmanager" in what) == ("warn", True)
    assert other.one("prometheus")[:2] == ("warn", f"{url} has no series of the run other")


def test_what_is_no_prometheus(tmp_path: Path) -> None:
    """Nobody, and a server of another kind: the address, and why it could not be asked."""
    assert doctor("--dir", str(tmp_path)).one("prometheus")[0] == "skip"
    status, what, _ = _asked(tmp_path, "http://127.0.0.1:1", RUN).one("prometheus")
    assert (status, "Connection refused" in what) == ("fail", True)
    for body in (
        "<html>",
        "[]",
        "{}",
        json.dumps({"data": {"groups": [], "result": 5}}),
        json.dumps({"data": {"groups": [3]}}),
    ):
        server = Server(
            ("127.0.0.1", 0), dict.fromkeys(("/api/v1/rules", "/api/v1/query"), lambda _, body=body: text(body))
        )
        try:
            found = _asked(tmp_path, server.url, RUN)
        finally:
            server.stop()
        assert (found.code, found.one("prometheus")[0]) == (1, "fail")
        assert "cannot be asked" in found.one("prometheus")[1]


PLAIN = """
route: {receiver: everybody}
receivers: [{name: everybody}]
"""
"""As of somebody who has alerts of his own."""
ROUTES_ONLY = """
route:
  receiver: everybody
  routes: [{receiver: everybody, match_re: {alertname: "Headway.+"}}]
receivers: [{name: everybody}]
inhibit_rules: [{source_matchers: [severity="critical"], target_matchers: [severity="warning"]}]
"""


@pytest.mark.parametrize(
    ("config", "status", "words"),
    [
        (EXAMPLE.read_text(), "ok", "mutes those that follow"),
        (PLAIN, "warn", "all go to everybody"),
        (ROUTES_ONLY, "warn", "mutes none"),
    ],
    ids=["ours", "plain", "routes"],
)
def test_an_alertmanager_and_its_routes(config: str, status: str, words: str, tmp_path: Path) -> None:
    """A real one, asked for what is in force in it: with our example, without a route for our alerts, and without inhibitions."""
    file = tmp_path / "alertmanager.yaml"
    file.write_text(config)
    with alertmanager_of(file, tmp_path) as url:
        told = doctor("--dir", str(tmp_path), "--alertmanager", url).one("alertmanager")
    assert (told[0], words in told[1], bool(told[2])) == (status, True, status != "ok"), told


def test_what_is_no_alertmanager(tmp_path: Path) -> None:
    """Nobody, and a server of another kind."""
    assert doctor("--dir", str(tmp_path)).one("alertmanager")[0] == "skip"
    for body in ("<html>", "[]", "{}", '{"config": {"original": 5}}'):
        server = Server(("127.0.0.1", 0), {"/api/v2/status": lambda _, body=body: text(body)})  # type: ignore[misc]
        try:
            found = doctor("--dir", str(tmp_path), "--alertmanager", server.url)
        finally:
            server.stop()
        assert (found.code, found.one("alertmanager")[1].endswith("as an Alertmanager does")) == (1, True)
    assert (
        "Connection refused"
        in doctor("--dir", str(tmp_path), "--alertmanager", "http://127.0.0.1:1").one("alertmanager")[1]
    )


@pytest.mark.parametrize(
    ("facts", "status", "words"),
    [
        ({"rules": 0, "failing": [], "sidecars": 1}, "fail", "none of our rules"),
        ({"rules": 9, "failing": ["HeadwayRecovered"], "sidecars": 1}, "fail", "HeadwayRecovered"),
        ({"rules": 9, "failing": [], "sidecars": 0}, "warn", "no series"),
        ({"rules": 9, "failing": [], "sidecars": 2}, "ok", "scraped: 2"),
    ],
)
def test_rules_that_lack_or_fail(facts: dict[str, object], status: str, words: str) -> None:
    """Each with what to do."""
    found = prometheus("http://prometheus:9090", "mine", Answer(facts))
    assert (found.status, words in found.what, bool(found.do)) == (status, True, status != "ok")


def _asked(folder: Path, url: str, run: str) -> Found:
    return doctor("--dir", str(folder), "--run", run, "--listen", "127.0.0.1:19838", "--prometheus", url)
