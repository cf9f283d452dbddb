"""What all of Headway's command lines have in common."""

from __future__ import annotations

import argparse
import os
import re
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
        self.exit(2, f"{self.prog}: {self._with_variable(message)} (see --help)\n")

    def _with_variable(self, message: str) -> str:
        """A bad value may be a variable's: whoever set it in a manifest never gave the option that argparse names.

        Each option that has one names it in its help.
        """
        for action in self._actions:
            begin = f"argument {'/'.join(action.option_strings)}:"
            variable = re.search(r"\bHEADWAY_[A-Z_]+", action.help or "")
            if variable and variable[0] in os.environ and message.startswith(begin):
                return f"{begin[:-1]} or {variable[0]}:{message.removeprefix(begin)}"
        return message
