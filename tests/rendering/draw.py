"""Draws a rendered dashboard in headless Chromium, by Grafana's own components, with the data of a live Prometheus.

`python tests/rendering/draw.py FOLDER [NAME …]` writes the README's pictures anew.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if __name__ == "__main__":  # by itself: the other tests' helpers are not on the path
    sys.path.extend(str(Path(__file__).parents[1] / name) for name in ("dashboards", "exporter"))

from live import RATE, RUN, Live, live

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HERE: Final = Path(__file__).parent
DASHBOARDS: Final = HERE.parents[1] / "dashboards" / "json"
CHROMIUM: Final = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
NPM: Final = shutil.which("npm")
PICTURES: Final = ("headway-run", "headway-fleet", "headway-checkpoints", "headway-postmortem", "headway-health")
WIDTH: Final = 1600
CELL: Final = 38
"""Pixels of a line of the grid, with the gap; as in src/main.tsx."""


def build(folder: Path) -> Path:
    """The page, built; packages are installed when they are missing."""
    assert NPM is not None
    # Not `npm ci`: it wants every optional package of other systems to be known to the registry.
    install = [NPM, "install", "--no-save", "--no-audit", "--no-fund"]
    needed = [] if (HERE / "node_modules" / "@grafana" / "ui").exists() else [install]
    for command in [*needed, [NPM, "run", "build", "--", "--outDir", str(folder / "page")]]:
        done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=280, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "page"


@dataclass(frozen=True)
class Easel:
    """A page that is served, and what it measured of each picture."""

    address: str
    dashboards: Path
    measured: list[dict[str, Any]]

    def draw(self, name: str, alive: Live, picture: Path, theme: str = "dark", scale: float = 1) -> dict[str, Any]:
        """Writes a PNG of a dashboard; what the page says about it."""
        assert CHROMIUM is not None
        document = json.loads((self.dashboards / f"{name}.json").read_text())
        every = [one for panel in document["panels"] for one in (panel, *panel.get("panels", []))]
        lines = max(one["gridPos"]["y"] + one["gridPos"]["h"] for one in every)
        parameters = {
            "dashboard": name,
            "prometheus": alive.address,
            "from": f"{alive.began:.0f}",
            "to": f"{alive.ended:.0f}",
            "run": RUN,
            "rate": RATE,
            "theme": theme,
        }
        self.measured.clear()
        command = [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={picture.parent / 'profile'}",
            f"--window-size={WIDTH},{lines * CELL}",
            f"--force-device-scale-factor={scale}",
            "--virtual-time-budget=12000",
            f"--screenshot={picture}",
            f"{self.address}/index.html?{urllib.parse.urlencode(parameters)}",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert self.measured, f"the page said nothing: {done.stdout}{done.stderr}"
        return self.measured[0]


@contextlib.contextmanager
def easel(page: Path, dashboards: Path = DASHBOARDS) -> Iterator[Easel]:
    """Serves the page and the dashboards on the loopback."""
    measured: list[dict[str, Any]] = []
    handler = functools.partial(_Handler, measured, dashboards, directory=str(page))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield Easel(f"http://127.0.0.1:{server.server_port}", dashboards, measured)
        finally:
            server.shutdown()
            thread.join()


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Files of the page, the dashboards beside them, and a place for what was measured."""

    def __init__(self, measured: list[dict[str, Any]], dashboards: Path, *arguments: Any, **options: Any) -> None:
        self._measured = measured
        self._dashboards = dashboards
        super().__init__(*arguments, **options)

    def translate_path(self, path: str) -> str:
        """`/dashboards/NAME.json` is one of ours."""
        name = path.removeprefix("/dashboards/")
        return str(self._dashboards / name) if name != path and "/" not in name else super().translate_path(path)

    def do_POST(self) -> None:
        """What the page measured."""
        self._measured.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


def main(folder: Path, names: Sequence[str]) -> None:
    """Pictures for the README."""
    with tempfile.TemporaryDirectory() as scratch, live(Path(scratch)) as alive, easel(build(Path(scratch))) as stand:
        for name in names or PICTURES:
            stand.draw(name, alive, Path(scratch) / f"{name}.png", scale=0.75)
            shutil.copy(Path(scratch) / f"{name}.png", folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
