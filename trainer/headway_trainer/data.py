"""Text as bytes, straight from files: which files, in which order, and which bytes make up the batch of a step.

The runtime model: files are listed once (name and size, no content kept), and together they are one long imaginary
file. A window of it is read through memory maps that are opened when needed and of which only the latest few stay
open, so a corpus may have many gigabytes or a million files.

What a resumed run relies on:

- **The batch of a step is a function of the seed, the step and the text.** There is no reader to save: row r of step
  s starts at a place given by a hash of (seed, s, r). With another world size a rank gets other rows of the same
  step.
- **The order of the files does not depend on the file system.** They are sorted by a hash of their names, which also
  makes the tail of the corpus, held out for evaluation, a fair sample of the files rather than the end of the
  alphabet.
- **Training never sees held-out bytes**: a window lies wholly in one of the two parts.
- **The corpus has a fingerprint**, for a checkpoint to record: another text gives other batches for the same step.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sysconfig
from bisect import bisect_right
from collections import Counter, OrderedDict
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import torch

from headway_trainer.config import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt
    from torch import Tensor

    from headway_trainer.config import DataConfig

OPTION: Final = "--data.paths"
SNIFFED_BYTES: Final = 8192
"""A file with a zero byte within its first so many bytes is binary (git's rule)."""

OPEN_MAPS: Final = 128
"""Memory maps kept open; each holds a file descriptor."""

NOT_STANDARD_LIBRARY: Final = frozenset({"site-packages", "dist-packages"})


class Batch(NamedTuple):
    """One rank's share of a step."""

    tokens: Tensor
    """int64, (batch size, sequence length): bytes of text, 0 to 255."""

    labels: Tensor
    """Same shape: the byte after each token."""

    def to(self, device: torch.device) -> Batch:
        """The same batch on another device."""
        return Batch(self.tokens.to(device), self.labels.to(device))


@dataclass(frozen=True)
class TextFile:
    """One file of the corpus."""

    path: Path
    name: str
    """Position of the `--data` argument and the path below it: stays the same when the data is mounted elsewhere."""

    size: int
    """Bytes, when it was listed."""


@dataclass(frozen=True)
class Listing:
    """What was found under the given paths."""

    files: tuple[TextFile, ...]
    """In the order of the corpus."""

    skipped: Mapping[str, int]
    """Files left out, by reason: binary, empty, unreadable, not a regular file."""

    @property
    def fingerprint(self) -> str:
        """16 hex digits over names and sizes. Contents are not read: a corpus may be far larger than memory."""
        digest = hashlib.sha256()
        for file in self.files:
            digest.update(os.fsencode(file.name) + b"\0" + str(file.size).encode() + b"\n")
        return digest.hexdigest()[:16]


def list_text(paths: Sequence[str]) -> Listing:
    """Find the text files under files and folders; with no path at all, the Python standard library's sources.

    Hidden files and folders, `__pycache__`, and whatever is not text are left out and counted.

    Raises:
        ConfigError: a path does not exist, or nothing usable is left.
    """
    found = list(_walk(paths)) if paths else list(_standard_library())
    skipped: Counter[str] = Counter()
    files = []
    for path, name in found:
        size, reason = _inspect(path)
        if reason is None:
            files.append(TextFile(path, name, size))
        else:
            skipped[reason] += 1
    if not files:
        where = ", ".join(paths) or sysconfig.get_path("stdlib")
        left_out = ", ".join(f"{count} {reason}" for reason, count in sorted(skipped.items())) or "no files at all"
        raise ConfigError(OPTION, f"no text found in {where} ({left_out}); give files or folders that hold text")
    return Listing(tuple(sorted(files, key=_order)), dict(skipped))


class Corpus:
    """The listed files as one long text, split into a training part and a held-out tail."""

    def __init__(self, listing: Listing, config: DataConfig, *, seed: int) -> None:
        """Build the index; opens no file.

        Raises:
            ConfigError: one of the parts is shorter than one sequence.
        """
        self.listing = listing
        self.fingerprint = listing.fingerprint
        self._config = config
        self._seed = seed
        self._ends = list(accumulate(file.size for file in listing.files))
        self._maps: OrderedDict[int, npt.NDArray[np.uint8]] = OrderedDict()
        self._training_size = self.size - int(self.size * config.held_out_fraction)
        self._check_sizes()

    @classmethod
    def open(cls, config: DataConfig, *, seed: int) -> Corpus:
        """List the configured paths and index them.

        Args:
            config: of the data.
            seed: decides which windows make up a batch, unless the configuration has a seed of its own.
        """
        return cls(list_text(config.paths), config, seed=seed if config.seed is None else config.seed)

    @property
    def size(self) -> int:
        """Bytes in both parts together."""
        return self._ends[-1]

    @property
    def training_size(self) -> int:
        """Bytes that training may see: [0, training_size). The rest is held out."""
        return self._training_size

    def batch(self, step: int, rank: int, world_size: int) -> Batch:
        """One rank's rows of the global batch of a step; the same call gives the same bytes in any process.

        Raises:
            ConfigError: a file of the corpus has changed or is gone.
        """
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} is not in a world of {world_size}")
        rows = range(rank * self._config.batch_size, (rank + 1) * self._config.batch_size)
        return self._stack([self.training_offset(step, row) for row in rows])

    def training_offset(self, step: int, row: int) -> int:
        """Where a row of the global batch of a step starts, in bytes.

        Rows are drawn independently of each other, so there are no epochs to keep track of.
        """
        digest = hashlib.blake2b(f"{self._seed}/{step}/{row}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") % (self._training_size - self._config.sequence_length)

    def held_out_batch(self, number: int, *, of: int) -> Batch:
        """The same `of` batches in every call, their windows spread evenly over the held-out part."""
        size = self._config.batch_size
        last_offset = self.size - self._window
        gap = (last_offset - self._training_size) / max(1, of * size - 1)
        return self._stack(
            [self._training_size + int(window * gap) for window in range(number * size, (number + 1) * size)]
        )

    def read(self, offset: int, length: int) -> npt.NDArray[np.uint8]:
        """A copy of part of the text, across the borders of files.

        Raises:
            ConfigError: a file is gone or has changed its size since it was listed.
        """
        pieces = []
        index = bisect_right(self._ends, offset)
        while length > 0:
            start = offset - (self._ends[index] - self.listing.files[index].size)
            piece = self._map(index)[start : start + length]
            pieces.append(piece)
            offset, length, index = offset + len(piece), length - len(piece), index + 1
        return np.concatenate(pieces)

    @property
    def _window(self) -> int:
        return self._config.sequence_length + 1  # the last token needs a label

    def _stack(self, offsets: Sequence[int]) -> Batch:
        windows = torch.from_numpy(np.stack([self.read(offset, self._window) for offset in offsets]).astype(np.int64))
        return Batch(windows[:, :-1].contiguous(), windows[:, 1:].contiguous())

    def _map(self, index: int) -> npt.NDArray[np.uint8]:
        if index in self._maps:
            self._maps.move_to_end(index)
            return self._maps[index]
        file = self.listing.files[index]
        try:
            mapped = np.memmap(file.path, dtype=np.uint8, mode="r")
        except (OSError, ValueError) as error:
            raise ConfigError(OPTION, f"{file.path} cannot be read any more: {error}") from error
        if mapped.size != file.size:
            problem = f"{file.path} had {file.size} bytes when the run started and has {mapped.size} now"
            raise ConfigError(OPTION, f"{problem}; the text must not change during a run")
        self._maps[index] = mapped
        if len(self._maps) > OPEN_MAPS:
            self._maps.popitem(last=False)
        return mapped

    def _check_sizes(self) -> None:
        parts = {"training": self._training_size}
        if self._config.held_out_fraction > 0:
            parts["held-out"] = self.size - self._training_size
        for part, size in parts.items():
            if size < self._window:
                problem = f"the {part} part of the text has {size} bytes, but one sequence needs {self._window}"
                raise ConfigError(
                    OPTION, f"{problem}; give more text, or change --data.sequence_length or --data.held_out_fraction"
                )


def _walk(paths: Sequence[str]) -> Iterator[tuple[Path, str]]:
    for position, given in enumerate(paths):
        root = Path(given)
        if not root.exists():
            raise ConfigError(OPTION, f"no such file or folder: {given}")
        if root.is_dir():
            yield from ((path, f"{position}/{path.relative_to(root)}") for path in _files_below(root))
        else:
            yield root, f"{position}/{root.name}"


def _standard_library() -> Iterator[tuple[Path, str]]:
    root = Path(sysconfig.get_path("stdlib"))
    for path in _files_below(root, without=NOT_STANDARD_LIBRARY):
        if path.suffix == ".py":
            yield path, str(path.relative_to(root))


def _files_below(root: Path, *, without: frozenset[str] = frozenset()) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not _hidden(name) and name not in without]
        yield from (Path(folder, name) for name in names if not _hidden(name))


def _hidden(name: str) -> bool:
    return name.startswith(".") or name == "__pycache__"


def _inspect(path: Path) -> tuple[int, str | None]:
    """Size in bytes, and why the file is no text (None if it is). Opens regular files only: a pipe would block."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            return 0, "not a regular file"
        if status.st_size == 0:
            return 0, "empty"
        with path.open("rb") as file:
            head = file.read(SNIFFED_BYTES)
    except OSError:
        return 0, "unreadable"
    return status.st_size, "binary" if b"\0" in head else None


def _order(file: TextFile) -> tuple[bytes, str]:
    return hashlib.blake2b(os.fsencode(file.name), digest_size=8).digest(), file.name
