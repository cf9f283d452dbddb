"""The status page and its API on a real sidecar's port."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from html.parser import HTMLParser
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import pytest
from journal_folder import RUN, finish, launcher, meet, trainer
from page_story import departures
from sidecar_process import sidecar

from headway.journal import JournalWriter
from headway_exporter.opening import Opening
from headway_exporter.page import model
from headway_exporter.page import routes as page_routes
from headway_exporter.page.taking import MOST_INCIDENTS
from headway_exporter.routes import Request
from headway_exporter.sidecar import Sidecar

if TYPE_CHECKING:
    from pathlib import Path

DOCUMENTS: Final = {
    "/api/v1/status": model.Status,
    "/api/v1/incidents": model.Incidents,
    f"/api/v1/incidents?limit={MOST_INCIDENTS}": model.Incidents,
    "/api/v1/timeline": model.Timeline,
    "/api/v1/timeline?window=run": model.Timeline,
}
HOSTILE: Final = (
    "<script>alert(1)</script>",
    "'\"><img src=x onerror=alert(1)>",
    "</title></style><svg onload=alert(1)>",
    "\u202egnp.exe\u2066",
    "nul\x00 and bell\x07 and \x1b[31m",
    "{{ 7 * 7 }}{% raw %}",
    "x" * 5_000,
    "&lt;b&gt;",
)


class Seen(HTMLParser):
    """What a browser would make of a page: elements, event handlers, text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.handlers: list[str] = []
        self.words: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_each_document_is_what_its_classes_say(tmp_path: Path) -> None:
    """Before any trainer, and of a run with an incident, still going on: no field is missing, unknown, or of another type."""
    with sidecar(tmp_path) as exporter:

        def check() -> dict[str, Any]:
            found = {}
            for path, kind in DOCUMENTS.items():
                code, headers, body = exporter.get(path)
                assert (code, headers["Content-Type"]) == (200, "application/json")
                found[path] = json.loads(body)
                assert departures(found[path], kind) == []
            return found

        assert check()["/api/v1/status"]["fate"] == "waiting"
        (tmp_path / RUN).mkdir()
        say = launcher(tmp_path)
        say("launcher_started", pid=1)
        ranks = [
            trainer(tmp_path, slot, "meet", "enter=a", "load=0", "steps=1-6", "save=4", "commit=4", "ready", "wait")
            for slot in (0, 1)
        ]
        meet(*ranks)
        exporter.until(lambda status: status["step"] == 6, "the steps")
        finish(*ranks, kill=True)
        told = exporter.until(lambda status: not any(rank["alive"] for rank in status["ranks"]), "the deaths")
        found = exporter_until(exporter, "/api/v1/status", lambda one: one["incidents"]["open"] == 1)
        same = ("run", "pod_index", "step", "high_water_step", "total_steps", "restarts", "state")
        assert {name: found[name] for name in same} == {name: told[name] for name in same}
        assert found["fate"] == "failing"
        [incident] = check()["/api/v1/incidents"]["incidents"]
        assert (incident["outcome"], incident["origin_rank"] in (0, 1)) == ("open", True)
        assert exporter.stop() == (0, "")


def exporter_until(exporter: Any, path: str, condition: Any) -> dict[str, Any]:
    """A document, once something holds of it."""
    exporter.until(lambda _: condition(json.loads(exporter.get(path)[2])), path)
    found: dict[str, Any] = json.loads(exporter.get(path)[2])
    return found


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        f"limit={MOST_INCIDENTS + 1}",
        "limit=-1",
        "limit=x",
        "limit=1e3",
        "limit=%F0%9D%9F%97",
        "limit=" + "9" * 5_000,
    ],
)
def test_no_limit_is_out_of_bounds(query: str, tmp_path: Path) -> None:
    """However many incidents there are, an answer has so many at most; what is no such number is told."""
    page = page_routes.Page(Sidecar(tmp_path, RUN, "0", silence_seconds=30.0))
    answer = page.incidents(Request("/api/v1/incidents", query))
    assert answer.status == HTTPStatus.BAD_REQUEST
    assert b"1 to 50" in answer.body


@pytest.mark.parametrize(
    "query", ["", "a=" * 3, "&&&;;", "limit", "=".join("ab" * 50), "&".join(["x=1"] * 100), "%", "window="]
)
def test_other_queries_mean_nothing(query: str, tmp_path: Path) -> None:
    """Whoever follows a link with something behind it gets the page."""
    page = page_routes.Page(Sidecar(tmp_path, RUN, "0", silence_seconds=30.0))
    assert page.timeline(Request("/api/v1/timeline", query)).status == HTTPStatus.OK
    assert page.incidents(Request("/api/v1/incidents", query)).status == HTTPStatus.OK
    assert page.timeline(Request("/api/v1/timeline", "window=week")).status == HTTPStatus.BAD_REQUEST


def test_a_crowd_gets_one_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred who look at once cost one look at the pod and one drawing of it."""
    monkeypatch.setattr(page_routes, "LEAST_SECONDS", math.inf)
    page = page_routes.Page(Sidecar(tmp_path, RUN, "0", silence_seconds=30.0))
    with ThreadPoolExecutor(20) as crowd:
        answers = list(crowd.map(lambda _: page.page(Request("/")).body, range(100)))
    assert len({id(one) for one in answers}) == 1


def test_a_page_that_is_only_html(tmp_path: Path) -> None:
    """Nothing may run but its own script, nothing be fetched from elsewhere, and no browser may guess at types."""
    with sidecar(tmp_path) as exporter:
        code, headers, body = exporter.get("/")
        assert exporter.get("/", method="HEAD")[2] == ""
        assert exporter.get("/", method="POST")[0] == 405
        assert exporter.get("/api")[0] == exporter.get("/index.html")[0] == 404
    assert (code, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert headers["X-Content-Type-Options"] == "nosniff"
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'sha256-" in policy
    assert "http" not in policy
    assert "connect-src 'self'" in policy
    assert Seen(body).tags.count("script") == 1
    assert "src=" not in body
    assert "//" not in body.split("</style>")[1].split("<script>")[0]


def test_before_the_sidecar_is_there_the_page_says_so() -> None:
    """A state folder on a network may take half a minute: who looks meanwhile is told, and looks again by himself."""
    opening = Opening("a <b>", "0")
    page = opening.page("page")(Request("/"))
    assert page.status == HTTPStatus.SERVICE_UNAVAILABLE
    assert b"The state folder is being read" in page.body
    assert b"a &lt;b&gt;" in page.body
    assert b'http-equiv="refresh"' in page.body
    assert opening.page("status")(Request("/api/v1/status")).status == HTTPStatus.SERVICE_UNAVAILABLE


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_texts_from_journals_stay_texts(text: str, tmp_path: Path) -> None:
    """No element, handler or control character that the trainer's container writes reaches a reader, and what it said can be read."""
    (tmp_path / RUN).mkdir()
    writer = JournalWriter(tmp_path / RUN / "slot-0.jsonl", 7)
    told = {
        "rank": 0,
        "world_size": 1,
        "pid": 1,
        "node": text,
        "gpu_uuid": text,
        "backend": text,
        "versions": {text: text},
    }
    writer.write("process_started", told | {"settings": {text: text}})
    writer.write("train_entered", {"rank": 0, "world_size": 1}, incarnation=text[:100])
    writer.write("fault_caught", {"type": text, "message": text, "traceback": f"{text}\n{text}", "collective": False})
    with sidecar(tmp_path) as exporter:
        exporter_until(exporter, "/api/v1/status", lambda one: one["incidents"]["open"] == 1)
        body = exporter.get("/")[2]
        found = [json.loads(exporter.get(path)[2]) for path in DOCUMENTS]
        assert exporter.stop() == (0, "")
    seen = Seen(body)
    assert seen.handlers == []
    assert (seen.tags.count("script"), seen.tags.count("img"), seen.tags.count("title") > 0) == (1, 0, True)
    for told_text in [*texts(found), "".join(seen.words), unescape(body)]:
        assert all(char.isprintable() or char in "\n\u202f\u00a0" for char in told_text), told_text
    assert max(map(len, texts(found))) <= 1_100
    assert text.split("\x00")[0].split("\u202e")[-1].strip("\u2066")[:8] in "".join(seen.words)


def texts(value: Any) -> list[str]:
    """All texts of a document."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [one for item in value.items() for part in item for one in texts(part)]
    return [one for item in value for one in texts(item)] if isinstance(value, list) else []


def test_a_state_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """The page works without it, and its first line says what is wrong."""
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "pod").mkdir()
    with sidecar(tmp_path / "pod", "--state-dir", str(tmp_path / "file" / "state")) as exporter:
        found = exporter_until(exporter, "/api/v1/status", lambda one: one["notes"][0]["level"] == "bad")
        assert "State folder: cannot" in found["notes"][0]["text"]
        assert "State folder: cannot" in exporter.get("/")[2]


def test_two_pods_know_each_other(tmp_path: Path) -> None:
    """Two sidecars with one state folder: each page has both pods, as soon as somebody looks."""
    for pod in ("0", "1"):
        (tmp_path / pod).mkdir()
    options = ("--state-dir", str(tmp_path / "state"))
    with (
        sidecar(tmp_path / "0", *options, HEADWAY_POD_INDEX="0") as first,
        sidecar(tmp_path / "1", *options, HEADWAY_POD_INDEX="1"),
    ):
        found = exporter_until(first, "/api/v1/status", lambda one: one["whole"] and one["whole"]["pods_heard"] == 2)
    assert [(one["pod_index"], one["here"]) for one in found["whole"]["pods"]] == [("0", True), ("1", False)]
