"""The status page as HTML: complete without script, and nothing from the network but itself."""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup, escape

from headway import __version__
from headway_exporter.labels import STATES
from headway_exporter.page.headline import WAITING
from headway_exporter.page.snapshot import drawn
from headway_exporter.report import units, words
from headway_exporter.report.accounts import accounts
from headway_exporter.report.bars import time_bar
from headway_exporter.report.environment import environment
from headway_exporter.report.picture import picture

if TYPE_CHECKING:
    from jinja2 import Environment

    from headway_exporter.page.model import Status
    from headway_exporter.page.taking import Taken
    from headway_exporter.report.model import Pod, Run
    from headway_exporter.report.picture import Picture

REFRESH_SECONDS: Final = 4
SHOWN: Final = 20
"""Incidents that are told one by one."""
MOST_ROWS: Final = 16
"""Of a timeline; more ranks than that are drawn as one row, their mean: what is made every few seconds must not cost much."""
HOUR: Final = 3_600.0
_PACKAGE: Final = "headway_exporter.page"


def html(status: Status, taken: Taken, run: Run, own: Pod, total: int, longer: Picture | None) -> str:
    """The page; `total`: incidents so far, of which `run` has the newest; `longer`: the timeline of more than the last hour."""
    hour = picture(drawn(run, own, taken.times.last_hour()), total - len(run.incidents) + 1, MOST_ROWS)
    newest = run.incidents[::-1][:SHOWN]
    return (
        _environment(run.on_gpus)
        .get_template("status.html.jinja")
        .render(
            status=status,
            run=run,
            urgent=[note for note in status.notes if note.level != "info"],
            calm=[note for note in status.notes if note.level == "info"],
            hour=hour,
            hour_seconds=0.0 if hour is None else hour.end_wall - hour.begin_wall,
            longer=longer,
            newest=newest,
            shown_ids={one.id for one in newest},
            total=total,
            states=frozenset(STATES),
            accounts=accounts(run),
            time_bar=time_bar(accounts(run)),
            version=__version__,
            refresh_seconds=REFRESH_SECONDS,
            script=Markup(script()),  # noqa: S704 - our own file
        )
    )


def longer(taken: Taken, run: Run, own: Pod, total: int) -> Picture | None:
    """The timeline of the whole run; None while the last hour is all of it."""
    if own.started_wall is None or taken.wall - own.started_wall <= HOUR:
        return None
    return picture(drawn(run, own, taken.times.whole()), total - len(run.incidents) + 1, MOST_ROWS)


def opening(run: str) -> str:
    """The page while there is no sidecar behind it yet."""
    return _environment(False).get_template("opening.html.jinja").render(run=run)


@lru_cache(maxsize=1)
def script() -> str:
    """What keeps an open page up to date."""
    return resources.files(_PACKAGE).joinpath("templates").joinpath("live.js").read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def content_security_policy() -> str:
    """Only this script, only this server; by its hash, since all who look on get the same page."""
    digest = base64.b64encode(hashlib.sha256(script().encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; connect-src 'self'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


@lru_cache(maxsize=2)
def _environment(gpus: bool) -> Environment:
    found = environment(_PACKAGE, gpus=gpus)
    found.filters |= {
        "age": lambda seconds: units.duration(max(seconds, 0.0)),
        "age_seconds": lambda seconds: max(seconds, 0.0),
        "gibibytes": lambda amount: f"{amount / (1 << 30):.1f}",
    }
    found.globals |= {"meter": meter, "fate_words": words.FATE_WORDS | {WAITING: "no trainer yet"}}
    return found


def meter(kind: str, share: float | None, what: str) -> Any:
    """A bar that is filled up to a share."""
    if share is None:
        return ""
    width = 100 * min(max(share, 0.0), 1.0)
    label = escape(f"{what}: {units.share(share)}")
    shape = f'<rect width="{width:.1f}" height="6"></rect>'
    head = f'<svg class="meter {escape(kind)}" viewBox="0 0 100 6" preserveAspectRatio="none" role="img" aria-label="{label}">'
    return Markup(f"{head}{shape}</svg>")  # noqa: S704 - its parts are escaped
