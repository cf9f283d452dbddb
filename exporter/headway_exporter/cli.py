"""`headway exporter`: the command line of the sidecar."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import logging
import math
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headway import clock
from headway.command_line import Parser
from headway.environment import Identity, run_name_problem
from headway_exporter.entry import SIGNALS
from headway_exporter.health import kubernetes
from headway_exporter.health.fitted import fitted
from headway_exporter.health.nics import SYSFS
from headway_exporter.health.nvml import NOTICES
from headway_exporter.health.xids import XidTableError, load
from headway_exporter.linger import Scrapes, see_out
from headway_exporter.opening import Opening
from headway_exporter.routes import metrics
from headway_exporter.server import Server, parse_address, show_address
from headway_exporter.sidecar import Sidecar
from headway_exporter.state_files import MOST_NAME, pod_name
from headway_exporter.telemetry import Telemetry
from headway_exporter.thresholds import DEFAULT, NAMES, pair, pairs, unit
from headway_exporter.web.document import WebConfigError
from headway_exporter.web.protection import Protection

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headway_exporter.health.xids import XidTable
    from headway_exporter.thresholds import Thresholds

DEFAULT_LISTEN: Final = ":9838"
DEFAULT_SILENCE_SECONDS: Final = 30.0
DEFAULT_LINGER_SECONDS: Final = 40.0
"""Longer than a usual scrape interval of 30 s."""


def main(argv: Sequence[str] | None = None, thresholds: Thresholds = DEFAULT) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit code: 0, 1 when it cannot listen, 2 for a bad option."""
    parser = _parser(os.environ)
    options = parser.parse_args(argv)
    thresholds = _in_force(parser, options, os.environ, thresholds)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger(NOTICES).setLevel(logging.INFO)
    # Blocked before the first thread exists, so that all threads leave them to `sigwait`, which needs no handler and cannot deadlock.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        return _serve(options, thresholds)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _serve(options: argparse.Namespace, thresholds: Thresholds) -> int:
    opening, scrapes = Opening(options.run, options.pod_index), Scrapes()
    routes = {
        "/": opening.page("page"),
        "/api/v1/status": opening.page("status"),
        "/api/v1/incidents": opening.page("incidents"),
        "/api/v1/timeline": opening.page("timeline"),
        "/metrics": scrapes.noticed(metrics(opening)),
        "/healthz": opening.health,
        "/status.json": opening.status,
    }
    try:
        server = Server(options.listen, routes, options.web_config)
    except OSError as error:
        address, reason = show_address(*options.listen), error.strerror or error
        print(f"headway exporter: cannot listen on {address}: {reason}; choose another with --listen", file=sys.stderr)
        return 1
    opening.refused = server.refused
    told = opening.let_in(lambda: _sidecar(options, thresholds), SIGNALS)
    sidecar = opening.sidecar
    if sidecar is not None:
        settle_memory()
        sidecar.start()
        with contextlib.suppress(OSError):  # nobody reading our output is no reason not to serve
            print(
                f"headway exporter: run {options.run}, pod {options.pod_index}, {options.dir}: {server.url}/metrics",
                flush=True,
            )
        told = told or signal.Signals(signal.sigwait(SIGNALS))
        patience, insists = options.linger_seconds if told == signal.SIGTERM else 0.0, _Insistence()
        last = clock.monotonic() + patience
        see_out(sidecar, patience, insists)
        sidecar.stop()
        scrapes.linger(last - clock.monotonic(), insists)
    server.stop()
    return 0


class _Insistence:
    """Whether another signal came."""

    def __init__(self) -> None:
        self._came = False

    def __call__(self) -> bool:
        self._came = self._came or signal.sigtimedwait(SIGNALS, 0) is not None
        return self._came


def _sidecar(options: argparse.Namespace, thresholds: Thresholds) -> Sidecar:
    sidecar: Sidecar = Sidecar(
        options.dir,
        options.run,
        options.pod_index,
        silence_seconds=options.silence_seconds,
        state_dir=options.state_dir,
        telemetry=Telemetry.from_env(options.run, options.pod_index, os.environ),
        thresholds=thresholds,
        xids=options.xid_table,
        instruments=fitted(
            options,
            lambda: sidecar.checkpoint_dir,
            lambda boot: sidecar.linked_ports(boot),
            lambda: sidecar.gpus_here,
        ),
    )
    return sidecar


def settle_memory() -> None:
    """What was imported stays for good: else each full garbage collection walks through all of it while a scrape waits."""
    gc.collect()
    gc.freeze()


def _parser(environ: Mapping[str, str]) -> Parser:
    identity = Identity.from_env(environ)
    parser = Parser(
        "headway exporter",
        description="Follows the journals that a pod's trainer processes write and serves them as Prometheus metrics on /metrics, "
        "with a status page on /, its JSON below /api/v1/, and /healthz and /status.json beside it. It may start before or after the "
        "trainer and outlives its deaths.",
        epilog="Each option can also be given as the environment variable named with it; the option wins. Incidents are sent to an "
        "OpenTelemetry collector when OTEL_EXPORTER_OTLP_ENDPOINT names one (OTLP over HTTP).",
    )
    parser.add_argument(
        "--dir",
        type=Path,
        metavar="FOLDER",
        default=str(identity.directory),
        help="folder shared with the trainer; each run has a sub-folder in it (HEADWAY_DIR, default %(default)s)",
    )
    parser.add_argument(
        "--run",
        type=_run_name,
        metavar="NAME",
        default=identity.run,
        help="the run to follow; journals of others are counted and left alone (HEADWAY_RUN, default %(default)s)",
    )
    parser.add_argument(
        "--pod-index",
        type=_label,
        metavar="INDEX",
        default=identity.pod_index,
        help="this pod's stable place in the run, a label on every series (HEADWAY_POD_INDEX, default %(default)s)",
    )
    parser.add_argument(
        "--listen",
        type=_address,
        metavar="[HOST]:PORT",
        default=environ.get("HEADWAY_LISTEN") or DEFAULT_LISTEN,
        help="where to serve; without a host on all addresses, port 0 takes a free one (HEADWAY_LISTEN, default %(default)s)",
    )
    parser.add_argument(
        "--web-config",
        type=_web_config,
        metavar="FILE",
        default=environ.get("HEADWAY_WEB_CONFIG") or "",
        help="TLS, client certificates and passwords for the port, in the file format of Prometheus' own exporters; read again when it "
        "changes (HEADWAY_WEB_CONFIG, default none: everybody who reaches the port is answered)",
    )
    parser.add_argument(
        "--silence-seconds",
        type=_seconds,
        metavar="SECONDS",
        default=environ.get("HEADWAY_SILENCE_SECONDS") or str(DEFAULT_SILENCE_SECONDS),
        help="a process whose death the kernel does not tell counts as dead after writing nothing for so long, in seconds "
        "(HEADWAY_SILENCE_SECONDS, default %(default)s)",
    )
    parser.add_argument(
        "--state-dir",
        type=_folder,
        metavar="FOLDER",
        default="" if identity.state_directory is None else str(identity.state_directory),
        help="folder that outlives the pod, where the sidecar keeps its memory: with it no counter steps back when the sidecar or the pod "
        "is started again; shared by all pods of the run, who settle in it where a failure began (HEADWAY_STATE_DIR, default none)",
    )
    parser.add_argument(
        "--checkpoint-dir",
        type=_folder,
        metavar="FOLDER",
        default=environ.get("HEADWAY_CHECKPOINT_DIR", ""),
        help="folder of the trainer's checkpoints, as this container sees it, to watch its free space (HEADWAY_CHECKPOINT_DIR, default "
        "where the trainer says they are)",
    )
    parser.add_argument(
        "--sysfs-root",
        type=Path,
        metavar="FOLDER",
        default=environ.get("HEADWAY_SYSFS_ROOT") or str(SYSFS),
        help="where the machine's /sys is mounted, to watch its network cards (HEADWAY_SYSFS_ROOT, default %(default)s)",
    )
    parser.add_argument(
        "--linger-seconds",
        type=_seconds_or_none,
        metavar="SECONDS",
        default=environ.get("HEADWAY_LINGER_SECONDS") or str(DEFAULT_LINGER_SECONDS),
        help="after SIGTERM the sidecar follows its trainer to the end and serves on until the last numbers were scraped, at most so many "
        "seconds; 0 ends at once "
        "(HEADWAY_LINGER_SECONDS, default %(default)s)",
    )
    parser.add_argument(
        "--gpus",
        type=_on_or_off,
        metavar="on|off",
        default=environ.get("HEADWAY_GPUS") or "on",
        help="whether the NVIDIA driver is asked about the GPUs of this machine; off leaves them to whoever must have them for himself, "
        "such as a reset (HEADWAY_GPUS, default %(default)s)",
    )
    parser.add_argument(
        "--xid-table",
        type=_xid_table,
        metavar="FILE",
        default=environ.get("HEADWAY_XID_TABLE") or "",
        help="JSON file whose rows replace those of the built-in table of what the GPU driver's errors (XIDs) mean: "
        '{"v": 1, "xids": [{"number": 94, "class": "informational"}]} (HEADWAY_XID_TABLE, default none)',
    )
    parser.add_argument(
        "--kubernetes",
        type=_auto_or_off,
        metavar="auto|off",
        default=environ.get("HEADWAY_KUBERNETES") or "auto",
        help="auto: in a pod the Kubernetes API is asked why containers ended and pods were taken away, where the client is installed "
        "(headway[kubernetes]), POD_NAME is set and the service account may get and list pods; off: it is not asked "
        "(HEADWAY_KUBERNETES, default %(default)s)",
    )
    parser.add_argument(
        "--service-account",
        type=Path,
        metavar="FOLDER",
        default=environ.get("HEADWAY_SERVICE_ACCOUNT") or str(kubernetes.SERVICE_ACCOUNT),
        help="folder with the pod's token, ca.crt and namespace (HEADWAY_SERVICE_ACCOUNT, default %(default)s)",
    )
    parser.add_argument(
        "--threshold",
        type=_threshold,
        action="append",
        metavar="NAME=VALUE",
        default=[],
        help="a limit of verdicts and diagnoses; can be given several times. HEADWAY_THRESHOLDS holds several with commas between, of "
        f"which an option replaces the one of its name. Names, units and defaults: {_thresholds_in_words()}",
    )
    return parser


def _in_force(
    parser: Parser, options: argparse.Namespace, environ: Mapping[str, str], otherwise: Thresholds
) -> Thresholds:
    """The thresholds of the options, before those of the environment."""
    try:
        told = pairs(environ.get("HEADWAY_THRESHOLDS", "")) | dict(options.threshold)
    except ValueError as error:
        parser.error(f"HEADWAY_THRESHOLDS: {error}")
    changes: dict[str, Any] = {**told}
    try:
        return dataclasses.replace(otherwise, **changes)
    except ValueError as error:
        parser.error(f"the thresholds do not fit together: {error}")


def _thresholds_in_words() -> str:
    return ", ".join(f"{name} ({unit(name)}, {getattr(DEFAULT, name):g})" for name in NAMES)


def _threshold(text: str) -> tuple[str, float]:
    try:
        return pair(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _run_name(text: str) -> str:
    problem = run_name_problem(text)
    if problem is not None:
        raise argparse.ArgumentTypeError(problem)
    return text


def _auto_or_off(text: str) -> str:
    if text not in ("auto", "off"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither auto nor off")
    return text


def _label(text: str) -> str:
    if not text.strip() or len(text) > 128 or not text.isprintable():
        raise argparse.ArgumentTypeError("expected a number or a name of at most 128 characters")
    if len(pod_name(text)) > MOST_NAME:
        raise argparse.ArgumentTypeError(
            f"as the name of a folder it would have {len(pod_name(text))} characters, since all but letters, digits and -._~ are "
            f"written as %XX, and there may be {MOST_NAME}: choose a shorter one"
        )
    return text


def _address(text: str) -> tuple[str, int]:
    try:
        return parse_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _folder(text: str) -> Path | None:
    return Path(text).absolute() if text else None


def _on_or_off(text: str) -> bool:
    if text not in ("on", "off"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither on nor off")
    return text == "on"


def _web_config(text: str) -> Protection | None:
    try:
        return Protection(Path(text)) if text else None
    except WebConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _xid_table(text: str) -> XidTable:
    try:
        return load(Path(text) if text else None)
    except XidTableError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _seconds(text: str) -> float:
    seconds = _seconds_or_none(text)
    if seconds == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return seconds


def _seconds_or_none(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return seconds
