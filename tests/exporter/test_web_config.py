"""The web configuration file: what is in it is honoured or refused by name, and nothing is passed over."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bcrypt
import pytest
from certificates import authority, needs_openssl

from headway_exporter.web import tls
from headway_exporter.web.config import WebConfig, from_document, read
from headway_exporter.web.document import WebConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

HASH = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
FILES = {"cert_file": "a.crt", "key_file": "a.key"}
CA = {"client_ca_file": "ca.crt"}
VERIFY = {**CA, "client_auth_type": "RequireAndVerifyClientCert"}

ODD_TLS: list[tuple[Mapping[str, Any], str]] = [
    ({}, "tls_server_config: holds nothing"),
    ({"cert_file": "a"}, "tls_server_config.key_file: is missing"),
    ({"key_file": "a"}, "tls_server_config.cert_file: is missing"),
    ({**FILES, "cert": "x"}, "tls_server_config.cert: stands beside cert_file"),
    ({**FILES, "cert_flie": "x"}, "tls_server_config.cert_flie: unknown"),
    ({**FILES, "key_file": 7}, "tls_server_config.key_file: expected a text"),
    ({**FILES, "client_auth_type": "RequestClientCert"}, "tls_server_config.client_auth_type: RequestClientCert"),
    ({**FILES, "client_auth_type": "RequireAnyClientCert"}, "tls_server_config.client_auth_type: RequireAnyClientCert"),
    ({**FILES, "client_auth_type": "Maybe"}, "tls_server_config.client_auth_type: Maybe is none of"),
    ({**FILES, **CA}, "tls_server_config.client_auth_type: is missing"),
    ({**FILES, "client_auth_type": "VerifyClientCertIfGiven"}, "tls_server_config.client_ca_file: is missing"),
    ({**FILES, "client_allowed_sans": ["a"]}, "tls_server_config.client_allowed_sans: needs client_auth_type"),
    (
        {**FILES, **VERIFY, "client_auth_type": "VerifyClientCertIfGiven", "client_allowed_sans": ["a"]},
        "tls_server_config.client_allowed_sans: needs client_auth_type",
    ),
    ({**FILES, **VERIFY, "client_allowed_sans": []}, "tls_server_config.client_allowed_sans: expected a list"),
    ({**FILES, **VERIFY, "client_allowed_sans": "a"}, "tls_server_config.client_allowed_sans: expected a list"),
    ({**FILES, "min_version": "TLS11"}, "tls_server_config.min_version: TLS11 is not safe"),
    ({**FILES, "min_version": "TLS14"}, "tls_server_config.min_version: TLS14 is none of"),
    ({**FILES, "min_version": "TLS13", "max_version": "TLS12"}, "tls_server_config.max_version: TLS12 is older"),
    ({**FILES, "cipher_suites": ["TLS_INVENTED"]}, "tls_server_config.cipher_suites: TLS_INVENTED is none of"),
    ({**FILES, "cipher_suites": ["TLS_AES_128_GCM_SHA256"]}, "tls_server_config.cipher_suites: TLS_AES_128_GCM_SHA256"),
    ({**FILES, "cipher_suites": ["TLS_RSA_WITH_AES_128_CBC_SHA"]}, "tls_server_config.cipher_suites: TLS_RSA_WITH_AES"),
    ({**FILES, "curve_preferences": ["P-256"]}, "tls_server_config.curve_preferences: P-256 is none of"),
    ({**FILES, "curve_preferences": ["X25519", "CurveP256"]}, "tls_server_config.curve_preferences: more than one"),
    ({**FILES, "prefer_server_cipher_suites": "yes"}, "tls_server_config.prefer_server_cipher_suites: expected true"),
]
ODD: list[tuple[Any, str]] = [
    *(({"tls_server_config": section}, words) for section, words in ODD_TLS),
    (None, "the file holds nothing"),
    ([1], "the file is no mapping"),
    ({"tls_config": FILES}, "tls_config: unknown; known are tls_server_config"),
    ({7: FILES}, "7: unknown"),
    ({"basic_auth_users": None}, "basic_auth_users: holds nothing"),
    ({"basic_auth_users": {}}, "basic_auth_users: holds nothing"),
    ({"basic_auth_users": ["a"]}, "basic_auth_users: is no mapping"),
    ({"basic_auth_users": {"a": "secret"}}, "basic_auth_users.a: the password is no bcrypt hash"),
    ({"basic_auth_users": {"a": HASH[:-1]}}, "basic_auth_users.a: the password is no bcrypt hash"),
    ({"basic_auth_users": {"a": HASH.replace("$04$", "$20$")}}, "basic_auth_users.a: the cost of the hash is 20"),
    ({"basic_auth_users": {"a:b": HASH}}, "basic_auth_users.a:b: the name of a user"),
    ({"basic_auth_users": {5: HASH}}, "basic_auth_users.5: expected two texts"),
    ({"http_server_config": {"http2": True}}, "http_server_config.http2: HTTP/2 is not spoken"),
    ({"http_server_config": {"headers": {"X-Powered-By": "x"}}}, "http_server_config.headers.X-Powered-By: cannot"),
    ({"http_server_config": {"headers": {"X-Frame-Options": "no"}}}, "http_server_config.headers.X-Frame-Options: no"),
    (
        {"http_server_config": {"headers": {"X-XSS-Protection": "a\r\nSet-Cookie: b"}}},
        "http_server_config.headers.X-XSS-Protection: has characters",
    ),
    ({"http_server_config": {"http3": True}}, "http_server_config.http3: unknown"),
    ({"rate_limit": {"interval": "soon"}}, "rate_limit.interval: expected a duration"),
    ({"rate_limit": {"interval": "-1s"}}, "rate_limit.interval: expected a duration"),
    ({"rate_limit": {"interval": "1s"}}, "rate_limit.burst: expected a number of requests above 0"),
    ({"rate_limit": {"interval": "1s", "burst": True}}, "rate_limit.burst: expected a number"),
]


@pytest.mark.parametrize(("document", "words"), ODD, ids=[words for _, words in ODD])
def test_what_cannot_be_honoured_is_refused_by_name(document: Any, words: str) -> None:
    """A protection that somebody believes in and that is not there is worse than none."""
    with pytest.raises(WebConfigError) as raised:
        from_document(document, Path("/etc/headway"))
    assert str(raised.value).startswith(words)
    assert HASH not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_everything_that_can_be_honoured_is_read() -> None:
    """All keys at once, paths relative to the file, values as the format writes them."""
    tls_section = {
        **FILES,
        **VERIFY,
        "client_allowed_sans": ["prometheus"],
        "min_version": "TLS13",
        "cipher_suites": ["TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"],
        "curve_preferences": ["X25519"],
        "prefer_server_cipher_suites": False,
    }
    headers = {"Strict-Transport-Security": "max-age=60", "X-Frame-Options": "deny", "Content-Security-Policy": ""}
    document = {
        "tls_server_config": tls_section,
        "basic_auth_users": {"prometheus": HASH},
        "http_server_config": {"http2": False, "headers": headers},
        "rate_limit": {"interval": "1m0.5s", "burst": 3},
    }
    config = from_document(document, Path("/etc/headway"))
    assert config.tls is not None
    assert config.tls.files == tuple(Path("/etc/headway") / name for name in ("a.crt", "a.key", "ca.crt"))
    assert config.tls.client_allowed_sans == ("prometheus",)
    assert (config.tls.min_version, config.tls.max_version) == ("TLS13", "TLS13")
    assert config.tls.ciphers == ("ECDHE-RSA-CHACHA20-POLY1305",)
    assert (config.tls.curve, config.tls.prefer_server_cipher_suites) == ("X25519", False)
    assert config.users == {"prometheus": HASH}
    assert config.headers == {"Strict-Transport-Security": "max-age=60", "X-Frame-Options": "deny"}
    assert (config.interval_seconds, config.burst) == (60.5, 3)
    assert HASH not in repr(config)


def test_durations_are_those_of_go() -> None:
    """Numbers are nanoseconds, 0 switches the limit off."""
    found = [
        from_document({"rate_limit": {"interval": interval, "burst": 1}}, Path()).interval_seconds
        for interval in (0, "0", 500_000_000, "500ms", "1h", "1.5s", "10us")
    ]
    assert found == [0, 0, 0.5, 0.5, 3600, 1.5, pytest.approx(1e-5)]
    assert from_document({"http_server_config": {"http2": False}}, Path()) == WebConfig()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file holds nothing"),
        (b"a: [1", "is no YAML in line 1"),
        (b"\xff\xfe\x00", "is no YAML"),
        (b"a: !!python/object/apply:os.system [id]", "is no YAML in line 1"),
        (b"rate_limit: {interval: 0}\nrate_limit: {interval: 0}", "rate_limit: stands there twice"),
        (b"x: &a [*a]", "x: unknown"),
        (b"[" * 2_000, "is no YAML"),
        (b"#" * (1 << 21), "has more than 1048576 bytes"),
    ],
    ids=["empty", "cut off", "binary", "code", "twice", "in itself", "deep", "large"],
)
def test_a_file_that_is_no_such_file_is_said_so(tmp_path: Path, content: bytes, words: str) -> None:
    """Whatever lies there gets one line."""
    file = tmp_path / "web.yml"
    file.write_bytes(content)
    with pytest.raises(WebConfigError) as raised:
        read(file)
    assert str(raised.value).startswith(words)
    assert "\n" not in str(raised.value)


@needs_openssl
def test_certificates_that_do_not_fit_are_said_so(tmp_path: Path) -> None:
    """Before the first client finds out: which key of the file, which file, and what is wrong with it."""
    ours = authority(tmp_path / "ours")
    one, other = ours.issue("one"), ours.issue("other")
    locked = tmp_path / "locked.key"
    command = ["openssl", "pkcs8", "-topk8", "-passout", "pass:x", "-in", str(one.key), "-out", str(locked)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    (tmp_path / "empty").touch()
    files = {"cert_file": str(one.cert), "key_file": str(one.key)}
    for change, *words in (
        ({"key_file": str(other.key)}, "tls_server_config.key_file", "other.key", "belong"),
        ({"key_file": str(locked)}, "tls_server_config.key_file", "encrypted"),
        ({"cert_file": str(tmp_path / "none")}, "tls_server_config.cert_file", "No such file"),
        ({"cert_file": str(tmp_path)}, "tls_server_config.cert_file", "Is a directory"),
        ({"cert_file": str(tmp_path / "empty")}, "tls_server_config.key_file", "empty"),
        ({**VERIFY, "client_ca_file": str(tmp_path / "empty")}, "tls_server_config.client_ca_file", "no certificates"),
    ):
        config = from_document({"tls_server_config": {**files, **change}}, tmp_path)
        assert config.tls is not None
        with pytest.raises(WebConfigError) as raised:
            tls.context(config.tls)
        assert [word for word in words if word not in str(raised.value)] == []


def test_the_command_says_what_is_wrong_in_one_line(tmp_path: Path) -> None:
    """Exit 2, with the file and the key, before anything is served."""
    file = tmp_path / "web.yml"
    file.write_text("tls_server_config: {cert_file: a, key_file: b, cert_flie: c}")
    for path, words in ((file, "tls_server_config.cert_flie: unknown"), (tmp_path / "none", "cannot be read: No such")):
        command = [sys.executable, "-m", "headway", "exporter", "--web-config", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert f"{path}: {words}" in done.stderr


@pytest.mark.parametrize("missing", ["yaml", "bcrypt"])
def test_what_is_not_installed_is_said_so(tmp_path: Path, missing: str) -> None:
    """The sidecar without the file needs neither; with it, one line says what to install."""
    file = tmp_path / "web.yml"
    file.write_text(f'basic_auth_users: {{"a": "{HASH}"}}')
    program = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from headway_exporter import cli\n"
        f"cli.main(['--web-config', {str(file)!r}])"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"needs {missing}, which is not installed: pip install 'headway[exporter]'" in done.stderr
