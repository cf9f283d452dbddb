"""A Prometheus of one's own, on loopback: filled first, then given rules."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

PROMETHEUS: Final = shutil.which("prometheus")
PROMTOOL: Final = shutil.which("promtool")


class Server:
    """Answers at `address`; its rules are `rules.yaml` in `folder`."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes], address: str) -> None:
        self.address = address
        self._folder = folder
        self._process = process

    def give(self, rules: str, every: str) -> None:
        """Takes these rules, and only these, from now on; `every`: their interval where they have none."""
        (self._folder / "rules.yaml").write_text(rules)
        configure(self._folder, every)
        request = urllib.request.Request(f"{self.address}/-/reload", b"")  # noqa: S310 - our own
        with urllib.request.urlopen(request, timeout=60):  # noqa: S310 - our own
            pass

    def get(self, path: str, **parameters: str) -> Any:
        """What its interface answers.

        Raises:
            RuntimeError: an error.
        """
        url = f"{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=120) as answer:  # noqa: S310 - our own
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise RuntimeError(f"{path} {parameters}: {error.read().decode()}") from error

    def groups(self) -> list[dict[str, Any]]:
        """Of rules, with what their last evaluation took."""
        found: list[dict[str, Any]] = self.get("rules")["groups"]
        return found

    def query(self, expr: str) -> list[dict[str, Any]]:
        """Its value now."""
        found: list[dict[str, Any]] = self.get("query", query=expr)["result"]
        return found

    def processor_seconds(self) -> float:
        """That it has used so far, in all of its threads."""
        spent = 0
        for task in Path(f"/proc/{self._process.pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                spent += int((task / "schedstat").read_text().split()[0])
        return spent / 1e9

    def resident_bytes(self) -> int:
        """Its memory."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


@contextlib.contextmanager
def prometheus(folder: Path) -> Iterator[Server]:
    """A server without rules whose database is `folder / "data"`, ended at the end."""
    assert PROMETHEUS is not None
    (folder / "rules.yaml").write_text("groups: []")
    configure(folder, "15s")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [
        PROMETHEUS,
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--web.enable-lifecycle",
        "--web.enable-remote-write-receiver",
    ]
    log = folder / "prometheus.log"
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            _wait(f"http://{address}/-/ready", process, log)
            yield Server(folder, process, f"http://{address}")
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def configure(folder: Path, every: str) -> None:
    """Writes its configuration, which names the rules."""
    document = {"global": {"evaluation_interval": every}, "rule_files": [str(folder / "rules.yaml")]}
    (folder / "prometheus.yaml").write_text(json.dumps(document))


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(600):
        if process.poll() is not None:
            raise RuntimeError(f"Prometheus ended with {process.returncode}: {log.read_text()[-2000:]}")
        with contextlib.suppress(urllib.error.URLError, OSError), urllib.request.urlopen(url, timeout=5):  # noqa: S310 - our own
            return
        time.sleep(0.1)
    raise RuntimeError(f"Prometheus is not ready after a minute: {log.read_text()[-2000:]}")
