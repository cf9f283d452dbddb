"""A real browser, driven through its debugging pipe: no driver to install, and whatever it complains about or asks the network for is seen.

A page is opened at a width, in light or dark; then it is asked by expressions, and its picture can be taken.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHROMIUM: Final = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
"""Where it is; None: not installed."""
OPTIONS: Final = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
BECOME: Final = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""
"""A browser reads its commands from descriptor 3 and writes its answers to descriptor 4."""
PATIENCE_SECONDS: Final = 60.0


class Browser:
    """One tab."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self.complaints: list[str] = []
        """What was written on the console, and exceptions."""
        self.requests: list[str] = []
        """Addresses that were asked for."""

    def begin(self) -> None:
        """Opens the tab."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def open(self, url: str, width: int, *, dark: bool = False, script: bool = True) -> None:
        """Goes to a page, and waits until it is there."""
        self.resize(width)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def resize(self, width: int, height: int = 1000) -> None:
        """Makes the window that wide, also narrower than a window can be."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def ask(self, expression: str) -> Any:
        """Value of an expression of JavaScript, in the page."""
        done = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def until(self, expression: str) -> Any:
        """Its value once it is true."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (found := self.ask(expression)):
            assert time.monotonic() < deadline, f"not within {PATIENCE_SECONDS} s: {expression}"
            time.sleep(0.05)
        return found

    def press(self, key: str, code: int) -> None:
        """A key, down and up."""
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def picture(self, path: Path) -> Path:
        """All of the page, as a PNG."""
        height = self.ask("document.documentElement.scrollHeight")
        width = self.ask("document.documentElement.clientWidth")
        area = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=area)
        path.write_bytes(base64.b64decode(shot["data"]))
        return path

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its answer; what happens meanwhile is noted."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                found: dict[str, Any] = answer["result"]
                return found
            self._note(answer)

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"the browser said nothing for {PATIENCE_SECONDS} s"
            more = os.read(self._from, 1 << 16)
            assert more, "the browser has ended"
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def _note(self, happening: dict[str, Any]) -> None:
        method, told = happening.get("method"), happening.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(str([one.get("value") for one in told["args"]]))
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(told["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.complaints.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser with a profile of its own."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    command = [str(CHROMIUM), *OPTIONS, f"--user-data-dir={folder / 'profile'}", "--remote-debugging-pipe"]
    process = subprocess.Popen(
        [sys.executable, "-c", BECOME, str(theirs_in), str(theirs_out), *command],
        pass_fds=(theirs_in, theirs_out),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        tab = Browser(ours_out, ours_in)
        tab.begin()
        yield tab
    finally:
        process.terminate()
        process.wait(timeout=20)
        os.close(ours_out)
        os.close(ours_in)
