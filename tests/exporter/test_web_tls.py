"""The port behind TLS and client certificates: a real sidecar, openssl's certificates, and Prometheus itself as the client."""

from __future__ import annotations

import contextlib
import socket
import ssl
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import bcrypt
import pytest
from certificates import Authority, authority, client, needs_openssl
from secured import basic, mutual, needs_prometheus, prometheus, scrape_configs, until_up, web_config
from sidecar_process import sidecar

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sidecar_process import Sidecar

pytestmark = needs_openssl
REFUSED = (ssl.SSLError, urllib.error.URLError, ConnectionError)


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return authority(tmp_path / "ours")


@contextlib.contextmanager
def guarded(folder: Path, file: Path, context: ssl.SSLContext | None = None) -> Iterator[Sidecar]:
    """A sidecar with this configuration, and how to speak with it."""
    with sidecar(folder / "journals", "--web-config", str(file)) as exporter:
        exporter.context = context
        yield exporter


def test_only_a_certificate_of_the_authority_is_let_in(tmp_path: Path, ours: Authority) -> None:
    """Whoever has none, an expired one or somebody else's gets no byte of an answer, and is counted."""
    theirs = authority(tmp_path / "theirs")
    strangers = [None, ours.issue("late", days=-1), theirs.issue("stranger")]
    with guarded(tmp_path, web_config(tmp_path, tls_server_config=mutual(ours))) as exporter:
        for stranger in strangers:
            exporter.context = client(ours, stranger)
            with pytest.raises(REFUSED):
                exporter.get("/metrics")
        exporter.context = client(ours, ours.issue("friend"))
        assert exporter.get("/healthz")[::2] == (200, "ok\n")
        assert exporter.value("headway_requests_refused_total", reason="tls") == len(strangers)
        assert exporter.stop() == (0, "")


def test_a_server_of_another_authority_is_seen_through(tmp_path: Path, ours: Authority) -> None:
    """What the sidecar shows really is its certificate, and nothing is answered in the clear."""
    ours.issue("server")
    config = {"cert_file": "ours/server.crt", "key_file": "ours/server.key"}
    with guarded(tmp_path, web_config(tmp_path, tls_server_config=config)) as exporter:
        exporter.context = client(authority(tmp_path / "theirs"))
        with pytest.raises(REFUSED):
            exporter.get("/metrics")
        exporter.scheme, exporter.context = "http", None
        with pytest.raises((*REFUSED, OSError)):
            exporter.get("/metrics")
        exporter.scheme, exporter.context = "https", client(ours)
        assert exporter.get("/healthz")[0] == 200


@pytest.mark.parametrize("san", ["DNS:prometheus.monitoring", "URI:spiffe://c/prometheus", "IP:fd00::1", "email:a@b.c"])
def test_only_named_clients_are_let_in(tmp_path: Path, ours: Authority, san: str) -> None:
    """The cluster's authority signs for everybody: a name in the certificate tells Prometheus from the rest."""
    allowed = {"client_allowed_sans": ["prometheus.monitoring", "spiffe://c/prometheus", "fd00::1", "a@b.c"]}
    file = web_config(tmp_path, tls_server_config=mutual(ours, **allowed))
    with guarded(tmp_path, file, client(ours, ours.issue("right", san))) as exporter:
        assert exporter.get("/healthz")[0] == 200
        exporter.context = client(ours, ours.issue("wrong", "DNS:prometheus.monitoring.evil,DNS:a@b.c.d"))
        with pytest.raises(REFUSED):
            exporter.get("/healthz")


def test_versions_and_ciphers_are_those_of_the_file(tmp_path: Path, ours: Authority) -> None:
    """What is asked for is what is spoken: a weaker suite or an older version finds no common ground."""
    ours.issue("server")
    suites = ["TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"]
    config = {"cert_file": "ours/server.crt", "key_file": "ours/server.key", "max_version": "TLS12"}
    curve = {"cipher_suites": suites, "curve_preferences": ["CurveP384"]}
    with guarded(tmp_path, web_config(tmp_path, tls_server_config={**config, **curve})) as exporter:

        def spoken(ciphers: str, newest: ssl.TLSVersion, curve: str = "") -> tuple[str | None, str]:
            context = client(ours)
            context.set_ciphers(ciphers)
            if curve:
                context.set_ecdh_curve(curve)
            context.maximum_version = newest
            with (
                socket.create_connection(exporter.address, timeout=10) as plain,
                context.wrap_socket(plain, server_hostname="localhost") as wrapped,
            ):
                cipher = wrapped.cipher()
                assert cipher is not None
                return wrapped.version(), cipher[0]

        ours_cipher = ("TLSv1.2", "ECDHE-ECDSA-AES256-GCM-SHA384")
        assert spoken("ALL", ssl.TLSVersion.TLSv1_3) == ours_cipher
        with pytest.raises(ssl.SSLError):
            spoken("ECDHE-ECDSA-AES128-GCM-SHA256", ssl.TLSVersion.TLSv1_2)
        with pytest.raises(ssl.SSLError):
            spoken("ALL", ssl.TLSVersion.TLSv1_2, "prime256v1")


def test_certificates_and_keys_may_stand_in_the_file_itself(tmp_path: Path, ours: Authority) -> None:
    """The format allows it, and the key then never has a file of its own."""
    pair = ours.issue("server")
    inline = {"cert": pair.cert.read_text(), "key": pair.key.read_text(), "client_ca": ours.cert.read_text()}
    file = web_config(tmp_path, tls_server_config={**inline, "client_auth_type": "RequireAndVerifyClientCert"})
    with guarded(tmp_path, file, client(ours, ours.issue("friend"))) as exporter:
        assert exporter.get("/healthz")[0] == 200


def test_new_certificates_are_in_force_without_a_restart(tmp_path: Path, ours: Authority) -> None:
    """cert-manager renews them while training runs for weeks; half of a pair lets nobody in until the other half is there."""
    server, friend = ours.issue("server"), ours.issue("friend")
    with guarded(tmp_path, web_config(tmp_path, tls_server_config=mutual(ours)), client(ours, friend)) as exporter:
        first = certificate(exporter)
        old_key = server.key.read_bytes()
        ours.issue("server")
        assert certificate(exporter) != first
        new_key = server.key.read_bytes()
        server.key.write_bytes(old_key)
        with pytest.raises(REFUSED):
            exporter.get("/healthz")
        server.key.unlink()
        with pytest.raises(REFUSED):
            exporter.get("/healthz")
        server.key.write_bytes(new_key)
        assert exporter.get("/healthz")[0] == 200
        theirs = authority(tmp_path / "theirs")
        ours.cert.write_bytes(theirs.cert.read_bytes())
        with pytest.raises(REFUSED):
            exporter.get("/healthz")
        code, errors = exporter.stop()
    assert code == 0
    assert "server.key" in errors
    assert "nobody is answered" in errors
    assert "Traceback" not in errors


def test_a_file_that_breaks_lets_nobody_in_until_it_is_mended(tmp_path: Path, ours: Authority) -> None:
    """As with Prometheus' own exporters: a typing error must not keep a password alive that was to be taken away, nor open the door."""
    good = mutual(ours)
    file = web_config(tmp_path, tls_server_config=good)
    with guarded(tmp_path, file, client(ours, ours.issue("friend"))) as exporter:
        for broken in ({"tls_server_config": {**good, "no_such_key": 1}}, {"rate_limit": {"interval": 0}}):
            web_config(tmp_path, **broken)
            for scheme, context in (("https", exporter.context), ("http", None)):
                with pytest.raises((*REFUSED, OSError)):
                    type(exporter)(exporter.process, exporter.address, scheme, context).get("/healthz")
        web_config(tmp_path, tls_server_config=good)
        assert exporter.get("/healthz")[0] == 200
        assert exporter.value("headway_requests_refused_total", reason="configuration") == 4


@needs_prometheus
def test_prometheus_scrapes_by_certificate_and_password(tmp_path: Path, ours: Authority) -> None:
    """The client that matters, with its own configuration, and no warning about what it gets."""
    friend = ours.issue("friend")
    hashed = bcrypt.hashpw(b"a long secret", bcrypt.gensalt(10)).decode()
    file = web_config(tmp_path, tls_server_config=mutual(ours), basic_auth_users={"prometheus": hashed})
    with guarded(tmp_path, file, client(ours, friend)) as exporter:
        assert exporter.get("/metrics")[0] == 401
        exporter.headers = basic("prometheus", "a long secret")
        assert exporter.get("/metrics")[0] == 200
        scrape = scrape_configs(exporter.address, ours, friend, "prometheus", "a long secret")
        with prometheus(tmp_path, scrape) as address:
            assert until_up(address) == {"health": "up", "lastError": ""}


def certificate(exporter: Sidecar) -> bytes | None:
    """What the sidecar shows now."""
    assert exporter.context is not None
    with (
        socket.create_connection(exporter.address, timeout=10) as plain,
        exporter.context.wrap_socket(plain, server_hostname="localhost") as wrapped,
    ):
        return wrapped.getpeercert(binary_form=True)
