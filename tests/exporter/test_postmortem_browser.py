"""The report in a real browser: nothing is wider than the page, nothing is complained about, in light and dark, on a desk and a phone."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from browser import CHROMIUM, OPTIONS
from report_story import Story, four_faults, loop, quiet, ten_thousand, three_pods

from headway_exporter.report.load import load
from headway_exporter.report.page import html
from headway_exporter.report.report import report
from headway_exporter.report.words import FATE_WORDS

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

DEMO: Final = Path(__file__).parents[2] / "demo-output" / "postmortem.html"
"""What `make demo` leaves."""
DARK: Final = "--blink-settings=preferredColorScheme=0"
LONG: Final = "a-node-with-a-name-that-goes-on-and-on-" * 6

MEASURE: Final = """
<script>
for (const one of document.querySelectorAll("details")) one.open = true;
const width = document.documentElement.clientWidth;
const wide = [...document.querySelectorAll("body *")]
  .filter(one => !one.closest("defs, pre") && one.getBoundingClientRect().right > width + 1)
  .map(one => one.tagName + "." + (one.getAttribute("class") || "") + " " + Math.round(one.getBoundingClientRect().right));
const empty = [...document.querySelectorAll(".timeline svg")].filter(one => one.getBoundingClientRect().width < 100).length;
const words = [...document.querySelectorAll(".tick span")].map(one => one.getBoundingClientRect()).filter(one => one.width);
const crossed = words.filter((one, at) => at && one.left < words[at - 1].right).length;
const measured = {number: NUMBER, width, crossed, words: words.length, empty,
  scroll: document.documentElement.scrollWidth, wide: wide.slice(0, 5),
  back: getComputedStyle(document.body).backgroundColor};
parent.postMessage(JSON.stringify(measured), "*");
</script>
"""
FRAME: Final = """<!DOCTYPE html><body><script>
addEventListener("message", message => {
  const pre = document.createElement("pre");
  pre.className = "measured";
  pre.textContent = message.data;
  document.body.appendChild(pre);
});
</script>
"""
"""A window cannot be narrower than 500 pixels, a frame in it can."""


def long_names() -> Story:
    """Names that are longer than a phone is wide."""
    return Story(run=f"run-{LONG}"[:200], node=LONG + "{}").starts().trains(40).fails().trains(9).ends()


STORIES: Final[tuple[Callable[[], Story], ...]] = (quiet, four_faults, loop, three_pods, long_names)


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize("width", [1280, 380])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_pages_fit(dark: bool, width: int, tmp_path: Path) -> None:
    """Every element is inside the page at each width, also with all details open; the colours follow the reader's choice."""
    pages = [page(make(), tmp_path / make.__name__) for make in STORIES]
    for make, found in zip(STORIES, measure_pages(pages, tmp_path, width, dark=dark), strict=True):
        assert (make.__name__, found["width"], found["wide"], found["empty"]) == (make.__name__, width, [], 0)
        assert found["scroll"] <= width
        assert found["back"] == ("rgb(20, 24, 28)" if dark else "rgb(255, 255, 255)")


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize("make", STORIES)
def test_nothing_is_complained_about(make: Callable[[], Story], tmp_path: Path) -> None:
    """The page itself, with all that it forbids the browser, is understood without a word on the console."""
    story = make()
    (tmp_path / "page.html").write_text(page(story, tmp_path), encoding="utf-8")
    assert story.run[:20] in browse(tmp_path / "page.html", tmp_path, dark=False)


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize("width", [1280, 720, 380])
def test_times_below_the_picture_fit(width: int, tmp_path: Path) -> None:
    """However long the run was, and wherever its last round moment lies: no time hangs over the edge, or over the next one."""
    lengths = (83, 118, 137, 156, 205, 290)
    pages = [page(Story(run="quiet").starts().trains(one).ends(), tmp_path / f"{one}") for one in lengths]
    for length, found in zip(lengths, measure_pages(pages, tmp_path, width), strict=True):
        assert (length, found["scroll"], found["wide"], found["crossed"]) == (length, width, [], 0)
        assert found["words"] >= 2


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_large_page_fits(tmp_path: Path) -> None:
    """So it is with hundreds of incidents on a phone."""
    measured = measure(ten_thousand(300), tmp_path, 380, dark=False)
    assert (measured["wide"], measured["empty"]) == ([], 0)


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize("width", [1280, 380])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_demos_report_fits(dark: bool, width: int, tmp_path: Path) -> None:
    """The report that everybody sees first, of a real run: its verdict is there, and nothing is complained about or too wide."""
    if not DEMO.is_file():
        pytest.skip("make demo has not been run")
    measured, shown = measure_page(DEMO.read_text(encoding="utf-8"), tmp_path, width, dark=dark)
    headline = re.search(r'<p class="headline"><bdi>(.*?)</bdi>', shown, re.DOTALL)
    assert headline is not None
    assert re.search(r"\w{3}", re.sub(r"<[^>]*>", "", headline[1]))
    fate = re.search(r'<span class="level">(.*?)</span>', shown, re.DOTALL)
    assert fate is not None
    assert FATE_WORDS["finished"] in fate[1]
    assert (measured["width"], measured["wide"], measured["empty"]) == (width, [], 0)
    assert measured["scroll"] <= width


def page(story: Story, folder: Path) -> str:
    """The report of a story."""
    return html(report(load(story.write(folder / "state"), story.wall + 1.0)))


def measure(story: Story, folder: Path, width: int, *, dark: bool) -> dict[str, Any]:
    """What the browser makes of a copy of the page that measures itself; the page itself allows no script."""
    measured, shown = measure_page(page(story, folder), folder, width, dark=dark)
    assert story.run[:20] in shown
    return measured


def measure_page(source: str, folder: Path, width: int, *, dark: bool) -> tuple[dict[str, Any], str]:
    """The same of any such page, and what the browser has understood of the page itself."""
    (folder / "page.html").write_text(source, encoding="utf-8")
    shown = browse(folder / "page.html", folder, dark=dark)
    (measured,) = measure_pages([source], folder, width, dark=dark)
    return measured, shown


def measure_pages(sources: list[str], folder: Path, width: int, *, dark: bool = False) -> list[dict[str, Any]]:
    """The same of several, side by side in one browser, in their order."""
    frames = []
    for number, source in enumerate(sources):
        script = MEASURE.replace("NUMBER", str(number))
        copy = re.sub(r"<meta http-equiv[^>]*>", "", source).replace("</body>", f"{script}</body>")
        (folder / f"copy{number}.html").write_text(copy, encoding="utf-8")
        frames.append(f'<iframe src="copy{number}.html" style="border:0" width="{width}" height="900"></iframe>')
    (folder / "frame.html").write_text(FRAME + "".join(frames), encoding="utf-8")
    found = re.findall(r'<pre class="measured">(.*?)</pre>', browse(folder / "frame.html", folder, dark=dark))
    texts = [one.replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">") for one in found]
    measured: list[dict[str, Any]] = sorted(map(json.loads, texts), key=lambda one: int(one["number"]))
    assert len(measured) == len(sources)
    return measured


def browse(page: Path, folder: Path, *, dark: bool) -> str:
    """The page as the browser has understood it; what it writes to its console is a failure."""
    command = [str(CHROMIUM), *OPTIONS]
    command += ["--enable-logging=stderr", f"--user-data-dir={folder / 'profile'}", "--window-size=1400,1000"]
    command += ["--virtual-time-budget=3000"]  # until the frame has sent its message
    command += [DARK] if dark else []
    done = subprocess.run(
        [*command, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert complaints == []
    return done.stdout
