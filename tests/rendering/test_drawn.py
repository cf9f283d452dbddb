"""Every panel, drawn from the rendered JSON by Grafana's own components in a real browser, with live data."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from draw import CHROMIUM, NPM, Easel, build, easel
from rendered import FOLDER, NAMES, load, panels
from test_live_queries import EMPTY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from live import Live

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
    pytest.mark.skipif(NPM is None, reason="npm is not installed"),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page that draws, built."""
    return build(tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def stand(page: Path) -> Iterator[Easel]:
    """The page with the committed dashboards."""
    with easel(page) as found:
        yield found


def by_title(measured: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What was measured of each panel."""
    return {one["title"]: one for one in measured["panels"]}


@pytest.mark.parametrize("name", NAMES)
def test_every_panel_is_drawn(name: str, alive: Live, stand: Easel, tmp_path: Path) -> None:
    """No complaint on the console, no title or value cut off, no empty picture; each says what its JSON says."""
    measured = stand.draw(name, alive, tmp_path / "picture.png")
    assert measured["complaints"] == []
    found = by_title(measured)
    for panel in panels(load(name)):
        one = found[panel["title"]]
        assert one["shown"] == panel["title"]
        assert one["cut"] == [], panel["title"]
        empty = panel["fieldConfig"]["defaults"]["noValue"]
        if panel["title"] in EMPTY:
            assert empty in one["text"], panel["title"]
        else:
            assert "No data" not in one["text"], panel["title"]
            assert one["painted"], panel["title"]
            assert len(one["text"]) > len(panel["title"]) or one["canvases"], panel["title"]


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_values_are_words_where_they_should_be(theme: str, alive: Live, stand: Easel, tmp_path: Path) -> None:
    """A number that stands for a state is shown as its name, and units are applied, in both of Grafana's themes."""
    run = by_title(stand.draw("headway-run", alive, tmp_path / "picture.png", theme))
    assert "recurring" in run["Incident"]["text"]
    assert run["Training goodput"]["text"].endswith("%")
    assert "productive" in run["What each pod was doing"]["text"]
    fleet = by_title(stand.draw("headway-fleet", alive, tmp_path / "fleet.png", theme))["Runs, the worst first"]["text"]
    assert fleet.index("testrun") < fleet.index("quiet")
    assert "recurring" in fleet


def test_what_is_wrong_is_seen(alive: Live, page: Path, tmp_path: Path) -> None:
    """The checks above can fail: broken PromQL, a query without an answer, a title that is too long, a base threshold of "null"."""
    shutil.copytree(FOLDER, tmp_path / "dashboards")
    file = tmp_path / "dashboards" / "headway-run.json"
    document = json.loads(file.read_text())
    shown = panels(document)
    shown[0]["title"] = "A title that is far too long for the narrow panel that it is on"
    shown[1]["targets"][0]["expr"] = "sum by ("
    shown[7]["targets"] = [{**shown[7]["targets"][0], "expr": "headway_nonsense"}]
    file.write_text(json.dumps(document))
    with easel(page, tmp_path / "dashboards") as stand:
        measured = stand.draw("headway-run", alive, tmp_path / "picture.png")
    found = by_title(measured)
    assert found[shown[0]["title"]]["cut"]
    assert any("Incident" in one and "parse error" in one for one in measured["complaints"])
    assert "No data" in found[shown[7]["title"]]["text"]
