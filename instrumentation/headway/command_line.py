"""What all of Headway's command lines have in common."""

from __future__ import annotations

import argparse
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """Says what is wrong with the options in one line and exits with 2; abbreviated options are not guessed."""

    def __init__(
        self,
        prog: str,
        *,
        description: str,
        usage: str | None = None,
        epilog: str | None = None,
        formatter_class: type[argparse.HelpFormatter] = argparse.HelpFormatter,
    ) -> None:
        super().__init__(prog, usage, description, epilog, formatter_class=formatter_class, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """One line on stderr."""
        self.exit(2, f"{self.prog}: {message} (see --help)\n")
