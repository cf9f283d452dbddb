"""Results on disk: one file for each cell that has ended, so that a grid that was interrupted goes on where it was.

<out>/experiment.json           the plan; locked while an experiment runs here
<out>/cells/<cell>/result.json  what became of the cell; its logs, journals and checkpoints lie beside it
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headway_trainer.experiment.plan import Cell, Plan

VERSION: Final = 1
PLAN: Final = "experiment.json"
RESULT: Final = "result.json"

Result = dict[str, Any]


class FolderError(ValueError):
    """The output folder cannot be used; the message says why, and what to do."""


@contextlib.contextmanager
def opened(out: Path, plan: Plan) -> Iterator[None]:
    """The output folder, ours alone while the block runs.

    Raises:
        FolderError: it holds something else, another experiment, or one that still runs; or it cannot be written to.
    """
    path = out / PLAN
    try:
        if out.exists() and not path.exists() and any(out.iterdir()):
            raise FolderError(f"{out} holds something that no experiment wrote; name another folder")
        (out / "cells").mkdir(parents=True, exist_ok=True)
        file = path.open("a+")
    except OSError as error:
        raise FolderError(f"{out} cannot be used: {error.strerror or error}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise FolderError(f"another experiment is running in {out}") from None
        file.seek(0)
        _claim(out, path, file.read(), plan)
        yield


def _claim(out: Path, path: Path, text: str, plan: Plan) -> None:
    settings = plan.settings()
    if not text:
        path.write_text(
            json.dumps({"version": VERSION, "plan": settings}, indent=1) + "\n"
        )  # the same file, still locked
        return
    try:
        there = json.loads(text)
        before, version = dict(there["plan"]), there["version"]
    except (ValueError, KeyError, TypeError):
        raise FolderError(f"{path} is damaged; remove it, or name another folder") from None
    differing = [name for name in settings if before.get(name) != settings[name]]
    if version != VERSION or differing:
        what = (
            ", ".join(f"{name} {before.get(name)}, not {settings[name]}" for name in differing) or f"format {version}"
        )
        raise FolderError(f"{out} holds an experiment with {what}; give the same options, or name another folder")


def folder_of(out: Path, cell: Cell) -> Path:
    """The cell's own folder."""
    return out / "cells" / cell.folder


def fresh_folder(out: Path, cell: Cell) -> Path:
    """The same, emptied: what an interrupted or failed try has left there would be taken for this one's."""
    folder = folder_of(out, cell)
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir()
    return folder


def keep(out: Path, cell: Cell, result: Result) -> None:
    """Write a result so that a reader sees all of it or none."""
    path = folder_of(out, cell) / RESULT
    temporary = path.with_suffix(".tmp")
    with temporary.open("w") as file:
        json.dump({"version": VERSION, "cell": cell.name, **result}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def kept(out: Path, cell: Cell) -> Result | None:
    """The result of a cell that ended well or failed; None when there is none, or none that can be read."""
    try:
        result: Result = json.loads((folder_of(out, cell) / RESULT).read_text())
    except (OSError, ValueError):
        return None
    return result if result.get("version") == VERSION else None
