"""Where the sidecar's program begins: an end that is asked for while it is still importing is an orderly end, too.

Importing takes some tenths of a second, and a pod may be given up in them: SIGTERM would then end the process as if something had gone
wrong. So both signals are blocked first, before the first thread exists, and wait for whoever asks for them; see cli.

And a start that fails must not keep the trainer waiting: a kubelet starts a pod's next container once it has seen a native sidecar run,
and looks once a second. One that is gone sooner is started again and again, later and later, and the trainer perhaps never.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
SEEN_SECONDS: Final = 5.0
"""How long a container whose start fails is there to be seen."""


def main(argv: Sequence[str] | None = None) -> int:
    """The sidecar's command line; returns the exit code."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    began, failed = time.monotonic(), True
    try:
        from headway_exporter import cli

        code = cli.main(argv)
    except SystemExit as end:
        failed = bool(end.code)
        raise
    else:
        failed = code != 0
        return code
    finally:
        if failed and os.getpid() == 1:  # a container of its own
            signal.sigtimedwait(SIGNALS, max(began + SEEN_SECONDS - time.monotonic(), 0))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
