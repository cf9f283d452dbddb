"""A YAML file as mappings whose keys are taken one by one: none may be unknown, stand there twice, or hold what is not expected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MOST_BYTES: Final = 1 << 20


class WebConfigError(ValueError):
    """The file cannot be used; the message names the key and says what is wrong with it."""


def read_yaml(file: Path) -> Any:
    """What YAML says, in which no key may stand twice.

    Raises:
        WebConfigError: it cannot be read, or is no YAML.
        ModuleNotFoundError: PyYAML is not installed.
    """
    try:
        with file.open("rb") as opened:
            content = opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise WebConfigError(f"cannot be read: {error.strerror or error}") from error
    if len(content) > MOST_BYTES:
        raise WebConfigError(f"has more than {MOST_BYTES} bytes")
    return _parsed(content)


class Section:
    """A mapping whose keys are taken one by one; what is left at the end is unknown."""

    def __init__(self, name: str, content: Any) -> None:
        self.name = name
        if not isinstance(content, Mapping) or not content:
            what = "holds nothing" if content is None or content == {} else "is no mapping"
            raise WebConfigError(f"{name}: {what}" if name else f"the file {what}")
        self._left = dict(content)
        self._known: list[str] = []

    def path(self, key: str) -> str:
        """Where the key stands in the file."""
        return f"{self.name}.{key}" if self.name else key

    def section(self, key: str) -> Section | None:
        """A mapping that is not empty; None: it is not there."""
        self._known.append(key)
        return Section(self.path(key), self._left.pop(key)) if key in self._left else None

    def take(self, key: str, kind: type | tuple[type, ...], what: str, default: Any) -> Any:
        """A value of this kind, `what` in words."""
        self._known.append(key)
        if key not in self._left:
            return default
        value = self._left.pop(key)
        if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)) or value == "":
            raise WebConfigError(f"{self.path(key)}: expected {what}")
        return value

    def text(self, key: str, default: str = "") -> str:
        """A text that is not empty."""
        value: str = self.take(key, str, "a text", default)
        return value

    def texts(self, key: str) -> tuple[str, ...] | None:
        """A list of texts that is not empty; None: it is not there."""
        values = self.take(key, list, "a list of texts", None)
        if values is None:
            return None
        if not values or not all(isinstance(value, str) and value for value in values):
            raise WebConfigError(f"{self.path(key)}: expected a list of texts")
        return tuple(values)

    def items(self) -> Iterator[tuple[str, str]]:
        """All that is left, where names and values are texts."""
        while self._left:
            key, value = self._left.popitem()
            if not isinstance(key, str) or not isinstance(value, str):
                raise WebConfigError(f"{self.path(shown(key))}: expected two texts; put them in quotes")
            yield key, value

    def end(self) -> None:
        """Nothing more is known.

        Raises:
            WebConfigError: and yet there is more.
        """
        if self._left:
            key = next(iter(self._left))
            raise WebConfigError(f"{self.path(shown(key))}: unknown; known are {', '.join(self._known)}")


def _parsed(content: bytes) -> Any:
    import yaml  # where nobody gives a file it need not be installed

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            twice = next((key for key in keys if keys.count(key) > 1), None)
            if twice is not None:
                raise WebConfigError(f"{shown(twice)}: stands there twice (line {node.start_mark.line + 1} and on)")
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(content, Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        if isinstance(error, WebConfigError):  # from the loader above
            raise
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark is not None else ""
        raise WebConfigError(f"is no YAML{where}: {getattr(error, 'problem', None) or type(error).__name__}") from error


def shown(value: object) -> str:
    """Somebody else's text, short and in one line."""
    text = ascii(value) if not isinstance(value, str) or not value.isprintable() else value
    return text if len(text) <= 60 else f"{text[:57]}..."
