"""The web configuration file, in the format that Prometheus and its exporters share, read into frozen objects.

The format: https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md. Whatever is in the file is honoured to the
letter or refused by name: an unknown key, one that stands there twice, and everything that Python's `ssl` cannot do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from headway_exporter.web.document import Section, WebConfigError, read_yaml, shown

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MOST_COST: Final = 15
"""Of a bcrypt hash: each step doubles the time, and 15 takes some two seconds."""

CLIENT_AUTH_TYPES: Final = ("NoClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert")
_UNVERIFIED: Final = ("RequestClientCert", "RequireAnyClientCert", "RequireClientCert")
VERSIONS: Final = ("TLS12", "TLS13")
CIPHERS: Final = MappingProxyType(
    {
        f"TLS_{exchange}_{key}_WITH_{name}": f"{exchange}-{key}-{openssl}"
        for exchange in ("ECDHE",)
        for key in ("ECDSA", "RSA")
        for name, openssl in (
            ("AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
            ("AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
            ("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305"),
            ("AES_128_CBC_SHA", "AES128-SHA"),
            ("AES_256_CBC_SHA", "AES256-SHA"),
        )
    }
)
"""Go's names of the suites of TLS 1.2 that it does not call insecure, and OpenSSL's."""
CURVES: Final = MappingProxyType(
    {"CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1", "X25519": "X25519"}
)
HEADERS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "Content-Security-Policy": (),
        "Strict-Transport-Security": (),
        "X-Content-Type-Options": ("nosniff",),
        "X-Frame-Options": ("deny", "sameorigin"),
        "X-XSS-Protection": (),
    }
)
"""Those that may be set, and to what where that is fixed."""

_BCRYPT: Final = re.compile(r"\$2[aby]\$(?P<cost>[0-9]{2})\$[./A-Za-z0-9]{53}")
_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)(ns|us|µs|ms|s|m|h)")
_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3_600.0}


@dataclass(frozen=True)
class Pem:
    """A certificate or a key: in a file, or in the configuration itself.

    Attributes:
        name: the key of the configuration that says so.
    """

    name: str
    file: Path | None
    content: str = field(default="", repr=False)


@dataclass(frozen=True)
class TlsConfig:
    """How TLS is spoken; names of ciphers and curves are OpenSSL's."""

    cert: Pem
    key: Pem
    client_auth_type: str = "NoClientCert"
    client_ca: Pem | None = None
    client_allowed_sans: tuple[str, ...] = ()
    min_version: str = "TLS12"
    max_version: str = "TLS13"
    ciphers: tuple[str, ...] = ()
    curve: str = ""
    prefer_server_cipher_suites: bool = True

    @property
    def files(self) -> tuple[Path, ...]:
        """What has to be read again when it changes."""
        pems = (self.cert, self.key, self.client_ca)
        return tuple(pem.file for pem in pems if pem is not None and pem.file is not None)


@dataclass(frozen=True)
class WebConfig:
    """All of the file.

    Attributes:
        users: name to bcrypt hash; empty: nobody is asked.
        headers: on every answer.
        interval_seconds: between two requests on average; 0: no limit.
        burst: requests that may come at once.
    """

    tls: TlsConfig | None = None
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)
    interval_seconds: float = 0.0
    burst: int = 0


def read(file: Path) -> WebConfig:
    """The configuration in a file; relative paths in it are relative to its folder.

    Raises:
        WebConfigError: it cannot be read or used.
        ModuleNotFoundError: PyYAML, or bcrypt where there are users, is not installed.
    """
    return from_document(read_yaml(file), file.absolute().parent)


def from_document(document: Any, folder: Path) -> WebConfig:
    """The configuration in a document as YAML reads it.

    Raises:
        WebConfigError: it cannot be used.
        ModuleNotFoundError: bcrypt is not installed, and there are users.
    """
    top = Section("", document)
    tls = _tls(top.section("tls_server_config"), folder)
    users = _users(top.section("basic_auth_users"))
    http = top.section("http_server_config")
    interval, burst = _rate(top.section("rate_limit"))
    top.end()
    return WebConfig(tls, users, _http(http), interval, burst)


def _tls(section: Section | None, folder: Path) -> TlsConfig | None:
    if section is None:
        return None
    client_ca = _pem(section, "client_ca", folder)
    auth, sans = section.text("client_auth_type", "NoClientCert"), section.texts("client_allowed_sans")
    oldest, newest = section.text("min_version", "TLS12"), section.text("max_version", "TLS13")
    ciphers, curves = section.texts("cipher_suites") or (), section.texts("curve_preferences") or ()
    config = TlsConfig(
        _needed(section, "cert", folder),
        _needed(section, "key", folder),
        auth,
        client_ca,
        sans or (),
        oldest,
        newest,
        tuple(_cipher(section, name) for name in ciphers),
        _curve(section, curves),
        section.take("prefer_server_cipher_suites", bool, "true or false", default=True),
    )
    section.end()
    _check_client_auth(section, auth, client_ca, sans)
    _check_versions(section, oldest, newest)
    return config


def _needed(section: Section, name: str, folder: Path) -> Pem:
    pem = _pem(section, name, folder)
    if pem is None:
        raise WebConfigError(f"{section.path(f'{name}_file')}: is missing")
    return pem


def _pem(section: Section, name: str, folder: Path) -> Pem | None:
    content, file = section.text(name), section.text(f"{name}_file")
    if content and file:
        raise WebConfigError(f"{section.path(name)}: stands beside {name}_file; one of both can be used")
    if file:
        return Pem(section.path(f"{name}_file"), folder / file)
    return Pem(section.path(name), None, content) if content else None


def _check_client_auth(section: Section, auth: str, client_ca: Pem | None, sans: tuple[str, ...] | None) -> None:
    where = section.path("client_auth_type")
    if auth in _UNVERIFIED:
        raise WebConfigError(
            f"{where}: {auth} asks for certificates and believes any, which cannot be done here: use RequireAndVerifyClientCert"
        )
    if auth not in CLIENT_AUTH_TYPES:
        raise WebConfigError(f"{where}: {shown(auth)} is none of {', '.join(CLIENT_AUTH_TYPES)}")
    if client_ca is None and auth != "NoClientCert":
        raise WebConfigError(f"{section.path('client_ca_file')}: is missing, and {auth} needs it")
    if client_ca is not None and auth == "NoClientCert":
        raise WebConfigError(f"{where}: is missing, and {client_ca.name} changes nothing without it")
    if sans is not None and auth != "RequireAndVerifyClientCert":
        raise WebConfigError(
            f"{section.path('client_allowed_sans')}: needs client_auth_type to be RequireAndVerifyClientCert"
        )


def _check_versions(section: Section, oldest: str, newest: str) -> None:
    for name, version in (("min_version", oldest), ("max_version", newest)):
        if version in ("TLS10", "TLS11"):
            raise WebConfigError(f"{section.path(name)}: {version} is not safe and not spoken here: TLS12 or TLS13")
        if version not in VERSIONS:
            raise WebConfigError(f"{section.path(name)}: {shown(version)} is none of {', '.join(VERSIONS)}")
    if oldest > newest:
        raise WebConfigError(f"{section.path('max_version')}: {newest} is older than min_version")


def _cipher(section: Section, name: str) -> str:
    where = section.path("cipher_suites")
    if name in ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"):
        raise WebConfigError(f"{where}: {name} belongs to TLS 1.3, whose suites cannot be chosen: leave it out")
    if name not in CIPHERS:
        raise WebConfigError(f"{where}: {shown(name)} is none of {', '.join(CIPHERS)}")
    return CIPHERS[name]


def _curve(section: Section, names: tuple[str, ...]) -> str:
    where = section.path("curve_preferences")
    for name in names:
        if name not in CURVES:
            raise WebConfigError(f"{where}: {shown(name)} is none of {', '.join(CURVES)}")
    if len(names) > 1:
        raise WebConfigError(f"{where}: more than one cannot be honoured here: name one, or leave it out for all")
    return CURVES[names[0]] if names else ""


def _users(section: Section | None) -> dict[str, str]:
    if section is None:
        return {}
    users = {}
    for name, hashed in section.items():
        where = section.path(shown(name))
        if ":" in name or not name:
            raise WebConfigError(f"{where}: the name of a user has at least one character and no colon")
        match = _BCRYPT.fullmatch(hashed)
        if match is None:
            raise WebConfigError(f"{where}: the password is no bcrypt hash, as `htpasswd -nBC 10` makes")
        if not 4 <= int(match["cost"]) <= MOST_COST:
            raise WebConfigError(f"{where}: the cost of the hash is {match['cost']}; expected 4 to {MOST_COST}")
        users[name] = hashed
    import bcrypt  # noqa: F401 - it is said at once, not to the first client, that it is not installed

    return users


def _http(section: Section | None) -> dict[str, str]:
    if section is None:
        return {}
    if section.take("http2", bool, "true or false", default=False):
        raise WebConfigError(f"{section.path('http2')}: HTTP/2 is not spoken here: leave it out, or say false")
    wanted = section.section("headers")
    section.end()
    if wanted is None:
        return {}
    headers = {name: value for name, value in wanted.items() if _check_header(wanted, name, value)}
    return {name: value for name, value in headers.items() if value}


def _check_header(section: Section, name: str, value: str) -> bool:
    if name not in HEADERS:
        raise WebConfigError(f"{section.path(shown(name))}: cannot be set; known are {', '.join(HEADERS)}")
    if HEADERS[name] and value not in HEADERS[name]:
        raise WebConfigError(f"{section.path(name)}: {shown(value)} is none of {', '.join(HEADERS[name])}")
    if not value.isascii() or not (value.isprintable() or not value):
        raise WebConfigError(f"{section.path(name)}: has characters that no header may have")
    return True


def _rate(section: Section | None) -> tuple[float, int]:
    if section is None:
        return 0.0, 0
    interval = section.take("interval", (str, int), "a duration, as 100ms or 1s", 0)
    burst = section.take("burst", int, "a number of requests", 0)
    section.end()
    seconds = interval * 1e-9 if isinstance(interval, int) else _duration(interval)
    if seconds is None or seconds < 0:
        raise WebConfigError(f"{section.path('interval')}: expected a duration, as 100ms or 1s")
    if burst < 0 or (seconds and burst < 1):
        raise WebConfigError(
            f"{section.path('burst')}: expected a number of requests above 0: nobody would ever be answered"
        )
    return seconds, burst


def _duration(text: str) -> float | None:
    """Seconds of a duration as Go writes them; None: it is none."""
    parts = _DURATION.findall(text)
    if text == "0":
        return 0.0
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)
