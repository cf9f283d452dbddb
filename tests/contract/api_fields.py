"""The API's fields as its classes document them, as one table for each: `exporter/API.md`."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headway_exporter.page import model

DOCUMENT: Final = Path(__file__).parents[2] / "exporter" / "API.md"
_TYPES: Final = {"int": "integer", "float": "number", "str": "text", "bool": "true or false"}
_HEAD: Final = """# The API of the sidecar

`GET` on the sidecar's port (9838 unless `--listen` says otherwise). The answer is JSON, of this moment or of at most two seconds ago,
and a line of text with code 400 where the query is wrong, or 503 while the sidecar still reads its state folder.

| path | answers |
|---|---|
| `/api/v1/status` | [Status](#status): the pod and its run |
| `/api/v1/incidents?limit=20` | [Incidents](#incidents): the newest ones, 1 to 50 |
| `/api/v1/timeline?window=hour` | [Timeline](#timeline): the last hour of this pod's ranks; `window=run` is all of the run |

"""


@dataclass(frozen=True)
class Field:
    """One field of an object."""

    name: str
    kind: str
    words: str


@dataclass(frozen=True)
class Object:
    """One class."""

    name: str
    words: str
    fields: tuple[Field, ...]


def objects() -> tuple[Object, ...]:
    """Those of the module, the documents first."""
    tree = ast.parse(Path(model.__file__).read_text())
    found = [_object(node) for node in tree.body if isinstance(node, ast.ClassDef)]
    return tuple(sorted(found, key=lambda one: not one.words.startswith("`/api/")))


def _object(node: ast.ClassDef) -> Object:
    fields = [
        Field(one.target.id, ast.unparse(one.annotation), _docstring(after))
        for one, after in zip(node.body, [*node.body[1:], ast.Pass()], strict=True)
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    ]
    return Object(node.name, _one_line(ast.get_docstring(node) or ""), tuple(fields))


def _docstring(node: ast.stmt) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return _one_line(node.value.value)
    return ""


def _one_line(text: str) -> str:
    return " ".join(text.split())


def kind_in_words(kind: str) -> str:
    """A type, as somebody who reads JSON says it."""
    if kind.endswith(" | None"):
        return f"{kind_in_words(kind.removesuffix(' | None'))}, null"
    if several := re.fullmatch(r"tuple\[(.+), \.\.\.\]", kind):
        return f"array of {kind_in_words(several[1])}"
    if table := re.fullmatch(r"Mapping\[str, (.+)\]", kind):
        return f"object of {kind_in_words(table[1])}"
    return _TYPES.get(kind) or f"[{kind}](#{kind.lower()})"


def document() -> str:
    """The file."""
    preface = _one_line((model.__doc__ or "").partition("\n\n")[2])
    parts = [_HEAD, preface, "\n"]
    for one in objects():
        rows = [f"| `{field.name}` | {kind_in_words(field.kind)} | {field.words} |" for field in one.fields]
        parts.append(
            "\n".join([f"\n## {one.name}\n\n{one.words}\n", "| field | type | meaning |", "|---|---|---|", *rows, ""])
        )
    return "".join(parts)
