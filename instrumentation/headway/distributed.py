"""What the ranks must agree on before they train: which incarnation this is."""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from typing import Any

_log = logging.getLogger("headway")

DEFAULT_KEY: Final = "headway/incarnation"


class Store(Protocol):
    """The part of `torch.distributed.Store` that is needed; torch itself is not imported."""

    def set(self, key: str, value: str, /) -> Any:
        """Publishes a value."""

    def get(self, key: str, /) -> bytes:
        """Waits until the key exists."""


def agree_incarnation(store: Store, rank: int, *, key: str = DEFAULT_KEY) -> str:
    """The id of this execution of the training function: rank 0 draws it, every other rank waits for it.

    Counts of restarts differ between pods, so only this id joins what they record. `store` must be the one that the process
    group was made with, new for every iteration and launcher cycle: on a store that is used again a rank could read the id of
    the incarnation before.

    Never raises: when the store fails (after its own time-out) training will tell soon enough, and this rank uses an id of its
    own.
    """
    own = secrets.token_hex(8)
    try:
        if rank == 0:
            store.set(key, own)
            return own
        return store.get(key).decode()
    except Exception as error:  # noqa: BLE001 - torch raises several kinds, and recording must not stop training
        _log.warning(
            "rank %d could not agree on an incarnation through the store (%s: %s); its records of this incarnation will not "
            "join those of other ranks",
            rank,
            type(error).__name__,
            error,
        )
        return own
