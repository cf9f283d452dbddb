"""From what each pod wrote down of an incident to the incident."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, Protocol

from headway_exporter.report.model import Incident
from headway_exporter.state_files import pod_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headway_exporter.report.model import Origin, Record

BEST_OUTCOME: Final = {"recovered": 0, "cancelled": 1, "abandoned": 2, "open": 3}
"""A pod that is gone could not see how it went on: the others know better."""
_SUREST: Final = {"confirmed": 0, "likely": 1, "unknown": 2}
_DECIDED: Final = {"verdict": 0, "alone": 1, "timeout": 1}


def incidents(records: Iterable[Record]) -> tuple[Incident, ...]:
    """The incidents that all these records are of, by the time they opened; the order of the records does not matter."""
    newest: dict[str, dict[str, Record]] = defaultdict(dict)
    for record in records:
        known = newest[record.id].get(record.pod_index)
        if known is None or age(record) > age(known):
            newest[record.id][record.pod_index] = record
    merged = [_merged(list(pods.values())) for pods in newest.values()]
    return tuple(sorted(merged, key=lambda one: (one.opened_wall, one.id)))


class Told(Protocol):
    """What decides whose word counts, of a pod's record."""

    @property
    def pod_index(self) -> str: ...  # noqa: D102 - see Record
    @property
    def revision(self) -> int: ...  # noqa: D102 - see Record
    @property
    def written_wall(self) -> float | None: ...  # noqa: D102 - see Record
    @property
    def outcome(self) -> str: ...  # noqa: D102 - see Record
    @property
    def opened_wall(self) -> float: ...  # noqa: D102 - see Record
    @property
    def confidence(self) -> str: ...  # noqa: D102 - see Record
    @property
    def origin(self) -> Origin: ...  # noqa: D102 - see Record
    @property
    def decided_by(self) -> str: ...  # noqa: D102 - see Record


def age(record: Told) -> tuple[bool, int, float]:
    """Sorts what one pod wrote of an incident: what a closed one says stands, then the revision."""
    return record.outcome != "open", record.revision, record.written_wall or 0.0


def _merged(records: Sequence[Record]) -> Incident:
    if len(records) > 1:
        records = sorted(records, key=lambda one: pod_order(one.pod_index))
    lost = dict(records[0].lost_rank_seconds)
    for one in records[1:]:
        for state, seconds in one.lost_rank_seconds.items():
            lost[state] = lost.get(state, 0.0) + seconds
    outcome = min((one.outcome for one in records), key=lambda name: BEST_OUTCOME[name])
    closed = [one.closed_wall for one in records if one.closed_wall is not None and one.outcome == outcome]
    return Incident(
        id=records[0].id,
        records=tuple(records),
        lead=min(records, key=trust),
        outcome=outcome,
        recurring=tuple(sorted({reason for one in records for reason in one.recurring})),
        opened_wall=min(one.opened_wall for one in records),
        closed_wall=max(closed, default=None),
        lost_rank_seconds=lost,
    )


def trust(record: Told) -> tuple[int, bool, int, float]:
    """Sorts the best first; among equals the lowest pod index, whose place in the list is earlier."""
    at_origin = record.origin.pod_index == record.pod_index
    return _DECIDED.get(record.decided_by, 1), not at_origin, _SUREST[record.confidence], record.opened_wall
