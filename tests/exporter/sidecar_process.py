"""A real sidecar process for the tests, scraped over HTTP."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator, Sequence

    from prometheus_client import Metric

IMPATIENT: Final = (str(Path(__file__).with_name("impatient_sidecar.py")),)
"""A program for `sidecar` that looks often and waits only a moment."""
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@dataclass
class Sidecar:
    """A running `headway_exporter`."""

    process: subprocess.Popen[str]
    address: tuple[str, int]
    scheme: str = "http"
    context: ssl.SSLContext | None = None
    """How TLS is spoken with it."""
    headers: dict[str, str] = field(default_factory=dict)
    """What each request says."""

    def get(self, path: str, method: str = "GET", accept: str = "") -> tuple[int, dict[str, str], str]:
        """Status, headers and body."""
        url = f"{self.scheme}://{self.address[0]}:{self.address[1]}{path}"
        request = urllib.request.Request(url, method=method, headers={"Accept": accept, **self.headers})  # noqa: S310 - loopback
        try:
            with urllib.request.urlopen(request, timeout=10, context=self.context) as answer:  # noqa: S310 - loopback
                return answer.status, dict(answer.headers), answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, dict(error.headers), error.read().decode()

    def families(self, accept: str = "") -> dict[str, Metric]:
        """The exposition, parsed."""
        status, _, body = self.get("/metrics", accept=accept)
        assert status == 200, body
        parse = parse_openmetrics if accept == OPENMETRICS else parse_text
        return {family.name: family for family in parse(body)}

    def samples(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """Values by name and labels, without those on every series."""
        return {
            (
                sample.name,
                tuple(sorted((name, text) for name, text in sample.labels.items() if name not in ("run", "pod_index"))),
            ): (sample.value)
            for family in self.families().values()
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float | None:
        """One value, None when there is no such series."""
        return self.samples().get((name, tuple(sorted(labels.items()))))

    def labels(self, name: str) -> list[dict[str, str]]:
        """Labels of each series of a metric, without those on every series."""
        return [dict(labels) for found, labels in self.samples() if found == name]

    def status(self) -> dict[str, Any]:
        """`/status.json`."""
        code, _, body = self.get("/status.json")
        assert code == 200, body
        document: dict[str, Any] = json.loads(body)
        return document

    def until(self, condition: Callable[[dict[str, Any]], object], what: str) -> dict[str, Any]:
        """The status once the condition holds of it."""
        deadline = time.monotonic() + 20
        while not condition(status := self.status()):
            assert time.monotonic() < deadline, f"{what}: not within 20 s: {json.dumps(status, indent=1)}"
            time.sleep(0.05)
        return status

    def counters(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """What may never step back."""
        ends = ("_total", "_bucket", "_count", "_sum")
        return {key: value for key, value in self.samples().items() if key[0].endswith(ends)}

    def kill(self) -> None:
        """Ends it as the kernel does when memory is short."""
        self.process.kill()
        self.process.wait()

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Ends it by a signal; exit code and what it wrote on stderr."""
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=20)
        return self.process.returncode, errors


@contextlib.contextmanager
def sidecar(
    directory: Path, *options: str, program: Sequence[str] = ("-m", "headway_exporter"), **environ: str
) -> Iterator[Sidecar]:
    """Runs `python -m headway_exporter`, or what else `program` says, on a free port of the loopback.

    It watches GPUs only where the test has some, or asks for it: the machine's own are none of a test's business.
    """
    command = [sys.executable, *program, "--dir", str(directory), "--listen", "127.0.0.1:0", *options]
    base = {"HEADWAY_RUN": "testrun", "HEADWAY_POD_INDEX": "0", "HEADWAY_LINGER_SECONDS": "0"}
    base |= {} if "FAKE_NVML" in environ else {"HEADWAY_GPUS": "off"}
    process = subprocess.Popen(
        command, env=os.environ | base | environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        url = re.search(r"(https?)://(\S+):(\d+)/", line)
        assert url is not None, process.communicate()
        yield Sidecar(process, (url[2], int(url[3])), url[1])
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=20)
