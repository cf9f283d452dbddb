"""`headway status [URL | FOLDER]`: one look at a sidecar, in the terminal; also a probe, by its exit code.

Where no sidecar is, the journals themselves are read.
"""

from __future__ import annotations

import json
import os
import sys
import time
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headway.command_line import Parser
from headway.environment import Identity
from headway_exporter import glance
from headway_exporter.report import fields
from headway_exporter.terminal import columns, cut, printed
from headway_exporter.web.client import Access, AskError, ask

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

PROGRAM: Final = "headway status"
DEFAULT_URL: Final = "http://localhost:9838"
SECONDS: Final = 5.0
"""Longest wait for an answer."""


def main(argv: Sequence[str] | None = None) -> int:
    """Prints how the pod is; returns the exit code: 0, 1 when the sidecar does not answer or is not well, 2 for bad usage."""
    parser = _parser(os.environ)
    options = parser.parse_args(argv)
    identity = Identity.from_env(os.environ)
    if options.target is not None and "://" not in options.target:
        return _of_journals(options, Path(options.target).absolute(), identity, asked=True)
    options.url = options.target or os.environ.get("HEADWAY_STATUS_URL") or DEFAULT_URL
    by_default = options.target is None and not os.environ.get("HEADWAY_STATUS_URL")
    access = _access(parser, options, os.environ)
    try:
        code, body = ask(options.url, "/healthz", access, SECONDS)
        if code == HTTPStatus.OK:
            code, body = ask(options.url, "/status.json", access, SECONDS)
            if code == HTTPStatus.SERVICE_UNAVAILABLE:  # it is well, and has yet to read its memory
                return printed([_words(body)], PROGRAM)
    except AskError as error:
        failed = _failed(str(error), 2 if error.usage else 1)
        if not error.usage and by_default:
            _of_journals(options, identity.directory, identity, asked=False)
        return failed
    if code != HTTPStatus.OK:
        return _failed(f"{options.url} answers {code}: {_words(body)}")
    return _answered(options, body)


def _of_journals(options: argparse.Namespace, folder: Path, identity: Identity, *, asked: bool) -> int:
    """`asked`: for this folder; else that there is nothing in it is no news."""
    from headway_exporter import journal_status  # what it takes a probe need not load each time

    named = options.run or os.environ.get("HEADWAY_RUN", "")
    try:
        status = journal_status.read(folder, identity.pod_index, named or identity.run, only=not named)
    except journal_status.NothingToReadError as error:
        return _failed(str(error), 2 if error.usage else 1) if asked else 1
    note = f"{'journals':<11} {folder}, read just now, without what a sidecar remembers"
    return _shown(options.format, status, note)


def _answered(options: argparse.Namespace, body: bytes) -> int:
    try:
        status = json.loads(body)
    except (ValueError, RecursionError):
        status = None
    if not isinstance(status, dict):
        return _failed(f"{options.url}/status.json is not what a sidecar answers")
    return _shown(options.format, status)


def _shown(style: str, status: dict[str, Any], *notes: str) -> int:
    if style == "json":
        return printed([json.dumps(status, indent=2)], PROGRAM)
    lines = [*glance.lines(status, time.time()), *(fields.text(note, 1_000) for note in notes)]
    return printed([cut(line, columns()) for line in lines], PROGRAM)


def _words(body: bytes) -> str:
    return fields.text(body[:300].decode(errors="replace").strip())


def _failed(words: str, code: int = 1) -> int:
    print(f"{PROGRAM}: {fields.text(words, 1_000)}", file=sys.stderr)
    return code


def _access(parser: Parser, options: argparse.Namespace, environ: Mapping[str, str]) -> Access:
    password = environ.get("HEADWAY_STATUS_PASSWORD", "")
    if options.password_file is not None:
        try:
            password = options.password_file.read_text().rstrip("\r\n")
        except (OSError, UnicodeError) as error:
            parser.error(
                f"argument --password-file: {options.password_file}: {getattr(error, 'strerror', None) or error}"
            )
    if options.key_file is not None and options.cert_file is None:
        parser.error("argument --key-file: needs --cert-file")
    return Access(options.ca_file, options.cert_file, options.key_file, options.server_name, options.user, password)


def _parser(environ: Mapping[str, str]) -> Parser:
    parser = Parser(
        PROGRAM,
        description="Asks a sidecar how its pod is, or reads its journals where there is none. The password is read from a file or from "
        "HEADWAY_STATUS_PASSWORD: what stands on the command line everybody on the machine can read.",
        epilog="Where no address is given and no sidecar answers at the default one, journals that lie in HEADWAY_DIR are shown all the "
        "same. Exit codes: 0 the sidecar is well, or the given journals were read, whatever the pod is; 1 it is not, or does not answer "
        "within 5 s; 2 bad usage.",
    )
    parser.add_argument(
        "target",
        nargs="?",
        metavar="URL|FOLDER",
        help=f"where the sidecar listens (HEADWAY_STATUS_URL, default {DEFAULT_URL}); or a journal folder, which is read without a sidecar",
    )
    parser.add_argument(
        "--run",
        metavar="NAME",
        default="",
        help="of the runs in a journal folder (HEADWAY_RUN, default the only one there)",
    )
    for option, words in (
        ("--ca-file", "certificates of who signed the sidecar's (default: those that the system trusts)"),
        ("--cert-file", "certificate to show, where the sidecar wants one"),
        ("--key-file", "its key, where that is not in the same file"),
        ("--password-file", "file with the password"),
    ):
        name = f"HEADWAY_STATUS_{option[2:].replace('-', '_').upper()}"
        default = Path(environ[name]) if environ.get(name) else None
        parser.add_argument(option, type=Path, metavar="FILE", default=default, help=f"{words} ({name})")
    for option, words in (
        ("--server-name", "name in the sidecar's certificate, where that is not the host of the URL"),
        ("--user", "name to log in with, where the sidecar wants one"),
    ):
        name = f"HEADWAY_STATUS_{option[2:].replace('-', '_').upper()}"
        parser.add_argument(option, metavar="NAME", default=environ.get(name, ""), help=f"{words} ({name})")
    parser.add_argument(
        "--format",
        choices=("text", "json"),
        default="text",
        metavar="FORMAT",
        help="text for people, or json as the sidecar answers (default %(default)s)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
