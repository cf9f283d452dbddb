"""`headway dashboards`: writes the Grafana dashboards for one's own data source and selector."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from headway.command_line import Parser
from headway_alerts.config import Config, ConfigError
from headway_dashboards import catalogue, render

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, 1 when nothing can be written, 2 for a bad option."""
    options = _parser(os.environ).parse_args(argv)
    try:
        selector = Config(selector=options.selector).selector
    except ConfigError as error:
        print(f"headway dashboards: {error}", file=sys.stderr)
        return 2
    files = render.json_files(catalogue.dashboards(), datasource=options.datasource, selector=selector)
    try:
        _write(options.out, files)
    except OSError as error:
        print(f"headway dashboards: cannot write to {options.out}: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0


def _write(folder: Path, files: Mapping[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
        print(folder / name)


def _parser(environ: Mapping[str, str]) -> Parser:
    parser = Parser(
        "headway dashboards",
        description="Writes Headway's dashboards for Grafana, 10.4 or newer, a JSON file each. They need the recording rules of "
        "`headway rules`.",
        epilog="Each option can also be given as the environment variable named with it; the option wins.",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        default=Path(environ.get("HEADWAY_DASHBOARDS_OUT") or "dashboards"),
        help="folder for the files, made when missing (HEADWAY_DASHBOARDS_OUT, default: %(default)s)",
    )
    parser.add_argument(
        "--datasource",
        metavar="NAME",
        default=environ.get("HEADWAY_DASHBOARDS_DATASOURCE") or render.DEFAULT_DATASOURCE,
        help="the Prometheus data source that is chosen at first (HEADWAY_DASHBOARDS_DATASOURCE, default: Grafana's default)",
    )
    parser.add_argument(
        "--selector",
        metavar="MATCHERS",
        default=environ.get("HEADWAY_DASHBOARDS_SELECTOR") or "",
        help="label matchers put into every selection of a metric of the sidecar, for example 'cluster=\"a\"'; give `headway rules` "
        "the same (HEADWAY_DASHBOARDS_SELECTOR, default: none)",
    )
    return parser
