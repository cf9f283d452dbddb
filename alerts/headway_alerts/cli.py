"""`headway rules`: writes the rules for one's own thresholds, selectors and objectives."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.command_line import Parser
from headway_alerts import catalogue, render, routing
from headway_alerts.config import Config, ConfigError, load

if TYPE_CHECKING:
    from collections.abc import Sequence

MANIFEST_FILE = "prometheusrule.yaml"
ALERTMANAGER_FILE = "alertmanager.yaml"
FORMATS = ("prometheus", "prometheusrule", "alertmanager")


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, 1 when nothing can be written, 2 for a bad option or configuration."""
    options = _parser(os.environ).parse_args(argv)
    try:
        config = Config() if options.config is None else load(options.config)
        config = replace(config, **_given(options))
        written = _rendered(config, options.format, one_file=options.out is None)
    except ConfigError as error:
        print(f"headway rules: {error}", file=sys.stderr)
        return 2
    if options.out is None:
        sys.stdout.writelines(written.values())
        return 0
    try:
        _write(options.out, written)
    except OSError as error:
        print(f"headway rules: cannot write to {options.out}: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0


def _given(options: argparse.Namespace) -> dict[str, Any]:
    """What the command line says, and the configuration would too."""
    named = ("selector", "runbook_base_url", "dashboard_base_url")
    return {name: getattr(options, name) for name in named if getattr(options, name) is not None}


def _rendered(config: Config, form: str, *, one_file: bool) -> dict[str, str]:
    if form == "alertmanager":
        return {ALERTMANAGER_FILE: routing.alertmanager(config)}
    groups = catalogue.groups(config)
    if form == "prometheusrule":
        return {MANIFEST_FILE: render.manifest(groups, config)}
    return {"": render.rule_file(groups, config)} if one_file else render.rule_files(groups, config)


def _write(folder: Path, files: Mapping[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
        print(folder / name)


def _parser(environ: Mapping[str, str]) -> Parser:
    parser = Parser(
        "headway rules",
        description="Writes Headway's recording rules and alerts for Prometheus, 2.42 or newer, with thresholds, selectors and goodput "
        "objectives of one's own.",
        epilog="Each option can also be given as the environment variable named with it; the option wins. What the file of --config may "
        f"hold, with its default: {_names()}.",
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        default=environ.get("HEADWAY_RULES_CONFIG") or None,
        help="YAML that replaces some of the defaults below, for example `stalled_floor_seconds: 300`; headway_alerts/config.py says "
        "what each is (HEADWAY_RULES_CONFIG, default: none)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        default=environ.get("HEADWAY_RULES_OUT") or None,
        help="folder for the files, made when missing (HEADWAY_RULES_OUT, default: all to standard output)",
    )
    parser.add_argument(
        "--format",
        type=_format,
        metavar="{" + ",".join(FORMATS) + "}",
        default=environ.get("HEADWAY_RULES_FORMAT") or "prometheus",
        help="rule files, a manifest for the Prometheus operator, or an example of Alertmanager's routes and inhibitions "
        "(HEADWAY_RULES_FORMAT, default %(default)s)",
    )
    parser.add_argument(
        "--selector",
        metavar="MATCHERS",
        default=environ.get("HEADWAY_RULES_SELECTOR") or None,
        help="label matchers put into every selection of a metric, for example 'cluster=\"a\"'; wins over the configuration's "
        "(HEADWAY_RULES_SELECTOR, default: none)",
    )
    parser.add_argument(
        "--runbook-base-url",
        metavar="URL",
        default=environ.get("HEADWAY_RULES_RUNBOOK_BASE_URL") or None,
        help="where you publish the folder alerts/runbooks, an address or a path; wins over the configuration's "
        "(HEADWAY_RULES_RUNBOOK_BASE_URL, default: alerts/runbooks, the path in the repository)",
    )
    parser.add_argument(
        "--dashboard-base-url",
        metavar="URL",
        default=environ.get("HEADWAY_RULES_DASHBOARD_BASE_URL") or None,
        help="your Grafana's address, for links from alerts to the window around them; wins over the configuration's "
        "(HEADWAY_RULES_DASHBOARD_BASE_URL, default: none, links are paths on the Grafana that one has open)",
    )
    return parser


def _format(text: str) -> str:
    """A type, since `choices` would not look at the variable."""
    if text not in FORMATS:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(FORMATS)}")
    return text


def _names() -> str:
    return ", ".join(f"{one.name} ({_shown(getattr(Config(), one.name))})" for one in fields(Config)).replace("%", "%%")


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {number:g}" for name, number in value.items())
    if isinstance(value, tuple):
        return ", ".join(f"{objective.kind} {objective.ratio:g}" for objective in value)
    return f"{value:g}" if isinstance(value, (int, float)) else str(value) or "none"
