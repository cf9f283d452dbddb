"""Who may use the port, by a file that is looked at for each connection: new certificates and passwords need no restart.

As with Prometheus' own exporters a file that cannot be used lets nobody in until it is mended: old rules that somebody has meant to take
away must not live on because of a typing error.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headway_exporter.web import tls
from headway_exporter.web.config import WebConfig, read
from headway_exporter.web.document import WebConfigError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence
    from pathlib import Path

_log = logging.getLogger("headway.exporter")

_Signature = tuple[tuple[int, int, int] | None, ...]


class Rate:
    """A bucket of tokens: so many requests at once, and one more each interval."""

    def __init__(self, interval_seconds: float, burst: int) -> None:
        self._interval = interval_seconds
        self._burst = burst
        self._tokens = float(burst)
        self._filled = time.monotonic()
        self._guard = threading.Lock()

    def take(self) -> bool:
        """Whether one more request may be answered now."""
        if self._interval == 0:
            return True
        with self._guard:
            now = time.monotonic()
            self._tokens = min(self._burst, self._tokens + (now - self._filled) / self._interval)
            self._filled = now
            if self._tokens < 1:
                return False
            self._tokens -= 1
            return True


@dataclass(frozen=True)
class Rules:
    """What is in force for a connection; no `config`: nobody may know anything."""

    config: WebConfig | None = field(default_factory=WebConfig)
    context: ssl.SSLContext | None = None
    rate: Rate = field(default_factory=lambda: Rate(0, 0))


class Unprotected:
    """No file: everybody is answered, in the clear."""

    tls = False

    def __init__(self) -> None:
        self._rules = Rules()

    def current(self) -> Rules:
        """Always the same."""
        return self._rules


class Protection:
    """The file and what it names, read again when any of it changes; safe to call from several threads.

    Raises:
        WebConfigError: the file cannot be used, or what reading it needs is not installed.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._guard = threading.Lock()
        self._files: tuple[Path, ...] = (file,)
        self._seen: _Signature = ()
        self._rules = Rules()
        self._problem: WebConfigError | None = None
        self._load()
        if self._problem is not None:
            raise self._problem
        self.tls = self._rules.context is not None

    def current(self) -> Rules:
        """What is in force now.

        Raises:
            WebConfigError: the file as it is now cannot be used.
        """
        with self._guard:
            if _signature(self._files) != self._seen:
                self._reload()
            if self._problem is not None:
                raise self._problem
            return self._rules

    def _reload(self) -> None:
        before = str(self._problem)
        self._load()
        if self._problem is None:
            _log.warning("%s was read again and is in force", self._file)
        elif str(self._problem) != before:
            _log.error("%s; nobody is answered until that is mended", self._problem)

    def _load(self) -> None:
        """Takes the signatures first: what is written while it is read is read again."""
        self._files, self._seen = (self._file,), _signature([self._file])
        try:
            config = read(self._file)
            if config.tls is not None:
                self._files += config.tls.files
                self._seen = (*self._seen, *_signature(config.tls.files))
            self._rules = self._made(config)
            self._problem = None
        except WebConfigError as error:
            self._problem = WebConfigError(f"{self._file}: {error}")
        except ModuleNotFoundError as error:
            self._problem = WebConfigError(
                f"{self._file}: needs {error.name}, which is not installed: pip install 'headway[exporter]'"
            )

    def _made(self, config: WebConfig) -> Rules:
        context = None if config.tls is None else tls.context(config.tls)
        if context is None and self._rules.context is not None:
            raise WebConfigError("tls_server_config: TLS is not given up while serving; start anew for that")
        return Rules(config, context, Rate(config.interval_seconds, config.burst))


def _signature(files: Sequence[Path]) -> _Signature:
    """Tells one content of these files from another; a mounted secret is a link that leads elsewhere after a change."""
    return tuple(_of(file) for file in files)


def _of(file: Path) -> tuple[int, int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
