"""The pod's status through the official client, over TLS with the cluster's own certificate, from an API that may do anything."""

from __future__ import annotations

import gzip
import logging
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kubernetes_api import NAMESPACE, POD, TOKEN, Api, Reply, recorded, service_account

from headway import clock
from headway_exporter.health.instruments import AbsentError
from headway_exporter.health.kubernetes import Answer, Place, PodProbe, instrument
from headway_exporter.health.kubernetes_client import MOST_POD_BYTES, MOST_WAIT_SECONDS, KubernetesError

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("kubernetes.client", reason="the client is not installed: pip install 'headway[kubernetes]'")


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A service account with a certificate."""
    return service_account(tmp_path_factory.mktemp("account"))


@pytest.fixture
def api(account: Path) -> Iterator[Api]:
    """The API, with the pod that asks."""
    with Api(account, [recorded("running")]) as made:
        yield made


def probe(api: Api, **place: Any) -> PodProbe:
    return PodProbe(Place(**({"pod": POD, "namespace": NAMESPACE, "service_account": api.folder} | place)), api.environ)


def reasons(answer: Answer) -> list[tuple[str, str]]:
    return [(seen.kind, seen.reason) for seen in answer.happened if seen.kind != "heard"]


def test_a_pod_that_runs(api: Api) -> None:
    """The question is for this pod alone, with the token, and the answer is zero restarts."""
    asked = probe(api)
    answer = asked.read()
    assert list(asked.samples(answer)) == [("headway_container_restarts", ("trainer",), 0)]
    assert [seen.kind for seen in asked.observations(answer)] == ["heard"]
    assert api.asked[0][0] == f"/api/v1/namespaces/{NAMESPACE}/pods/{POD}"
    assert {token.lower() for token in api.tokens} == {f"bearer {TOKEN}".lower()}


def test_a_container_that_was_killed_for_memory_and_restarted(api: Api) -> None:
    """`restartPolicy: OnFailure`: the pod lives on and tells of the run before."""
    api.pods[:] = [recorded("oom_killed_and_restarted")]
    asked = probe(api)
    answer = asked.read()
    assert reasons(answer) == [("container", "oom_killed")]
    assert list(asked.samples(answer)) == [("headway_container_restarts", ("trainer",), 1)]


def test_the_pods_before_this_one(api: Api) -> None:
    """`restartPolicy: Never`: the job made this pod in the place of others, which still tell what ended them."""
    other = recorded("preempted")
    other["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] = "4"
    api.pods += [recorded("oom_killed"), recorded("evicted_for_memory"), other]
    answer = probe(api).read()
    assert reasons(answer) == [("container", "oom_killed"), ("container", "error"), ("disruption", "evicted")]
    listed = [options for path, options in api.asked if not path.endswith(POD)]
    assert [options["limit"] for options in listed] == [["64"]]
    assert listed[0]["resourceVersion"] == ["0"], (
        "from the API server's memory: a thousand pods must not ask its database"
    )


def test_the_earlier_pods_are_not_asked_for_at_every_look(api: Api) -> None:
    """A thousand pods that list pods every ten seconds are a load that nobody wants."""
    asked = probe(api)
    for _ in range(3):
        asked.read()
    assert len([path for path, _ in api.asked if path.endswith(POD)]) == 3
    assert len([path for path, _ in api.asked if not path.endswith(POD)]) == 1


def test_without_the_right_to_get_pods(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    """403 is how most clusters begin: one line names the right, and it is no fault; once granted it works."""
    api.broken["get"] = 403
    asked = instrument(Place(POD, NAMESPACE, "", api.folder), api.environ)
    assert asked is not None
    for _ in range(3):
        asked.read()
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert f"may not get pods in namespace {NAMESPACE} (HTTP 403)" in line
    assert "grant it get and list on pods" in line
    assert list(asked.samples()) == []
    del api.broken["get"]
    asked.read()
    assert ("headway_collector_success", ("kubernetes",), 1.0) in list(asked.samples())


def test_without_the_right_to_list_pods(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    """The pod's own status is worth having without that of the earlier ones."""
    api.pods[:] = [recorded("oom_killed_and_restarted")]
    api.broken["list"] = 403
    asked = probe(api)
    assert reasons(asked.read()) == [("container", "oom_killed")]
    asked._looked = -1e9
    asked.read()
    (line,) = [record.getMessage() for record in caplog.records]
    assert "may not list pods" in line


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (500, "HTTP 500"),
        (429, "HTTP 429"),
        (410, "HTTP 410"),
        (503, "HTTP 503"),
        (401, "token is not accepted"),
        (302, "HTTP 302"),
        (b"", "no JSON"),
        (b"<html>a proxy</html>", "no JSON"),
        (b"[1, 2]", "no JSON object"),
        (b"[" * 200_000, "no JSON"),
        (b'{"metadata": "' + b"x" * (MOST_POD_BYTES + 10) + b'"}', "longer than"),
        (b"\xff\xfe{}", "no JSON"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_an_answer_that_is_none(api: Api, broken: int | bytes, words: str) -> None:
    """Whatever comes back, the message says what was asked and what came; then it works again."""
    asked = probe(api)
    api.broken["get"] = broken
    with pytest.raises(KubernetesError) as caught:
        asked.read()
    assert words in str(caught.value)
    assert f"get pod {POD}" in str(caught.value)
    assert "\n" not in str(caught.value)
    api.broken.clear()
    assert asked.read().restarts == {"trainer": 0}


@pytest.mark.parametrize(
    "body", [b"{}", b'{"metadata": 3, "status": []}', b'{"status": {"containerStatuses": [3, {"name": 7}]}}']
)
def test_an_answer_without_what_is_asked(api: Api, body: bytes) -> None:
    """JSON that is no pod tells of nothing, and is no error either."""
    asked = probe(api)
    for _ in range(2):
        api.broken["get"] = body
        answer = asked.read()
        assert (answer.restarts, reasons(answer)) == ({}, [])
        api.broken.clear()
        assert reasons(asked.read()) == []


def test_a_pod_of_another_name(api: Api) -> None:
    """POD_NAME set by hand to the job's name: the line says where the name must come from."""
    with pytest.raises(KubernetesError, match="downward API"):
        probe(api, pod="llama-3").read()


def test_an_api_that_does_not_answer(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the connection and says nothing: the read ends by its time limit and says so."""
    monkeypatch.setattr("headway_exporter.health.kubernetes_client.ANSWER_SECONDS", 0.3)
    api.broken["get"] = threading.Event()
    with pytest.raises(KubernetesError, match="timed out"):
        probe(api).read()


def test_an_api_that_is_not_there(api: Api) -> None:
    """No connection: one line with the reason, and no object's address in memory."""
    gone = {**api.environ, "KUBERNETES_SERVICE_PORT": "1"}
    with pytest.raises(KubernetesError, match="refused") as caught:
        PodProbe(Place(POD, NAMESPACE, "", api.folder), gone).read()
    assert "0x" not in str(caught.value)


def test_another_certificate_is_not_trusted(api: Api, tmp_path: Path) -> None:
    """The token goes only to who has the cluster's certificate."""
    elsewhere = service_account(tmp_path / "other")
    with pytest.raises(KubernetesError, match="certificate"):
        probe(api, service_account=elsewhere).read()
    assert api.asked == []


def mounted(account: Path, folder: Path) -> Path:
    """A service account as a kubelet mounts it: each file is a link into a folder that is replaced as a whole."""
    folder.mkdir()
    remount(account, folder)
    for name in ("token", "ca.crt", "namespace"):
        (folder / name).symlink_to(f"..data/{name}")
    return folder


def remount(account: Path, folder: Path, token: str = TOKEN) -> None:
    """Another token or certificate takes the place of the one before."""
    data = Path(tempfile.mkdtemp(prefix="..", dir=folder))
    for name in ("ca.crt", "namespace"):
        (data / name).write_text((account / name).read_text())
    (data / "token").write_text(token)
    (folder / "new").symlink_to(data.name)
    (folder / "new").replace(folder / "..data")


def test_a_token_that_changes(api: Api, tmp_path: Path) -> None:
    """Tokens last an hour: the next question has the new one."""
    folder = mounted(api.folder, tmp_path / "account")
    asked = probe(api, service_account=folder)
    asked.read()
    api.token = "the next token"  # noqa: S105
    with pytest.raises(KubernetesError, match="token is not accepted"):
        asked.read()
    remount(api.folder, folder, api.token)
    assert asked.read().restarts == {"trainer": 0}
    assert [token.partition(" ")[2] for token in sorted(api.tokens)] == [TOKEN, "the next token"]


def test_a_certificate_that_changes(api: Api, tmp_path: Path) -> None:
    """The cluster's authority is replaced: the old one is trusted no more, and the new one as soon as it is mounted."""
    folder, other = mounted(api.folder, tmp_path / "account"), service_account(tmp_path / "other")
    asked = probe(api, service_account=folder)
    asked.read()
    api.certify(other)
    again = probe(api, service_account=folder)
    with pytest.raises(KubernetesError, match="certificate"):
        again.read()
    remount(other, folder)
    for one in (asked, again):
        assert one.read().restarts == {"trainer": 0}


def test_a_service_account_that_goes_and_comes_back(api: Api, tmp_path: Path) -> None:
    """Garbage in the place of the certificate, no token for a moment: named, and over when they are there again."""
    folder = mounted(api.folder, tmp_path / "account")
    asked = probe(api, service_account=folder)
    asked.read()
    (folder / "ca.crt").unlink()
    (folder / "ca.crt").write_text("no certificate")
    with pytest.raises(KubernetesError, match=r"(?i)certificate"):
        asked.read()
    (folder / "ca.crt").unlink()
    (folder / "ca.crt").symlink_to("..data/ca.crt")
    asked.read()
    (folder / "token").unlink()
    with pytest.raises(AbsentError, match="no service account"):
        asked.read()
    (folder / "token").symlink_to("..data/token")
    assert asked.read().restarts == {"trainer": 0}


@pytest.mark.parametrize("body", [b"{}", b'{"metadata": {}}' + b" " * 5_000], ids=["short", "long"])
def test_an_answer_that_comes_byte_by_byte(api: Api, body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """No byte is late, and the whole would take for ever: headers or body, it is hung up on, and the next question works."""
    monkeypatch.setattr("headway_exporter.health.kubernetes_client.WHOLE_SECONDS", 0.5)
    asked = probe(api)
    asked.read()
    for head in ({"X-Long": "x" * 5_000}, {}):
        api.broken["get"] = Reply(headers=head, body=body + b" " * 500, seconds=0.005)
        with pytest.raises(KubernetesError, match="no whole answer within"):
            asked.read()
    api.broken.clear()
    monkeypatch.undo()
    assert asked.read().restarts == {"trainer": 0}


@pytest.mark.parametrize("status", [429, 503])
def test_an_api_that_wants_to_be_left_alone(api: Api, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry-After: no question before that time, the reason in between, and never longer than minutes."""
    asked, now = probe(api), [clock.monotonic()]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    api.broken["get"] = Reply(status, {"Retry-After": "40"})
    for passed in (0.0, 10.0, 29.0):
        now[0] += passed
        with pytest.raises(KubernetesError, match=f"HTTP {status}, to be asked again later"):
            asked.read()
    assert len(api.asked) == 1
    api.broken["get"] = Reply(status, {"Retry-After": "9" * 30})
    now[0] += 2.0
    for _ in range(2):
        with pytest.raises(KubernetesError):
            asked.read()
    assert len(api.asked) == 2
    api.broken["get"] = Reply(status, {"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"})
    now[0] += MOST_WAIT_SECONDS + 1
    for _ in range(2):  # a date tells nothing without the API's clock: it is asked as usual
        with pytest.raises(KubernetesError, match=f"HTTP {status}"):
            asked.read()
    assert len(api.asked) == 4
    api.broken.clear()
    assert asked.read().restarts == {"trainer": 0}


def test_the_token_goes_to_no_other_address(api: Api) -> None:
    """A redirect is an answer like any other that is none: whoever it names is not asked, and not told the token."""
    with Api(api.folder, [recorded("running")]) as other:
        for status in (301, 302, 307, 308):
            path = f"/api/v1/namespaces/{NAMESPACE}/pods/{POD}"
            api.broken["get"] = Reply(status, {"Location": f"https://127.0.0.1:{other.port}{path}"})
            with pytest.raises(KubernetesError, match=f"HTTP {status}"):
                probe(api).read()
        assert other.asked == []


def test_a_packed_answer_is_not_unpacked(api: Api) -> None:
    """Nobody asked for one, and a few kilobytes may be gigabytes."""
    api.broken["get"] = Reply(
        headers={"Content-Encoding": "gzip"}, body=gzip.compress(b'{"metadata": {}}' + b" " * (1 << 20))
    )
    with pytest.raises(KubernetesError, match="no JSON"):
        probe(api).read()


def test_a_pod_that_was_deleted_while_it_runs(api: Api) -> None:
    """Somebody deleted it by force: told once it is certain, not beyond doubt, and again by the same name."""
    asked = probe(api)
    asked.read()
    gone, api.pods[:] = api.pods[:], []
    with pytest.raises(KubernetesError, match="HTTP 404"):
        asked.read()  # the memory of one of several API servers may be behind
    answers = [asked.read() for _ in range(2)]
    for answer in answers:
        assert reasons(answer) == [("disruption", "other")]
        assert (answer.happened[-1].cause, answer.happened[-1].sure) == ("preempted", False)
        assert answer.restarts == {}
    assert len({answer.happened[-1].happening for answer in answers}) == 1
    api.pods[:] = gone
    assert reasons(asked.read()) == []


def test_another_pod_of_the_same_name(api: Api) -> None:
    """A stateful set makes it while the old one still ends: what it goes through is not told as this one's."""
    asked = probe(api)
    asked.read()
    api.pods[:] = [recorded("oom_killed_and_restarted", name=POD, uid="u-another")]
    answer = asked.read()
    assert reasons(answer) == [("disruption", "other")]
    assert answer.restarts == {}
    assert answer.happened[-1].happening == "u-now/gone"


def test_a_pod_that_is_gone_after_it_was_taken_away(api: Api) -> None:
    """Why is known already: its end is no second disruption."""
    api.pods[:] = [recorded("preempted", name=POD, uid="u-now")]
    asked = probe(api)
    assert ("disruption", "preempted") in reasons(asked.read())
    api.pods.clear()
    with pytest.raises(KubernetesError):
        asked.read()
    assert reasons(asked.read()) == []


def test_trouble_is_told_once_for_each_sort(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    """An API that is down for a day writes a line a sort of trouble, and one when it is over."""
    asked = instrument(Place(POD, NAMESPACE, "", api.folder), api.environ)
    assert asked is not None
    asked.read()
    for _ in range(3):
        for broken in (500, 500, 401, b"<html>"):
            api.broken["get"] = broken
            asked.read()
            assert ("headway_collector_success", ("kubernetes",), 0.0) in list(asked.samples())
    api.broken.clear()
    asked.read()
    assert ("headway_collector_success", ("kubernetes",), 1.0) in list(asked.samples())
    lines = [record.getMessage() for record in caplog.records]
    assert [next((word for word in ("500", "401", "no JSON", "again") if word in line), line) for line in lines] == [
        "500",
        "401",
        "no JSON",
        "again",
    ]


@pytest.mark.parametrize(
    ("place", "words"),
    [({"pod": ""}, "POD_NAME is not set"), ({"namespace": "", "service_account": "nowhere"}, "no service account")],
)
def test_where_nobody_may_ask(api: Api, place: dict[str, Any], words: str, tmp_path: Path) -> None:
    """What is missing is named, as something that is not there and no fault."""
    if "service_account" in place:
        place = place | {"service_account": tmp_path / "nowhere"}
    with pytest.raises(AbsentError, match=words):
        probe(api, **place).read()


def test_the_namespace_of_the_service_account(api: Api) -> None:
    """Who sets POD_NAME only is in the service account's own namespace."""
    assert probe(api, namespace="").read().restarts == {"trainer": 0}


def test_outside_of_kubernetes() -> None:
    """Elsewhere nothing is read, nothing is said, and the client is not even imported."""
    assert instrument(Place("p"), {}) is None
