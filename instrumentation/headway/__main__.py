"""`python -m headway` and the command `headway`: imports under a guard, so that Ctrl-C meanwhile ends it without a traceback."""

from __future__ import annotations

import sys


def main() -> int:
    """The command line; returns the exit code."""
    try:
        from headway import cli

        return cli.main()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
