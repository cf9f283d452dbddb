"""The reference trainer, except that with SPOIL_OPTIMIZER set the optimizer state is damaged after it was loaded and verified.

So all checksums pass, and only what training does next can tell.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import torch

from headway_trainer import loop
from headway_trainer.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable


def spoiled(load: Callable[..., int]) -> Callable[..., int]:
    """Loads, then flips the momentum and makes it large."""

    def load_and_spoil(folder: Any, model: Any, optimizer: torch.optim.Optimizer, **more: Any) -> int:
        step = load(folder, model, optimizer, **more)
        with torch.no_grad():
            for state in optimizer.state.values():
                state["exp_avg"].mul_(-20)
        return step

    return load_and_spoil


if os.environ.get("SPOIL_OPTIMIZER"):
    loop.load_newest = spoiled(loop.load_newest)
sys.exit(main())
