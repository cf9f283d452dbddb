"""How many attempts a sequence of tries makes: tries nested in one of an outer layer count with it as one.

A try that makes a step is an attempt of its own. Tries of an inner layer that fail before their first step are part of the outer
layer's attempt that follows them: they escalated. Two in a row of the same layer are two attempts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headway_exporter.labels import LAYERS


@dataclass(frozen=True, slots=True)
class Attempts:
    """The count so far, and when the attempt under way began."""

    settled: int = 0
    """Attempts that no later try can take in any more."""
    pending: tuple[int, ...] = (0,) * len(LAYERS)
    """By layer, attempts since then without a step."""
    began: tuple[float, ...] = (0.0,) * len(LAYERS)
    """By layer, when the first of the pending ones began; seconds since 1970."""
    started_wall: float = 0.0
    """When the last one began."""

    @property
    def count(self) -> int:
        """Attempts in all."""
        return self.settled + sum(self.pending)

    def tried(self, layer: str, wall: float) -> Attempts:
        """One more try, by this layer: it takes in the pending ones of inner layers."""
        index = LAYERS.index(layer)
        taken_in = [self.began[inner] for inner in range(index) if self.pending[inner]]
        started = min([*taken_in, wall])
        first = self.began[index] if self.pending[index] else started
        return replace(
            self,
            pending=tuple(0 if at < index else count + (at == index) for at, count in enumerate(self.pending)),
            began=tuple(first if at == index else began for at, began in enumerate(self.began)),
            started_wall=started,
        )

    def stepped(self) -> Attempts:
        """The last try made a step."""
        return replace(self, settled=self.count, pending=(0,) * len(LAYERS))
