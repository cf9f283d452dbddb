"""The status page of a real sidecar in a real browser: on a desk and a phone, by light and in the dark, with and without script."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any, Final

import pytest
from browser import CHROMIUM, Browser, browser
from fake_nvml import FakeNvml, uuid
from journal_folder import RUN, finish, launcher, meet, trainer
from sidecar_process import Sidecar, sidecar

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")]

LEAST_CONTRAST: Final = 4.5
"""WCAG 2.2, level AA, for text of any size."""

LAYOUT: Final = """
(() => {
  for (const one of document.querySelectorAll("details")) one.open = true;
  const width = document.documentElement.clientWidth;
  const wide = [...document.querySelectorAll("body *")]
    .filter(one => !one.closest("defs, pre, .skip") && one.getBoundingClientRect().right > width + 1)
    .map(one => `${one.tagName} ${one.getAttribute("class")} ${Math.round(one.getBoundingClientRect().right)}`);
  const flat = [...document.querySelectorAll(".timeline svg")].filter(one => one.getBoundingClientRect().width < 100).length;
  return {width, scroll: document.documentElement.scrollWidth, wide: wide.slice(0, 5), flat};
})()
"""
CONTRAST: Final = """
(() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgba = colour => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const over = (top, under) => top.slice(0, 3).map((one, at) => one * top[3] / 255 + under[at] * (1 - top[3] / 255));
  const ground = one => {
    const layers = [];
    for (let at = one; at; at = at.parentElement) layers.push(rgba(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255]);
  };
  const luminance = colour => {
    const [r, g, b] = colour.map(one => one / 255).map(one => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const holder = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || holder.closest("script, style, svg, noscript, [hidden]")) continue;
    const under = ground(holder);
    const text = over(rgba(getComputedStyle(holder).color), under);
    const [dark, light] = [luminance(text), luminance(under)].sort((a, b) => a - b);
    found.push([(light + 0.05) / (dark + 0.05), walk.currentNode.data.trim().slice(0, 40)]);
  }
  return found.sort((a, b) => a[0] - b[0]).slice(0, 5);
})()
"""
NAMES: Final = """
({
  pictures: [...document.querySelectorAll("svg")].filter(one =>
    !(one.getAttribute("aria-hidden") === "true" || (one.getAttribute("role") === "img" && one.getAttribute("aria-label")))).length,
  sections: [...document.querySelectorAll("section")].filter(one =>
    !document.getElementById(one.getAttribute("aria-labelledby"))?.textContent).length,
  landmarks: ["header", "nav", "main", "footer"].map(one => document.querySelectorAll(one).length),
  headings: [...document.querySelectorAll("h1, h2, h3")].map(one => Number(one.tagName[1])),
  language: document.documentElement.lang,
  twice: [...document.querySelectorAll("[id]")].map(one => one.id).filter((one, at, all) => all.indexOf(one) !== at),
})
"""


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Sidecar, str]]:
    """A pod that went through an incident and is in another one, on two GPUs of which one has fallen off the bus."""
    folder = tmp_path_factory.mktemp("scene")
    fake = FakeNvml(folder / "nvml")
    journals = folder / "pod"
    (journals / RUN).mkdir(parents=True)
    options = ("--state-dir", str(folder / "state"))
    with sidecar(journals, *options, **fake.environ) as exporter:
        say = launcher(journals)
        say("launcher_started", pid=1)
        begin = ("meet", "enter=a", "load=0", "steps=1-20:0.05", "save=15", "commit=15", "fault", "enter=b", "load=15")
        ranks = [
            trainer(
                journals, slot, *begin, "steps=16-40:0.05", "save=35", "commit=35", "steps=41-44:0.05", "ready", "wait",
                CUDA_VISIBLE_DEVICES=f"{uuid(0)},{uuid(1)}",
            )
            for slot in (0, 1)
        ]  # fmt: skip
        meet(*ranks)
        exporter.until(lambda status: status["step"] == 44, "the steps")
        fake.report(1, 79)  # once the sidecar listens: a driver keeps no report for who comes later
        exporter.until(lambda _: exporter.labels("headway_gpu_xid_errors_total"), "the XID")
        finish(*ranks[1:], kill=True)
        exporter.until(lambda status: len(status["incidents"]) == 2, "the second incident")
        yield exporter, f"http://{exporter.address[0]}:{exporter.address[1]}/"
        finish(ranks[0], kill=True)


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all."""
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture(autouse=True)
def quiet(tab: Browser) -> Iterator[None]:
    """Whatever a test does, the browser has nothing to complain about."""
    tab.complaints.clear()
    tab.requests.clear()
    yield
    assert tab.complaints == []


@pytest.mark.parametrize("width", [380, 800, 1400])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_fits_and_can_be_read(dark: bool, width: int, scene: tuple[Sidecar, str], tab: Browser) -> None:
    """No sideways scrolling with all details open, text against its ground as WCAG asks, and nothing fetched but the page itself."""
    tab.open(scene[1], width, dark=dark)
    assert tab.ask(LAYOUT) == {"width": width, "scroll": width, "wide": [], "flat": 0}
    assert [found for found in tab.ask(CONTRAST) if found[0] < LEAST_CONTRAST] == []
    assert {address.rstrip("/") for address in tab.requests if not address.startswith("data:")} == {
        scene[1].rstrip("/")
    }
    assert tab.ask("getComputedStyle(document.body).backgroundColor") == (
        "rgb(20, 24, 28)" if dark else "rgb(255, 255, 255)"
    )


def test_all_that_matters_is_there_without_script(scene: tuple[Sidecar, str], tab: Browser) -> None:
    """Goodputs, step and mark, risk, checkpoint, queue, timeline, incidents with verdict and evidence, ranks and GPUs: as HTML alone."""
    tab.open(scene[1], 800, script=False)
    tab.call("Emulation.setScriptExecutionDisabled", value=False)
    told = json.loads(scene[0].get("/api/v1/status")[2])
    words = tab.ask("document.body.innerText")
    for part in (
        "training goodput",
        "infrastructure goodput",
        "mark 44",
        "at risk",
        "durable checkpoint",
        "saves in the queue",
    ):
        assert part in words
    assert tab.ask("document.querySelector('#c-step b').innerText").startswith("44")
    assert tab.ask("document.querySelectorAll('.timeline svg').length") == 2
    assert tab.ask("document.querySelectorAll('.timeline .mark').length") == 2
    assert tab.ask("document.querySelectorAll('#incidents details.incident').length") == 2
    assert tab.ask("document.querySelector('#incidents details[open] .evidence').innerText")
    assert tab.ask("document.querySelectorAll('.gpu').length") == len(told["gpus"]) == 2
    assert [gpu["ranks"] for gpu in told["gpus"]] == [[0], [1]]
    assert "79 (1 time)" in tab.ask("document.querySelectorAll('.gpu')[1].innerText")
    assert "pause" not in tab.ask("[...document.querySelectorAll('button:not([hidden])')].map(one => one.id)")


def test_everything_has_a_name(scene: tuple[Sidecar, str], tab: Browser) -> None:
    """Who listens to the page finds its parts: landmarks, headings in order, a name for each picture and section, no id twice."""
    tab.open(scene[1], 800)
    found = tab.ask(NAMES)
    assert (found["pictures"], found["sections"], found["landmarks"], found["twice"]) == (0, 0, [1, 1, 1, 1], [])
    assert found["language"] == "en"
    levels = found["headings"]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


def test_the_keyboard_is_enough(scene: tuple[Sidecar, str], tab: Browser) -> None:
    """The first stop skips to the content; an incident opens by Enter; what has the focus can be seen to have it."""
    tab.open(scene[1], 800)
    tab.press("Tab", 9)
    assert tab.ask("document.activeElement.className") == "skip"
    assert tab.ask("document.activeElement.getBoundingClientRect().left") >= 0
    for _ in range(40):
        tab.press("Tab", 9)
        if tab.ask("document.activeElement.matches('details.incident:not([open]) > summary')"):
            break
    assert tab.ask("getComputedStyle(document.activeElement).outlineStyle") != "none"
    tab.press("Enter", 13)
    assert tab.ask("document.activeElement.parentElement.open") is True


class TestLive:
    """A page that stays open."""

    @pytest.fixture
    def own(self, tmp_path: Path) -> Iterator[tuple[Sidecar, str, Path]]:
        """A sidecar of its own, with a trainer that a test moves on."""
        (tmp_path / RUN).mkdir()
        with sidecar(tmp_path) as exporter:
            yield exporter, f"http://{exporter.address[0]}:{exporter.address[1]}/", tmp_path

    def test_it_changes_in_place(self, own: tuple[Sidecar, str, Path], tab: Browser) -> None:
        """New steps and incidents appear; focus, scroll, and what was opened or closed stay as they were."""
        exporter, address, folder = own
        first = ("enter=a", "load=0", "steps=1-5", "fault", "enter=b", "load=0", "steps=1-8")
        rank = trainer(
            folder, 0, *first, "meet", "steps=9-12", "save=10", "commit=10", "fault", "ready", "wait", ranks=1
        )
        exporter.until(lambda status: status["step"] == 8, "the first steps")
        tab.open(address, 800)
        tab.resize(800, 400)
        tab.until("document.querySelectorAll('details.incident').length === 1")
        tab.ask("document.querySelector('details.incident summary').focus()")
        tab.ask("document.querySelector('details.incident').open = false")
        tab.ask("document.querySelector('details.incident summary').held = true")
        tab.ask("document.querySelector('#h-timeline').scrollIntoView()")
        place = "Math.round(document.querySelector('#h-timeline').getBoundingClientRect().top) + 0"
        before = tab.ask(place)
        meet(rank)
        tab.until("document.querySelector('#c-step b').innerText.startsWith('12')")
        tab.until("document.querySelectorAll('details.incident').length === 2")
        assert tab.ask("document.activeElement.held") is True
        assert abs(tab.ask(place) - before) <= 1
        assert tab.ask("document.activeElement.parentElement.open") is False
        finish(rank, kill=True)

    def test_a_dead_sidecar_is_shown_as_dead(self, own: tuple[Sidecar, str, Path], tab: Browser) -> None:
        """No answer: the page says since when; it does not go on looking alive."""
        exporter, address, _ = own
        tab.open(address, 800)
        assert tab.ask("document.getElementById('stale').hidden") is True
        exporter.kill()
        tab.until("!document.getElementById('stale').hidden")
        assert "No answer from the sidecar since" in tab.ask("document.getElementById('stale').innerText")
        assert [found for found in tab.ask(CONTRAST) if found[0] < LEAST_CONTRAST] == []
        tab.call("Page.navigate", url="about:blank")
        tab.complaints[:] = [one for one in tab.complaints if "ERR_CONNECTION_REFUSED" not in one]

    def test_it_can_be_paused(self, own: tuple[Sidecar, str, Path], tab: Browser) -> None:
        """What moves by itself can be stopped, and goes on when told."""
        _, address, _ = own
        tab.open(address, 800)
        tab.until("performance.getEntriesByType('resource').length > 0")
        tab.ask("document.getElementById('pause').click()")
        assert tab.ask("document.getElementById('pause').innerText") == "Go on updating"
        asked: Any = tab.ask("performance.getEntriesByType('resource').length")
        tab.ask("new Promise(done => setTimeout(done, 6000))")
        assert tab.ask("performance.getEntriesByType('resource').length") <= asked + 1  # one may have been under way
        tab.ask("document.getElementById('pause').click()")
        tab.until(f"performance.getEntriesByType('resource').length > {asked + 1}")
