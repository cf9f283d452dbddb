"""Where the sidecar's program begins: an end that is asked for while it is still importing is an orderly end, too.

Importing takes some tenths of a second, and a pod may be given up in them: SIGTERM would then end the process as if something had gone
wrong. So both signals are blocked first, before the first thread exists, and wait for whoever asks for them; see cli.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def main(argv: Sequence[str] | None = None) -> int:
    """The sidecar's command line; returns the exit code."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        from headway_exporter import cli

        return cli.main(argv)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
