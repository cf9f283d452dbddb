"""A graph of our own objects as JSON and back: how the sidecar's memory is saved.

No pickle: a saved graph names only classes of a closed list, so a file that somebody tampered with can make wrong numbers, never run code.
What a class holds are its attributes: the fields of a dataclass, `__slots__`, or what a new instance of a plain class has. Objects that
are reached by several ways are one object again afterwards.

    {"root": 0, "classes": {"Slot": ["number", "rank", …]}, "objects": {"0": ["Pod", …values], "1": ["Slot", 0, 3, …]}}

Scalars and lists are themselves; everything else is an object with one key: `t` tuple, `d` dict (`m`: of texts to scalars),
`c` Counter, `o` OrderedDict, `D` defaultdict, `q` deque, `s` set, `z` frozenset, `e` enum, `f` a float that JSON lacks,
`r` another object by its number.

Another version's graph can be read: an attribute that is not known any more is passed over, one that was not saved keeps the value of a new
instance. So a new attribute needs a default, and none may change its meaning under the same name.

A class whose instances can be saved in less has a method `for_saving` that returns the attributes to save in place of the real ones; one
with a method `after_loading` has it called once its attributes are those that were saved.
"""

from __future__ import annotations

import enum
import inspect
import math
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import MISSING, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_PLAIN: Final = frozenset({int, str, bool, type(None)})
_TEXT: Final = frozenset({str})
_FACTORIES: Final[Mapping[str, Callable[[], Any]]] = {"int": int, "float": float, "list": list, "dict": dict}
_CONTAINERS: Final = (dict, list, deque, set, frozenset)
_ITEMS: Final[Mapping[type, str]] = {tuple: "t", set: "s", frozenset: "z"}
_PAIRS: Final[Mapping[type, str]] = {dict: "d", Counter: "c", OrderedDict: "o"}


class CodecError(ValueError):
    """The graph holds something that is not in the closed list, or what was saved is no graph of ours."""


class Kept:
    """How one class is saved."""

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self.fixed = is_dataclass(cls) and cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
        """Instances never change."""
        self.names = self._names()
        """The attributes; None: those that a new instance has."""
        self.less: Callable[[Any], Mapping[str, Any]] | None = getattr(cls, "for_saving", None)
        self.after: Callable[[Any], None] | None = getattr(cls, "after_loading", None)
        needed = [one for one in inspect.signature(cls).parameters.values() if one.default is one.empty]
        self._makes_itself = not is_dataclass(cls) and not needed

    def _names(self) -> tuple[str, ...] | None:
        if is_dataclass(self.cls):
            return tuple(one.name for one in fields(self.cls))
        slots = self.cls.__dict__.get("__slots__")
        return None if slots is None else tuple(slots)

    def names_of(self, thing: object) -> tuple[str, ...]:
        """The attributes of an instance."""
        return tuple(vars(thing)) if self.names is None else self.names

    def blank(self) -> Any:
        """An instance with whatever has a default."""
        if self._makes_itself:
            return self.cls()
        made: Any = object.__new__(self.cls)
        for one in fields(self.cls) if is_dataclass(self.cls) else ():
            if one.default is not MISSING:
                object.__setattr__(made, one.name, one.default)
            elif one.default_factory is not MISSING:
                object.__setattr__(made, one.name, one.default_factory())
        return made


class Registry:
    """The closed list: classes and enums that may be saved, and those (`outside`) whose instances are given anew at each start."""

    def __init__(
        self, classes: Iterable[type], enums: Iterable[type[enum.Enum]] = (), outside: Iterable[type] = ()
    ) -> None:
        self.kept = {cls: Kept(cls) for cls in classes}
        self.by_name = {cls.__name__: kept for cls, kept in self.kept.items()}
        self.enums = {cls.__name__: cls for cls in enums}
        self.outside = frozenset(outside)


class _Entry:
    """An object on its way into the document."""

    __slots__ = ("children", "kept", "number", "row", "thing")

    def __init__(self, thing: object, number: int, kept: Kept) -> None:
        self.thing, self.number, self.kept = thing, number, kept
        self.row: list[Any] | None = None
        self.children: list[object] = []


class Encoder:
    """Makes documents of one graph, again and again; what cannot have changed since the last time is not looked at again."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._numbers = 0
        self._known: dict[int, _Entry] = {}  # by id(): it holds the object, so that no other one gets that id
        self._reached: dict[int, _Entry] = {}
        self._queue: list[_Entry] = []
        self._children: list[object] = []

    def encode(self, root: object) -> dict[str, Any]:
        """The graph below `root`; nothing in the document is shared with it, so it may change afterwards.

        Raises:
            CodecError: something in it cannot be saved; the message says where.
        """
        self._reached, self._queue = {}, []
        number = self._reach(root)
        classes: dict[str, tuple[str, ...]] = {}
        objects: dict[str, list[Any]] = {}
        while self._queue:
            entry = self._queue.pop()
            name = entry.kept.cls.__name__
            if name not in classes:
                classes[name] = self._names(entry)
            objects[str(entry.number)] = self._row(entry, name, classes[name])
        self._known = self._reached
        return {"root": number, "classes": {name: list(names) for name, names in classes.items()}, "objects": objects}

    def _names(self, entry: _Entry) -> tuple[str, ...]:
        outside = self._registry.outside
        return tuple(
            name for name in entry.kept.names_of(entry.thing) if type(getattr(entry.thing, name)) not in outside
        )

    def _reach(self, thing: object) -> int:
        key = id(thing)
        entry = self._reached.get(key)
        if entry is None:
            entry = self._known.get(key)
            if entry is None:
                entry = _Entry(thing, self._numbers, self._registry.kept[type(thing)])
                self._numbers += 1
            self._reached[key] = entry
            self._queue.append(entry)
        return entry.number

    def _row(self, entry: _Entry, cls: str, names: tuple[str, ...]) -> list[Any]:
        if entry.row is not None and entry.kept.fixed:
            for child in entry.children:
                self._reach(child)
            return entry.row
        thing = entry.thing
        less = {} if entry.kept.less is None else entry.kept.less(thing)
        self._children = entry.children = []
        try:
            row = [cls, *[self._value(less[name] if name in less else getattr(thing, name)) for name in names]]
        except CodecError as error:
            raise CodecError(f"in {cls}: {error}") from error
        entry.row = row if entry.kept.fixed else None  # what may change is looked at anew: no need to hold the document
        return row

    def _value(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is float:
            return value if math.isfinite(value) else {"f": repr(value)}
        if kind is list:
            return value.copy() if _PLAIN.issuperset(map(type, value)) else self._values(value)
        if kind in self._registry.kept:
            self._children.append(value)
            return {"r": self._reach(value)}
        return self._container(kind, value)

    def _container(self, kind: type, value: Any) -> Any:
        if kind is dict and _TEXT.issuperset(map(type, value)) and _PLAIN.issuperset(map(type, value.values())):
            return {"m": value.copy()}
        if kind in _ITEMS:
            return {_ITEMS[kind]: self._values(value)}
        if kind in _PAIRS:
            return {_PAIRS[kind]: self._pairs(value)}
        if kind is deque:
            return {"q": [value.maxlen, self._values(value)]}
        if kind is defaultdict:
            factory = next((name for name, make in _FACTORIES.items() if make is value.default_factory), None)
            if factory is not None:
                return {"D": [factory, self._pairs(value)]}
        if kind.__name__ in self._registry.enums and isinstance(value, enum.Enum):
            return {"e": [kind.__name__, value.value]}
        raise CodecError(
            f"{kind.__module__}.{kind.__qualname__} is not in the list of what can be saved (see memory.py)"
        )

    def _values(self, values: Iterable[Any]) -> list[Any]:
        return [self._value(value) for value in values]

    def _pairs(self, table: Mapping[Any, Any]) -> list[list[Any]]:
        return [[self._value(key), self._value(value)] for key, value in table.items()]


def decode(registry: Registry, document: Mapping[str, Any], root: object) -> None:
    """Fills `root`, a new instance, and what hangs on it, with what was saved.

    Raises:
        CodecError: the document is no such graph; `root` may be half filled.
    """
    try:
        _Decoder(registry, document).fill_root(root)
    except CodecError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
        raise CodecError(f"no graph of ours: {type(error).__name__}: {error}") from error


class _Decoder:
    """Makes the objects of one document as they are asked for."""

    def __init__(self, registry: Registry, document: Mapping[str, Any]) -> None:
        self._registry = registry
        self._root: int = document["root"]
        self._names: Mapping[str, list[str]] = document["classes"]
        self._rows: Mapping[str, list[Any]] = document["objects"]
        self._made: dict[int, Any] = {}

    def fill_root(self, root: object) -> None:
        """Begins at `root`."""
        if self._kept(self._root).cls is not type(root):
            raise CodecError(f"the saved graph is not one of {type(root).__name__}")
        self._fill(self._root, root)

    def _kept(self, number: int) -> Kept:
        name = self._rows[str(number)][0]
        kept = self._registry.by_name.get(name)
        if kept is None:
            raise CodecError(f"no class {str(name)[:80]!r} is known")
        return kept

    def _object(self, number: int, fresh: Any) -> Any:
        """The object of this number; `fresh` is filled with it, where it is of that class and may be changed."""
        if number in self._made:
            return self._made[number]
        kept = self._kept(number)
        reused = type(fresh) is kept.cls and not kept.fixed
        return self._fill(number, fresh if reused else kept.blank())

    def _fill(self, number: int, thing: Any) -> Any:
        self._made[number] = thing
        kept = self._kept(number)
        name, *values = self._rows[str(number)]
        known = frozenset(kept.names_of(thing))
        for attribute, saved in zip(self._names[name], values, strict=True):
            if attribute in known:
                fresh = getattr(thing, attribute, None)
                value = self._value(saved, fresh)
                if isinstance(fresh, _CONTAINERS) and type(value) is not type(fresh):
                    raise CodecError(f"{name}.{attribute} is no {type(fresh).__name__}")
                object.__setattr__(thing, attribute, value)
        lacking = [attribute for attribute in known if not hasattr(thing, attribute)]
        if lacking:
            raise CodecError(f"{name} without {', '.join(sorted(lacking))}")
        if kept.after is not None:
            kept.after(thing)
        return thing

    def _value(self, saved: Any, fresh: Any = None) -> Any:
        if isinstance(saved, list):
            return [self._value(item) for item in saved]
        if not isinstance(saved, dict):
            return saved
        [(tag, content)] = saved.items()
        if tag == "r":
            return self._object(content, fresh)
        return self._container(tag, content)

    def _container(self, tag: str, content: Any) -> Any:
        for kinds, values in ((_ITEMS, self._values), (_PAIRS, self._pairs)):
            for kind, name in kinds.items():
                if name == tag:
                    return kind(values(content))
        if tag == "m":
            return dict(content)
        if tag == "q":
            return deque(self._values(content[1]), content[0])
        if tag == "D":
            return defaultdict(_FACTORIES[content[0]], self._pairs(content[1]))
        if tag == "e":
            return self._registry.enums[content[0]](content[1])
        if tag == "f":
            return float(content)
        raise CodecError(f"no kind of value {tag[:20]!r} is known")

    def _values(self, items: list[Any]) -> list[Any]:
        return [self._value(item) for item in items]

    def _pairs(self, pairs: list[list[Any]]) -> dict[Any, Any]:
        return {self._value(key): self._value(value) for key, value in pairs}
