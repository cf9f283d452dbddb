"""The pod's status through the official client, over TLS with the cluster's own certificate, from an API that may do anything."""

from __future__ import annotations

import logging
import threading
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest
from kubernetes_api import NAMESPACE, POD, TOKEN, Api, recorded, service_account

from headway_exporter.health.instruments import AbsentError
from headway_exporter.health.kubernetes import MOST_BYTES, Answer, KubernetesError, Place, PodProbe, instrument

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("kubernetes", reason="the client is not installed: pip install 'headway[kubernetes]'")


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
        (401, "token is not accepted"),
        (302, "HTTP 302"),
        (b"", "no JSON"),
        (b"<html>a proxy</html>", "no JSON"),
        (b"[1, 2]", "no JSON object"),
        (b"[" * 200_000, "no JSON"),
        (b'{"metadata": "' + b"x" * (MOST_BYTES + 10) + b'"}', "longer than"),
        (b"\xff\xfe{}", "no JSON"),
    ],
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
    api.broken["get"] = body
    answer = probe(api).read()
    assert (answer.restarts, reasons(answer)) == ({}, [])


def test_a_pod_of_another_name(api: Api) -> None:
    """POD_NAME set by hand to the job's name: the line says where the name must come from."""
    with pytest.raises(KubernetesError, match="downward API"):
        probe(api, pod="llama-3").read()


def test_an_api_that_does_not_answer(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the connection and says nothing: the read ends by its time limit and says so."""
    monkeypatch.setattr("headway_exporter.health.kubernetes.ANSWER_SECONDS", 0.3)
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


def test_a_token_that_changes(api: Api) -> None:
    """Tokens last an hour: the client must read the file again, which the official one does every minute."""
    asked = probe(api)
    asked.read()
    token = api.folder / "token"
    token.write_text("another")
    try:
        hook = asked._connected()._configuration.refresh_api_key_hook
        loader = hook.__closure__[0].cell_contents
        loader.token_expires_at = datetime.now()
        with pytest.raises(KubernetesError, match="token is not accepted"):
            asked.read()
    finally:
        token.write_text(TOKEN)
    assert {one.rpartition(" ")[2] for one in api.tokens} == {TOKEN, "another"}


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
