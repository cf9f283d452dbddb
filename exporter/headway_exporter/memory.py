"""The sidecar's memory: which classes make it up, so that it can be saved and read back. A new class of the fold belongs into `CLASSES`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headway_exporter.attempts import Attempts
from headway_exporter.books import SlotLedger, _Open
from headway_exporter.causes import Diagnosis
from headway_exporter.checkpoints import Checkpoints, Save
from headway_exporter.codec import Encoder, Registry, decode
from headway_exporter.contention import Contention
from headway_exporter.curve import StepCurve
from headway_exporter.distribution import Distribution
from headway_exporter.failures import Failures
from headway_exporter.gpus import Gpus
from headway_exporter.health.cgroups import Container
from headway_exporter.health.xids import XidTable
from headway_exporter.history import History, Recent
from headway_exporter.incidents import Incident, State
from headway_exporter.ledger import Ledger
from headway_exporter.nics import NicHappening, Nics
from headway_exporter.observations import GpuSeen, PortSeen
from headway_exporter.orchestrator import Orchestrator
from headway_exporter.origins import OriginVerdict
from headway_exporter.phases import Timeline
from headway_exporter.pod import Pod
from headway_exporter.recoveries import Recovery, Try
from headway_exporter.relaunch import Relaunch
from headway_exporter.replay import ReplayChecks, _Check
from headway_exporter.runinfo import Circumstances, RunInfo
from headway_exporter.scene import Evidence, Marker
from headway_exporter.slots import Slot
from headway_exporter.steps import Steps
from headway_exporter.thresholds import Thresholds
from headway_exporter.undecided import Undecided

if TYPE_CHECKING:
    from collections.abc import Mapping

CLASSES: Final[tuple[type, ...]] = (
    Attempts,
    Checkpoints,
    Circumstances,
    Container,
    Contention,
    Diagnosis,
    Distribution,
    Evidence,
    Failures,
    GpuSeen,
    Gpus,
    History,
    Incident,
    Ledger,
    Marker,
    NicHappening,
    Nics,
    Orchestrator,
    OriginVerdict,
    Pod,
    PortSeen,
    Recovery,
    Relaunch,
    ReplayChecks,
    RunInfo,
    Save,
    Slot,
    SlotLedger,
    StepCurve,
    Steps,
    Timeline,
    Try,
    Undecided,
    _Check,
    _Open,
)
ENUMS: Final = (State,)
OUTSIDE: Final = (Recent, Thresholds, XidTable)
"""What is of this start alone, which is no memory: what somebody who looks on sees of the last hour, and configuration."""

REGISTRY: Final = Registry(CLASSES, ENUMS, OUTSIDE)


def encoder() -> Encoder:
    """Saves one pod, again and again."""
    return Encoder(REGISTRY)


def recall(pod: Pod, document: Mapping[str, Any]) -> None:
    """Fills a new pod with what was saved of another one.

    Raises:
        codec.CodecError: it is no saved pod.
    """
    decode(REGISTRY, document, pod)
