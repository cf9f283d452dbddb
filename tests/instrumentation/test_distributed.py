"""The ranks agree on their incarnation through a real store."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta

import pytest

from headway.distributed import agree_incarnation

torch_distributed = pytest.importorskip("torch.distributed")


def test_every_rank_gets_the_id_of_rank_0() -> None:
    """The id joins what the ranks record, so it must be the same on all, whoever comes first."""
    base = torch_distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store = torch_distributed.PrefixStore("0/0", base)
    ids: dict[int, str] = {}
    peer = threading.Thread(target=lambda: ids.update({1: agree_incarnation(store.clone(), 1)}))
    peer.start()
    ids[0] = agree_incarnation(store, 0)
    peer.join(10)
    assert ids[0] == ids[1]
    assert len(ids[0]) == 16


def test_every_incarnation_has_its_own_id() -> None:
    """Two iterations on stores with different prefixes never share an id."""
    base = torch_distributed.HashStore()
    stores = [torch_distributed.PrefixStore(f"0/{iteration}", base) for iteration in range(2)]
    assert len({agree_incarnation(store, 0) for store in stores}) == 2


def test_broken_store_does_not_stop_training(caplog: pytest.LogCaptureFixture) -> None:
    """When rank 0 never comes, this rank goes on with an id of its own and says so once."""
    store = torch_distributed.HashStore()
    store.set_timeout(timedelta(milliseconds=50))
    with caplog.at_level(logging.WARNING, "headway"):
        assert len(agree_incarnation(store, 1)) == 16
    assert len(caplog.records) == 1
