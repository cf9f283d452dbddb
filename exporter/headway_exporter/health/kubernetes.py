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

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headway import clock
from headway_exporter.health.instruments import AbsentError, Instrument
from headway_exporter.health.kubernetes_client import Api, BusyError, ForbiddenError, KubernetesError, NoSuchPodError
from headway_exporter.health.pod_status import Look, gone, happenings, predecessors, restarts, selector, uid
from headway_exporter.observations import PodStatusSeen

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headway_exporter.collectors import Sample
    from headway_exporter.observations import Observation

_log = logging.getLogger("headway.exporter")

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
EVERY_SECONDS: Final = 10.0
DEADLINE_SECONDS: Final = 30.0
LAST_SECONDS: Final = 4.0
"""How long the sidecar's end waits for a last answer."""
PREDECESSORS_SECONDS: Final = 300.0
"""Time in which the earlier pods are looked for: whatever ended before this pod began is told by then."""
PREDECESSORS_EVERY_SECONDS: Final = 30.0
MOST_LISTED: Final = 64
MOST_TIMES_MISSING: Final = 2
"""Answers in a row that there is no such pod before that is believed of one that was there."""
_FROM_MEMORY: Final = "0"
"""Resource version: whatever the API server knows without asking its database. A thousand pods ask."""


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
        self._account: object = None
        """What the service account's files were when `_api` was made."""
        self._pod: Mapping[str, Any] | None = None
        """The newest answer."""
        self._missing = 0
        self._busy: tuple[float, str] | None = None
        """Until when the API wants to be left alone, CLOCK_MONOTONIC seconds, and what it said."""
        self._said: set[str] = set()

    def read(self) -> Answer:
        """The pod's status now, and in the first minutes that of the earlier pods.

        Raises:
            AbsentError: this is no pod that may ask.
            KubernetesError: the API gave no answer.
        """
        self._let_alone()
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
        except NoSuchPodError as error:
            return self._gone(error)
        except BusyError as error:
            self._busy = clock.monotonic() + error.seconds, str(error)
            raise
        if self._pod is not None and uid(pod) not in ("", uid(self._pod)):  # one of the same name was made in its place
            return self._replaced(self._pod)
        self._pod, self._missing = pod if uid(pod) else self._pod, 0
        look = _look()
        pods = [*self._earlier(api, pod, namespace), pod]
        happened = [seen for one in pods for seen in happenings(one, look, place.own_container)]
        return Answer(restarts(pod, place.own_container), (_heard(look), *happened))

    def _let_alone(self) -> None:
        """Asks nothing while the API wants to be left alone.

        Raises:
            KubernetesError: it still does.
        """
        if self._busy is not None and clock.monotonic() < self._busy[0]:
            raise KubernetesError(self._busy[1])
        self._busy = None

    def _gone(self, error: NoSuchPodError) -> Answer:
        """There is no such pod: one that was there has been deleted, and what is left of it here will end.

        Raises:
            NoSuchPodError: it was never there, or was a moment ago.
        """
        self._missing += 1
        if self._pod is None or self._missing < MOST_TIMES_MISSING:
            raise error
        return self._replaced(self._pod)

    def _replaced(self, pod: Mapping[str, Any]) -> Answer:
        """This pod is no more; what another one of its name went through is not its own."""
        look = _look()
        return Answer({}, (_heard(look), *gone(pod, look)))

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
        """The client, made when first needed, and anew when another token or certificate is mounted: both are replaced while pods run."""
        folder = self._place.service_account
        if not self._place.pod:
            raise AbsentError("POD_NAME is not set: give it by the downward API (fieldRef metadata.name)")
        account = tuple(_state(folder / name) for name in ("token", "ca.crt"))
        if account[0] is None:
            raise AbsentError(f"no service account is mounted in {folder}")
        if self._api is None or account != self._account:
            self._api, self._account = Api(folder, self._environ), account
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


def _state(file: Path) -> tuple[int, int, int] | None:
    """Changes whenever the file is replaced or written; None: it is not there."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _look() -> Look:
    return Look(clock.monotonic(), clock.wall())


def _heard(look: Look) -> PodStatusSeen:
    return PodStatusSeen("heard", look.mono, look.wall)
