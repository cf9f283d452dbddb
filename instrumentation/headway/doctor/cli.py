"""`headway doctor`: checks a set-up and says what to do."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headway import clock
from headway.command_line import Parser
from headway.doctor import (
    checks_environment,
    checks_folder,
    checks_machine,
    checks_port,
    checks_prometheus,
    checks_versions,
    probes_folder,
    probes_machine,
    probes_port,
    probes_prometheus,
    show,
)
from headway.doctor.findings import Finding, in_order
from headway.doctor.gather import Answer, gather
from headway.doctor.launcher_options import local_ranks
from headway.environment import Identity, run_name_problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headway.doctor.gather import Probe

PROGRAM: Final = "headway doctor"
DEFAULT_LISTEN: Final = ":9838"


def main(argv: Sequence[str] | None = None) -> int:
    """Prints what was found; returns the exit code: 0, 1 when a check failed, 2 for bad usage."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    at = arguments.index("--") if "--" in arguments else len(arguments)
    identity = Identity.from_env(os.environ)
    parser = _parser(identity, os.environ)
    options = parser.parse_args(arguments[:at])
    options.access = _access(parser, options, os.environ)
    found = in_order(_examined(options, identity, arguments[at + 1 :], os.environ))
    _print(options, found)
    return 1 if any(one.status == "fail" for one in found) else 0


def _examined(
    options: argparse.Namespace, identity: Identity, command: Sequence[str], environ: Mapping[str, str]
) -> Iterator[Finding]:
    state = None if options.state_dir is None else str(options.state_dir)
    answers = gather(_probes(options, state, environ))
    journals = answers["journals"].facts or {}
    place = checks_folder.Place(
        path=str(options.dir),
        run=options.run,
        role=options.role,
        shared_place=identity.shared_place and options.dir == identity.directory,
        user=os.getuid(),
        ranks=identity.local_world_size or local_ranks(command or journals.get("command") or ()) or 1,
    )
    yield from checks_environment.environment(environ, identity.warnings, options.run)
    yield from checks_folder.directory(place, answers["directory"])
    yield from checks_folder.journals(place, answers["journals"])
    yield from checks_folder.state(state, options.role, identity.pods or 1, answers.get("state"))
    yield checks_machine.clock(answers["clock"])
    yield checks_machine.nvml(answers.get("driver"))
    yield from checks_port.port(
        options.listen, options.run, options.role, answers["port"], options.access, clock.wall()
    )
    asked = answers.get("prometheus")
    yield checks_prometheus.prometheus(options.prometheus, options.run, asked)
    yield checks_prometheus.alertmanager(options.alertmanager, answers.get("alertmanager"), asked)
    yield from _versions(options, answers, command, environ)
    yield _advice(state, options.run, answers.get("advice"))


def _probes(options: argparse.Namespace, state: str | None, environ: Mapping[str, str]) -> dict[str, Probe]:
    named = run_name_problem(options.run) is None
    run = options.run if named else "."
    host, _, number = options.listen.rpartition(":")
    listens = options.role != "trainer"
    probes: dict[str, Probe] = {
        "directory": partial(probes_folder.folder, str(options.dir), writes=options.role != "sidecar", inner=run),
        "clock": probes_machine.clocks,
        "packages": probes_machine.packages,
        "port": partial(probes_port.port, host.strip("[]"), int(number), binds=listens, access=options.access),
    }
    probes["journals"] = partial(probes_folder.journals, str(options.dir), run)
    if options.prometheus is not None:
        probes["prometheus"] = partial(probes_prometheus.prometheus, options.prometheus, run)
    if options.alertmanager is not None:
        probes["alertmanager"] = partial(probes_prometheus.alertmanager, options.alertmanager)
    if environ.get("HEADWAY_GPUS") != "off":
        probes["driver"] = probes_machine.driver
    if state is not None and options.role != "trainer":
        probes["state"] = partial(probes_folder.folder, state, writes=True, replaces=True)
        if named:
            probes["advice"] = partial(probes_machine.advice, str(Path(state, run)))
    return probes


def _versions(
    options: argparse.Namespace, answers: Mapping[str, Answer], command: Sequence[str], environ: Mapping[str, str]
) -> Iterator[Finding]:
    packages = answers["packages"]
    if packages.facts is None:
        what = f"what is installed cannot be read: {packages.problem}"
        yield Finding("python", "fail", what, "look at the file system that Python is installed in")
        return
    journals = answers["journals"].facts or {}
    major, minor = packages.facts["python"]
    seen = checks_versions.Trainer(
        role=options.role,
        python=(major, minor),
        versions=packages.facts["versions"],
        gpus=_gpus(answers.get("driver")),
        command=command or journals.get("command"),
        settings={} if command else journals.get("settings", {}),
        silences=journals.get("silences", {}),
        rethrow=environ.get("TORCH_NCCL_RETHROW_CUDA_ERRORS"),
    )
    yield from checks_versions.all_checks(seen)


def _gpus(answer: Answer | None) -> int | None:
    """How many the driver shows; None where it does not answer, or is not asked."""
    if answer is None or answer.facts is None:
        return None
    return int(answer.facts.get("gpus", 0))


def _advice(state: str | None, run: str, answer: Answer | None) -> Finding:
    if state is None or answer is None:
        return Finding("advice", "skip", "there is no state folder to read the run's silences from")
    if answer.facts is None or "problem" in answer.facts:
        return Finding(
            "advice", "skip", f"no advice on {run} yet: {(answer.facts or {}).get('problem') or answer.problem}"
        )
    changes = answer.facts["changes"]
    if changes:
        what = "; ".join(one["title"] for one in changes)
        return Finding("advice", "warn", what, f"headway advise {Path(state, run)}")
    return Finding("advice", "ok", "`headway advise` would change nothing")


def _print(options: argparse.Namespace, found: Sequence[Finding]) -> None:
    if options.format == "json":
        output = [json.dumps(show.as_json(options.run, found), indent=2)]
    else:
        side = {"both": "trainer and sidecar"}.get(options.role, options.role)
        heading = f"{PROGRAM}: run {options.run}, {options.dir}, {side}"
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        output = list(show.lines(heading, found, min(shutil.get_terminal_size((80, 24)).columns, 120), colour=colour))
    encoding = sys.stdout.encoding or "utf-8"
    try:
        for line in output:
            print(line.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has had enough; what is in the buffer must not fail again when Python ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser(identity: Identity, environ: Mapping[str, str]) -> Parser:
    parser = Parser(
        PROGRAM,
        usage="headway doctor [options] [-- LAUNCHER [ARGUMENT …]]",
        description="Checks a set-up and says what to do. It disturbs nothing that runs, and ends within 20 s whatever hangs. Run it "
        "where the trainer runs, where the sidecar runs, or both. What follows `--` is how training is started, whose options are looked "
        "at, too; without it they are taken from the run's journals.",
        epilog="Exit codes: 0 nothing failed (there may be warnings); 1 a check failed; 2 bad usage.",
    )
    parser.add_argument(
        "--dir",
        type=_folder,
        metavar="FOLDER",
        default=str(identity.directory),
        help="journal folder, shared by trainer and sidecar (HEADWAY_DIR, default %(default)s)",
    )
    parser.add_argument(
        "--state-dir",
        type=_folder,
        metavar="FOLDER",
        default="" if identity.state_directory is None else str(identity.state_directory),
        help="the sidecar's state folder (HEADWAY_STATE_DIR, default none)",
    )
    parser.add_argument(
        "--run", metavar="NAME", default=identity.run, help="name of the run (HEADWAY_RUN, default %(default)s)"
    )
    parser.add_argument(
        "--listen",
        type=_address,
        metavar="[HOST]:PORT",
        default=environ.get("HEADWAY_LISTEN") or DEFAULT_LISTEN,
        help="where the sidecar listens, or shall (HEADWAY_LISTEN, default %(default)s)",
    )
    for option, words in (
        ("--prometheus", "a Prometheus that should have our rules and scrape this run"),
        ("--alertmanager", "an Alertmanager that should have our routes"),
    ):
        parser.add_argument(option, type=_url, metavar="URL", help=f"{words} (default: none is asked)")
    for option, metavar, words in (
        ("--ca-file", "FILE", "certificates of who signed the sidecar's (default: those that the system trusts)"),
        ("--cert-file", "FILE", "certificate to show, where the sidecar wants one"),
        ("--key-file", "FILE", "its key, where that is not in the same file"),
        ("--server-name", "NAME", "name in the sidecar's certificate, where that is not its host"),
        ("--user", "NAME", "name to log in with, where the sidecar wants one"),
        ("--password-file", "FILE", "file with the password"),
    ):
        name = f"HEADWAY_STATUS_{option[2:].replace('-', '_').upper()}"
        parser.add_argument(option, metavar=metavar, default=environ.get(name, ""), help=f"{words} ({name})")
    parser.add_argument(
        "--role",
        choices=("trainer", "sidecar", "both"),
        default="both",
        metavar="ROLE",
        help="whose container this is: trainer, sidecar, or both (default %(default)s)",
    )
    parser.add_argument(
        "--format",
        choices=("text", "json"),
        default="text",
        metavar="FORMAT",
        help="text for people, or json (default %(default)s)",
    )
    return parser


def _access(parser: Parser, options: argparse.Namespace, environ: Mapping[str, str]) -> probes_port.Access:
    password = environ.get("HEADWAY_STATUS_PASSWORD", "")
    if options.password_file:
        try:
            password = Path(options.password_file).read_text().rstrip("\r\n")
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or error
            parser.error(f"argument --password-file: {options.password_file}: {why}")
    return probes_port.Access(
        options.ca_file, options.cert_file, options.key_file, options.server_name, options.user, password
    )


def _folder(text: str) -> Path | None:
    return Path(text).absolute() if text else None


def _url(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"{text!r} is no address: expected http://HOST:PORT")
    return text


def _address(text: str) -> str:
    _, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or not 0 < int(port) <= 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is no address: expected [host]:port, as in :9838 or 127.0.0.1:9838")
    return text


if __name__ == "__main__":
    sys.exit(main())
