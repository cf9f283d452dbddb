"""A stand-in for the Kubernetes API: HTTPS with a certificate of its own, the folder of a service account, and answers in its form."""

from __future__ import annotations

import json
import ssl
import subprocess
import threading
import time
from dataclasses import dataclass, field
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

TOKEN = "a-token-of-this-test"  # noqa: S105
NAMESPACE = "training"
POD = "llama-3-abcde"
RECORDED = Path(__file__).parent / "pods"
"""Answers in the API's form, one file a pod, with what Kubernetes' documents say of each sort of end."""


def recorded(which: str, /, **metadata: Any) -> dict[str, Any]:
    """A recorded pod."""
    pod: dict[str, Any] = json.loads((RECORDED / f"{which}.json").read_text())
    pod["metadata"].update(metadata)
    return pod


def stamp(wall: float) -> str:
    """A time as the API writes it."""
    return datetime.fromtimestamp(wall, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def service_account(folder: Path) -> Path:
    """What is mounted in a pod, with a certificate for the loopback address."""
    folder.mkdir(exist_ok=True)
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=kubernetes "
        "-addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:TRUE "
        "-addext keyUsage=critical,keyCertSign,digitalSignature"
    )
    subprocess.run(
        [*command.split(), "-keyout", folder / "server.key", "-out", folder / "ca.crt"], check=True, capture_output=True
    )
    (folder / "token").write_text(TOKEN)
    (folder / "namespace").write_text(NAMESPACE)
    return folder


@dataclass(frozen=True)
class Reply:
    """An answer in every detail."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b"{}"
    seconds: float = 0.0
    """Between two bytes, from the first one of the headers on."""


@dataclass
class Api:
    """What is answered, which may change at any time; `asked` are the paths and questions so far."""

    folder: Path
    pods: list[dict[str, Any]] = field(default_factory=list)
    broken: dict[str, int | bytes | threading.Event | Reply] = field(default_factory=dict)
    """By verb, get or list: a status, a body of any sort, an event to wait for, or all of an answer."""
    asked: list[tuple[str, dict[str, list[str]]]] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)
    token: str = TOKEN
    """The one that is accepted."""
    port: int = 0

    @property
    def environ(self) -> dict[str, str]:
        """What Kubernetes and the downward API give a container."""
        return {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(self.port),
            "POD_NAME": POD,
            "POD_NAMESPACE": NAMESPACE,
            "HEADWAY_SERVICE_ACCOUNT": str(self.folder),
        }

    def __enter__(self) -> Api:
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                reply = api.answer(self.path, self.headers.get("Authorization", ""))
                lines = {"Content-Type": "application/json", "Content-Length": str(len(reply.body)), **reply.headers}
                head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
                whole = f"HTTP/1.1 {reply.status} Told\r\n{head}\r\n".encode() + reply.body
                if not reply.seconds:
                    self.wfile.write(whole)
                for number in range(len(whole) if reply.seconds else 0):
                    self.wfile.write(whole[number : number + 1])
                    time.sleep(reply.seconds)

            def log_message(self, *_: Any) -> None:
                """Silent."""

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: Any) -> None:
                """A client that hangs up is part of the tests."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.certify(self.folder)
        self._server.socket = self._context.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for hung in self.broken.values():
            if isinstance(hung, threading.Event):
                hung.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def certify(self, folder: Path) -> None:
        """Shows the certificate of that folder to whoever connects from now on."""
        self._context.load_cert_chain(folder / "ca.crt", folder / "server.key")

    def answer(self, path: str, authorization: str) -> Reply:
        parts = urlsplit(path)
        options = parse_qs(parts.query)
        self.asked.append((parts.path, options))
        self.tokens.add(authorization)
        base = f"/api/v1/namespaces/{NAMESPACE}/pods"
        if authorization.lower() != f"bearer {self.token}":
            return _status(401)
        broken = self.broken.get("list" if parts.path == base else "get")
        if isinstance(broken, threading.Event):
            broken.wait(60)
        if isinstance(broken, Reply):
            return broken
        if isinstance(broken, int):
            return _status(broken)
        if isinstance(broken, bytes):
            return Reply(body=broken)
        if parts.path == base:
            return _found({"kind": "PodList", "items": self._chosen(options)})
        found = next((pod for pod in self.pods if f"{base}/{pod['metadata']['name']}" == parts.path), None)
        return _status(404) if found is None else _found(found)

    def _chosen(self, options: dict[str, list[str]]) -> list[dict[str, Any]]:
        wanted = dict(pair.split("=", 1) for pair in options["labelSelector"][0].split(","))
        return [pod for pod in self.pods if wanted.items() <= pod["metadata"]["labels"].items()]


def _status(code: int) -> Reply:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}
    return Reply(code, body=json.dumps(body).encode())


def _found(answer: dict[str, Any]) -> Reply:
    return Reply(body=json.dumps(answer).encode())
