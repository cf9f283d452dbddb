"""The pod's own status from the Kubernetes API: why its containers ended, and why it was taken away.

It is asked every ten seconds with the pod's service account, and once more when the sidecar is told to end: a pod that is preempted or
evicted is told of it while it still has time to end in order. A pod that is gone cannot ask any more. What it left is then told by
the pod that an indexed job makes in its place, which in its first minutes looks for the earlier ones by the job's labels: those that
failed stay until the job is deleted, one that was preempted only until the job has counted it. Other owners than jobs delete a pod
before they make the next one, and all that is known of it then is what its own sidecar read.

What it needs: `POD_NAME` (and `POD_NAMESPACE`, else the service account's own) by the downward API, a service account whose token is
mounted, and a role for it: verb `get` on `pods`, and `list` for the earlier ones. Without `list` only the pod itself is read.

    apiVersion: rbac.authorization.k8s.io/v1
    kind: Role
    metadata: {name: headway}
    rules: [{apiGroups: [""], resources: [pods], verbs: [get, list]}]

The official client takes about 20 MB (version 37; twice as much in 35) and is imported only where all of this is there.
"""

from __future__ import annotations

import gc
import importlib
import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from headway import clock
from headway_exporter.health.instruments import AbsentError, Instrument
from headway_exporter.health.pod_status import Look, happenings, predecessors, restarts, selector, uid
from headway_exporter.observations import PodStatusSeen

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headway_exporter.collectors import Sample
    from headway_exporter.observations import Observation

_log = logging.getLogger("headway.exporter")

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
EVERY_SECONDS: Final = 10.0
DEADLINE_SECONDS: Final = 30.0
CONNECT_SECONDS: Final = 3.0
ANSWER_SECONDS: Final = 5.0
LAST_SECONDS: Final = 4.0
"""How long the sidecar's end waits for a last answer."""
PREDECESSORS_SECONDS: Final = 300.0
"""Time in which the earlier pods are looked for: whatever ended before this pod began is told by then."""
PREDECESSORS_EVERY_SECONDS: Final = 30.0
MOST_BYTES: Final = 8 << 20
MOST_LISTED: Final = 64
_FROM_MEMORY: Final = "0"
"""Resource version: whatever the API server knows without asking its database. A thousand pods ask."""
_FORBIDDEN: Final = 403
_OK: Final = 200


class KubernetesError(Exception):
    """The API did not answer the question; the message says what it was and what to do."""


class ForbiddenError(KubernetesError):
    """The service account has not the right that the question needs."""


@dataclass(frozen=True)
class Place:
    """Who asks, and where."""

    pod: str
    namespace: str = ""
    """Empty: the service account's."""
    own_container: str = ""
    """The sidecar's container, whose ends are none of training; empty: none of those that the pod's status lists, or not known."""
    service_account: Path = SERVICE_ACCOUNT
    """Folder with `token`, `ca.crt` and `namespace`."""


@dataclass(frozen=True)
class Answer:
    """What became of the pod, and of those before it."""

    restarts: Mapping[str, int]
    """By container."""
    happened: tuple[PodStatusSeen, ...]


class PodProbe:
    """Asks the API for the pod's status."""

    name = "kubernetes"
    every_seconds = EVERY_SECONDS
    deadline_seconds = DEADLINE_SECONDS

    def __init__(self, place: Place, environ: Mapping[str, str]) -> None:
        self._place = place
        self._environ = environ
        self._began = clock.monotonic()
        self._looked = -PREDECESSORS_EVERY_SECONDS
        self._api: Api | None = None
        self._said: set[str] = set()

    def read(self) -> Answer:
        """The pod's status now, and in the first minutes that of the earlier pods.

        Raises:
            AbsentError: this is no pod that may ask.
            KubernetesError: the API gave no answer.
        """
        api, place = self._connected(), self._place
        namespace = place.namespace or self._own_namespace()
        try:
            pod = api.pods(namespace, place.pod, resourceVersion=_FROM_MEMORY)
        except ForbiddenError as error:
            self._say_once(
                f"kubernetes: the service account may not get pods in namespace {namespace} ({error}), so nobody tells why a pod ended; "
                "grant it get and list on pods, or switch this off with --kubernetes off"
            )
            raise AbsentError("not allowed to ask for this pod") from error
        look = Look(clock.monotonic(), clock.wall())
        pods = [*self._earlier(api, pod, namespace), pod]
        happened = [seen for one in pods for seen in happenings(one, look, place.own_container)]
        heard = PodStatusSeen("heard", look.mono, look.wall)
        return Answer(restarts(pod, place.own_container), (heard, *happened))

    def samples(self, value: Answer) -> Iterable[Sample]:
        """Restarts by container."""
        for name, count in value.restarts.items():
            yield "headway_container_restarts", (name,), count

    def lost(self, value: Answer) -> Iterable[Sample]:  # noqa: ARG002
        """Nothing: an old count is no count."""
        return ()

    def observations(self, value: Answer) -> Iterable[Observation]:
        """All that the API still tells; the fold knows what it has heard before."""
        return value.happened

    def _earlier(self, api: Api, pod: Mapping[str, Any], namespace: str) -> list[Mapping[str, Any]]:
        """The pods before this one in its place, while it is time to look for them; none where that is not allowed."""
        now, labels = clock.monotonic(), selector(pod)
        due = now - self._looked >= PREDECESSORS_EVERY_SECONDS and now - self._began <= PREDECESSORS_SECONDS
        if labels is None or not due:
            return []
        self._looked = now
        try:
            found = api.pods(namespace, labelSelector=labels, limit=str(MOST_LISTED), resourceVersion=_FROM_MEMORY)
        except ForbiddenError as error:
            self._say_once(
                f"kubernetes: the service account may not list pods in namespace {namespace} ({error}), so what ended the pods before this "
                "one is not known; grant it list on pods"
            )
            return []
        return predecessors(found, uid(pod))

    def _connected(self) -> Api:
        """The client, made when first needed and kept."""
        if self._api is None:
            if not self._place.pod:
                raise AbsentError("POD_NAME is not set: give it by the downward API (fieldRef metadata.name)")
            if not (self._place.service_account / "token").is_file():
                raise AbsentError(f"no service account is mounted in {self._place.service_account}")
            self._api = Api(self._place.service_account, self._environ)
        return self._api

    def _own_namespace(self) -> str:
        try:
            return (self._place.service_account / "namespace").read_text().strip()
        except (OSError, ValueError) as error:
            raise AbsentError(
                "POD_NAMESPACE is not set and the service account tells none: give it by the downward API (metadata.namespace)"
            ) from error

    def _say_once(self, message: str) -> None:
        if message not in self._said and len(self._said) < MOST_LISTED:
            self._said.add(message)
            _log.warning("%s", message)


def instrument(place: Place, environ: Mapping[str, str]) -> Instrument[Answer] | None:
    """Asks again and again; None where this is no Kubernetes."""
    if not environ.get("KUBERNETES_SERVICE_HOST"):
        return None
    return Instrument(PodProbe(place, environ), last_seconds=LAST_SECONDS)


class Api:
    """Questions to the API, by the official client's connections: its service account, its certificate, a token that is read again.

    Not by its classes for each kind of object: they take 20 MB more, and refuse what a newer or a broken API says.
    """

    def __init__(self, service_account: Path, environ: Mapping[str, str]) -> None:
        """Nothing is asked yet.

        Raises:
            AbsentError: the client is not installed.
            KubernetesError: the service account is not what it should be.
        """
        try:
            configuration = importlib.import_module("kubernetes.client.configuration").Configuration()
            rest = importlib.import_module("kubernetes.client.rest")
            incluster = importlib.import_module("kubernetes.config.incluster_config")
        except ImportError as error:
            raise AbsentError("its client is not installed: pip install 'headway[kubernetes]'") from error
        gc.collect()
        gc.freeze()  # what was imported stays: no full garbage collection is to walk through it while a scrape waits
        token, certificate = str(service_account / "token"), str(service_account / "ca.crt")
        try:
            incluster.InClusterConfigLoader(token, certificate, environ=environ).load_and_set(configuration)
            self._connections: Any = rest.RESTClientObject(configuration).pool_manager
        except Exception as error:
            raise KubernetesError(f"the service account in {service_account} cannot be used: {error}") from error
        self._configuration: Any = configuration
        self._timeout = importlib.import_module("urllib3").Timeout(connect=CONNECT_SECONDS, read=ANSWER_SECONDS)

    @property
    def authorization(self) -> dict[str, str]:
        """The header with the token, which Kubernetes changes about every hour: the client reads it again."""
        setting = self._configuration.auth_settings()["BearerToken"]
        return {setting["key"]: setting["value"]}

    def pods(self, namespace: str, name: str = "", **options: str) -> Mapping[str, Any]:
        """One pod, or without a name those of the namespace that `options` choose.

        Raises:
            ForbiddenError: the right to ask is missing.
            KubernetesError: any other answer, or none.
        """
        path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods" + (f"/{quote(name, safe='')}" if name else "")
        url = f"{self._configuration.host}{path}" + (f"?{urlencode(options)}" if options else "")
        question = f"get pod {name}" if name else f"list pods {options.get('labelSelector', '')}"
        try:
            status, body = self._get(url)
        except Exception as error:
            raise KubernetesError(f"{question}: {_reason(error)}") from error
        return _document(status, body, question)

    def _get(self, url: str) -> tuple[int, bytes]:
        headers = {"Accept": "application/json", **self.authorization}
        response = self._connections.request(
            "GET", url, headers=headers, timeout=self._timeout, retries=False, redirect=False, preload_content=False
        )
        try:
            return response.status, response.read(MOST_BYTES)
        finally:
            response.close()  # one that was read to its end is back in the pool already


def _document(status: int, body: bytes, question: str) -> Mapping[str, Any]:
    if status == _FORBIDDEN:
        raise ForbiddenError(f"HTTP {status}")
    if status != _OK:
        raise KubernetesError(f"{question}: HTTP {status}{_ADVICE.get(status, '')}")
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise KubernetesError(f"{question}: the answer is no JSON, or longer than {MOST_BYTES >> 20} MiB") from error
    if not isinstance(found, dict):
        raise KubernetesError(f"{question}: the answer is no JSON object")
    return found


_ADVICE: Final = {
    401: ", the service account's token is not accepted",
    404: ", no such pod: POD_NAME and POD_NAMESPACE must be this pod's, by the downward API",
}


def _reason(error: Exception) -> str:
    """The innermost reason in one line, without addresses of objects in memory."""
    inner = getattr(error, "reason", None) or error
    words = " ".join((str(inner).partition(": ")[2] or str(inner)).split())
    return f"{type(inner).__name__} {words}"[:200]
