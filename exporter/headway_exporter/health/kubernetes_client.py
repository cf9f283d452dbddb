"""Questions to the Kubernetes API about pods, of which no answer, however slow, long or wrong, can hold or fill whoever asks."""

from __future__ import annotations

import gc
import importlib
import json
import socket
import threading
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from headway_exporter.health.instruments import AbsentError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CONNECT_SECONDS: Final = 3.0
ANSWER_SECONDS: Final = 5.0
WHOLE_SECONDS: Final = 12.0
"""For a whole answer: one that comes byte by byte is never late by `ANSWER_SECONDS`."""
MOST_WAIT_SECONDS: Final = 300.0
"""How long the API is believed when it asks to be left alone."""
MOST_BYTES: Final = 8 << 20
"""Of a list."""
MOST_POD_BYTES: Final = 2 << 20
"""Of one pod: the API's own database takes no more than 1.5 MiB of one object."""
_FORBIDDEN: Final = 403
_NOT_FOUND: Final = 404
_BUSY: Final = frozenset({429, 503})
_OK: Final = 200


class KubernetesError(Exception):
    """The API did not answer the question; the message says what it was and what to do."""


class ForbiddenError(KubernetesError):
    """The service account has not the right that the question needs."""


class NoSuchPodError(KubernetesError):
    """There is no such pod, or none any more."""


class BusyError(KubernetesError):
    """The API asks to be left alone for a while.

    Attributes:
        seconds: how long.
    """

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


class Api:
    """Questions to the API, by the official client's connections: its service account's token and its certificate as they are now.

    Not by its classes for each kind of object: they take 20 MB more, and refuse what a newer or a broken API says.
    """

    def __init__(self, service_account: Path, environ: Mapping[str, str]) -> None:
        """Nothing is asked yet.

        Raises:
            AbsentError: the client is not installed.
            KubernetesError: the service account is not what it should be.
        """
        configuration, rest, incluster = _client()
        token, certificate = str(service_account / "token"), str(service_account / "ca.crt")
        try:
            incluster.InClusterConfigLoader(token, certificate, environ=environ).load_and_set(configuration)
            self._connections: Any = rest.RESTClientObject(configuration).pool_manager
        except Exception as error:
            raise KubernetesError(f"the service account in {service_account} cannot be used: {error}") from error
        self._configuration: Any = configuration
        self._timeout = importlib.import_module("urllib3").Timeout(connect=CONNECT_SECONDS, read=ANSWER_SECONDS)
        self._hanger = _Hanger(self._connections)

    @property
    def authorization(self) -> dict[str, str]:
        """The header with the token."""
        setting = self._configuration.auth_settings()["BearerToken"]
        return {setting["key"]: setting["value"]}

    def pods(self, namespace: str, name: str = "", **options: str) -> Mapping[str, Any]:
        """One pod, or without a name those of the namespace that `options` choose.

        Raises:
            ForbiddenError: the right to ask is missing.
            NoSuchPodError: there is none of that name.
            BusyError: it is to be asked later.
            KubernetesError: any other answer, or none.
        """
        path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods" + (f"/{quote(name, safe='')}" if name else "")
        url = f"{self._configuration.host}{path}" + (f"?{urlencode(options)}" if options else "")
        question = f"get pod {name}" if name else f"list pods {options.get('labelSelector', '')}"
        most = MOST_POD_BYTES if name else MOST_BYTES
        try:
            status, wait, body = self._get(url, most)
        except Exception as error:
            raise KubernetesError(f"{question}: {_reason(error)}") from error
        if status in _BUSY and wait:
            raise BusyError(f"{question}: HTTP {status}, to be asked again later", wait)
        return _document(status, body, question, most)

    def _get(self, url: str, most: int) -> tuple[int, float, bytes]:
        """Status, seconds after which to ask again, and the beginning of the body; no other address is asked than this one."""
        headers = {"Accept": "application/json", **self.authorization}
        with self._hanger:
            response = self._connections.request(
                "GET", url, headers=headers, timeout=self._timeout, retries=False, redirect=False, preload_content=False
            )
            try:
                body = response.read(most, decode_content=False)  # nobody asked for a packed one
                return response.status, _seconds(response.headers.get("Retry-After", "")), body
            finally:
                response.close()  # one that was read to its end is back in the pool already


class _Hanger:
    """A context in which an exchange is hung up on when it takes too long in all; for one thread at a time."""

    def __init__(self, connections: Any) -> None:
        """`connections` is a urllib3 pool manager without any connection yet."""
        pools = dict(connections.pool_classes_by_scheme)
        pools["https"] = type("_Pool", (pools["https"],), {"ConnectionCls": self._kind(pools["https"].ConnectionCls)})
        connections.pool_classes_by_scheme = pools
        self._open: Any = None
        self._hung_up = False

    def _kind(self, base: Any) -> type:
        """Its kind of connection, which tells which one is in use."""

        def request(connection: Any, *given: Any, **named: Any) -> Any:
            self._open = connection
            return base.request(connection, *given, **named)

        return type("_Connection", (base,), {"request": request})

    def __enter__(self) -> None:
        self._open, self._hung_up = None, False
        self._timer = threading.Timer(WHOLE_SECONDS, self._hang_up)
        self._timer.daemon = True
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        if self._hung_up:
            raise TimeoutError(f"no whole answer within {WHOLE_SECONDS:g} s")

    def _hang_up(self) -> None:
        connection = getattr(self._open, "sock", None)
        self._hung_up = True
        if connection is not None:
            try:
                socket.socket.shutdown(connection, socket.SHUT_RDWR)  # under TLS's nose: it would wait for a farewell
            except OSError:
                return  # it is closed already


def _client() -> tuple[Any, Any, Any]:
    """The official client's configuration, and its modules `rest` and `incluster_config`.

    Raises:
        AbsentError: it is not installed.
    """
    global _imported
    try:
        configuration = importlib.import_module("kubernetes.client.configuration").Configuration()
        rest = importlib.import_module("kubernetes.client.rest")
        incluster = importlib.import_module("kubernetes.config.incluster_config")
    except ImportError as error:
        raise AbsentError("its client is not installed: pip install 'headway[kubernetes]'") from error
    if not _imported:
        gc.collect()
        gc.freeze()  # what was imported stays: no full garbage collection is to walk through it while a scrape waits
        _imported = True
    return configuration, rest, incluster


_imported = False


def _seconds(told: str) -> float:
    """Of a header Retry-After; 0: it says none, or a date."""
    return min(float(told), MOST_WAIT_SECONDS) if told.isascii() and told.isdecimal() else 0.0


def _document(status: int, body: bytes, question: str, most: int) -> Mapping[str, Any]:
    if status == _FORBIDDEN:
        raise ForbiddenError(f"HTTP {status}")
    if status != _OK:
        kind = NoSuchPodError if status == _NOT_FOUND else KubernetesError
        raise kind(f"{question}: HTTP {status}{_ADVICE.get(status, '')}")
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise KubernetesError(f"{question}: the answer is no JSON, or longer than {most >> 20} MiB") from error
    if not isinstance(found, dict):
        raise KubernetesError(f"{question}: the answer is no JSON object")
    return found


_ADVICE: Final = {
    401: ", the service account's token is not accepted",
    404: ", no such pod: POD_NAME and POD_NAMESPACE must be this pod's, by the downward API",
}


def _reason(error: Exception) -> str:
    """The innermost reason in one line, without addresses of objects in memory."""
    inner = getattr(error, "reason", None) or error
    words = " ".join((str(inner).partition(": ")[2] or str(inner)).split())
    return f"{type(inner).__name__} {words}"[:200]
