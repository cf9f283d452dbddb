"""Command line, YAML file and environment to a `TrainConfig`, and one clear line for whatever is wrong with them.

jsonargparse parses; this module makes its options from the dataclasses in `headway_trainer.config` (field → option,
docstring under the field → help text) and turns its errors into words. Precedence, lowest first: defaults,
environment variables, `--config` files, options.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import json
import re
import sys
import textwrap
from argparse import ArgumentError, RawDescriptionHelpFormatter
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from jsonargparse import ArgumentParser, Namespace

from headway_trainer.config import ConfigError, TrainConfig

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Section = TypeVar("Section")

ENVIRONMENT_PREFIX: Final = "HEADWAY_TRAIN"
SHORT_FORMS: Final = {"--data": "--data.paths", "--model": "--model.preset", "--faults": "--faults.schedule"}
"""Options that stand for a section's main field."""

METAVARS: Final = {
    "output": "FOLDER",
    "model.preset": "NAME",
    "data.paths": "PATH [PATH ...]",
    "checkpoint.directory": "FOLDER",
    "faults.schedule": "FAULT [FAULT ...]",
    "faults.file": "FILE",
}
"""What stands for the value in `--help`, where the type does not say it."""

PRINT_CONFIG: Final = "--print-config"
OTHER_FLAGS: Final = frozenset({"--help", "--config", PRINT_CONFIG})

DESCRIPTION: Final = f"""\
Trains a Llama-style decoder on text, read as bytes. Without any option: a small
model, {TrainConfig.steps} steps, on the sources of the Python standard library. Start it with
ft_launcher or torchrun to train with several ranks.

--data, --model and --faults are short for --data.paths, --model.preset and
--faults.schedule. Every option can also stand in a YAML file (see --config and
{PRINT_CONFIG}) or in an environment variable: {ENVIRONMENT_PREFIX}_OPTIMIZER__LR is
--optimizer.lr. An option wins over the file, and the file over the environment.
"""

WRONG_USAGE: Final = 2
"""Exit code for a bad option."""


@dataclass(frozen=True)
class Option:
    """One field of one section, as an option."""

    key: str
    """Where it is in the namespace and in YAML, for example `optimizer.min_lr_ratio`."""

    hint: Any
    """The field's type; a tuple of texts is given as one or more values."""

    default: Any
    help: str

    @property
    def flag(self) -> str:
        """As typed on the command line."""
        return "--" + self.key.replace("_", "-")


def parse_args(argv: Sequence[str] | None = None, *, prog: str = "headway train") -> TrainConfig:
    """The configuration that a command line asks for; exits with code 2 and one line on stderr if it is unusable.

    Args:
        argv: without the program's name; None takes this process's.
        prog: what the user typed to get here, for messages.
    """
    try:
        return read(sys.argv[1:] if argv is None else argv, prog=prog)
    except ConfigError as error:
        exit_with(error, prog=prog)


def exit_with(error: ConfigError, *, prog: str = "headway train") -> NoReturn:
    """Say what is wrong in one line on stderr and exit with code 2."""
    print(f"{prog}: {_one_line(str(error))}", file=sys.stderr)
    raise SystemExit(WRONG_USAGE)


def read(argv: Sequence[str], *, prog: str) -> TrainConfig:
    """Like `parse_args`, but raises.

    Raises:
        ConfigError: with the option and what to do about it.
    """
    parser, canonical = build_parser(prog), _canonical(argv)
    try:
        namespace = parser.parse_args(canonical, env=True)
    except ArgumentError as error:
        raise _in_words(str(error)) from error
    except (OSError, ValueError) as error:  # also what is no text
        raise ConfigError("--config", f"cannot be read: {error}") from error
    except RecursionError as error:  # an alias that stands for itself
        raise ConfigError("--config", "is nested too deeply, or refers to itself") from error
    config = _build(TrainConfig, namespace)
    _check_files(config)
    return config


def variables_without_effect(names: Iterable[str]) -> list[str]:
    """A line for each variable that looks like an option's and is none: only a line, since Kubernetes sets some of its own."""
    known = [f"{ENVIRONMENT_PREFIX}_{option.key.replace('.', '__').upper()}" for option in all_options()]
    known.append(f"{ENVIRONMENT_PREFIX}_CONFIG")
    unknown = sorted(name for name in names if name.startswith(f"{ENVIRONMENT_PREFIX}_") and name not in known)
    return [f"{name} has no effect: no such option{_did_you_mean(name, known)}" for name in unknown]


def build_parser(prog: str) -> ArgumentParser:
    """A parser with one option for each field of `TrainConfig` and its sections."""
    parser = ArgumentParser(
        prog=prog,
        description=DESCRIPTION,
        usage="%(prog)s [--data PATH...] [--steps N] [--model NAME] [--config FILE] [OPTION VALUE]...",
        env_prefix=ENVIRONMENT_PREFIX,
        exit_on_error=False,
        allow_abbrev=False,
        print_config=PRINT_CONFIG,
        formatter_class=RawDescriptionHelpFormatter,  # jsonargparse's own repeats the type after each help text
    )
    parser.add_argument(
        "--config", action="config", metavar="FILE", help="YAML file with options; given options win over it."
    )
    groups: dict[str, Any] = {"": parser}
    for option in all_options():
        section = option.key.rpartition(".")[0]
        if section not in groups:
            groups[section] = parser.add_argument_group(section, _section_help(section))
        groups[section].add_argument(option.flag, **_declaration(option))
    return parser


def _declaration(option: Option) -> dict[str, Any]:
    text = option.help + ("" if option.default in {None, "", ()} else f" [default: {_shown(option.default)}]")
    return {
        "default": option.default,
        "help": text.replace("%", "%%"),
        "metavar": _metavar(option),
        "type": option.hint,
    }


def _metavar(option: Option) -> str:
    if option.key in METAVARS:
        return METAVARS[option.key]
    if get_origin(option.hint) is Literal:
        return "{" + ",".join(get_args(option.hint)) + "}"
    if option.hint is bool:
        return "{true,false}"
    if option.key.endswith("_seconds"):
        return "SECONDS"
    return "N" if int in (get_args(option.hint) or (option.hint,)) else "X"


def _shown(default: object) -> str:
    if isinstance(default, bool):
        return str(default).lower()
    return f"{default:g}" if isinstance(default, float) else str(default)


@cache
def all_options() -> tuple[Option, ...]:
    """Every option, in the order of `--help`."""
    return tuple(_options(TrainConfig))


def _options(section: type, prefix: str = "") -> Iterator[Option]:
    hints, docs = get_type_hints(section), _field_docs(section)
    for field in fields(section):
        hint = hints[field.name]
        if is_dataclass(hint) and isinstance(hint, type):
            yield from _options(hint, f"{prefix}{field.name}.")
        else:
            yield Option(prefix + field.name, hint, field.default, docs.get(field.name, ""))


def _field_docs(section: type) -> dict[str, str]:
    """The docstring under each field (which Python drops when it compiles), without its line breaks."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(section)))
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    return {
        before.target.id: _one_line(after.value.value)
        for before, after in pairwise(body)
        if isinstance(before, ast.AnnAssign)
        and isinstance(before.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
        and isinstance(after.value.value, str)
    }


def _section_help(section: str) -> str:
    hint = get_type_hints(TrainConfig)[section]
    return (hint.__doc__ or "").partition("\n")[0]


def _canonical(argv: Sequence[str]) -> list[str]:
    """The same command line with long option names in one spelling, and several values of a list written as one.

    jsonargparse's own lists of values (`nargs`) neither add up when the option is repeated nor survive a plain text
    in a YAML file.

    Raises:
        ConfigError: an option that does not exist.
    """
    flags = [option.flag for option in all_options()]
    lists = {option.flag: list[str]() for option in all_options() if get_origin(option.hint) is tuple}
    result: list[str] = []
    mentioned: set[str] = set()
    open_list: list[str] | None = None
    for argument in argv:
        if not argument.startswith("--"):
            (result if open_list is None else open_list).append(argument)
            continue
        given, equals, value = argument.partition("=")
        name = SHORT_FORMS.get(given, given).replace("_", "-")
        if name not in flags and name not in OTHER_FLAGS:
            raise ConfigError(given, "no such option" + _did_you_mean(given, flags))
        mentioned.add(name)
        open_list = lists.get(name)
        if open_list is None:
            result.append(name + equals + value)
        elif equals:
            open_list.append(value)
    for flag, values in lists.items():
        if values:
            result.append(f"{flag}={json.dumps(values)}")
        elif flag in mentioned:
            raise ConfigError(flag, "needs a value")
    return result


def _build(section: type[Section], namespace: Namespace) -> Section:
    hints = get_type_hints(section)
    values: dict[str, Any] = {}
    for field in fields(section):  # type: ignore[arg-type]  # every section is a dataclass
        value, hint = namespace[field.name], hints[field.name]
        if is_dataclass(hint) and isinstance(hint, type):
            if not isinstance(value, Namespace):
                raise ConfigError("--config", f"{field.name} must hold options of that section, got {value}")
            value = _build(hint, value)
        values[field.name] = tuple(value) if get_origin(hint) is tuple else value
    return section(**values)


def _check_files(config: TrainConfig) -> None:
    for path in config.data.paths:
        if not Path(path).exists():
            raise ConfigError("--data.paths", f"no such file or folder: {path}")
    if config.faults.file is not None and not Path(config.faults.file).is_file():
        raise ConfigError("--faults.file", f"no such file: {config.faults.file}")


def _in_words(message: str) -> ConfigError:
    """What jsonargparse said, for a person. An unknown message is passed on in one line."""
    if match := re.match(r'Parser key "([\w.-]+)":\s*(.*)', message, re.DOTALL):
        return _bad_value(match[1], match[2])
    if match := re.match(r"[Uu]nrecognized arguments: (\S+)", message):
        return ConfigError(
            match[1], "no such option" + _did_you_mean(match[1], [option.flag for option in all_options()])
        )
    if match := re.match(r"argument (\S+): expected", message):
        return ConfigError(match[1], "needs a value")
    if match := re.search(r"(?:Option|Key) '(.+)' is not (?:accepted|expected)", message):
        return ConfigError(
            "--config",
            f"no such option: {match[1]}" + _did_you_mean(match[1], [option.key for option in all_options()]),
        )
    if message.startswith("Unexpected config"):
        return ConfigError("--config", "must hold `option: value` lines, as --print-config shows them")
    if match := re.match(r"Problems parsing config:(.*)", message, re.DOTALL):
        return ConfigError("--config", "is not valid YAML: " + match[1].replace('in "<unicode string>",', "at"))
    return ConfigError(message)


def _bad_value(key: str, details: str) -> ConfigError:
    option = next((option for option in all_options() if option.key == key), None)
    got = re.search(r"(?:Got|Given) value: (.*)", details, re.DOTALL)
    if option is None or got is None:
        return ConfigError(f"--{key}", details)
    return ConfigError(option.flag, f"must be {_kind(option.hint)}, got {'null' if got[1] == 'None' else got[1]}")


def _kind(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(get_args(hint))
    if get_origin(hint) in {Union, UnionType}:
        return " or ".join("null" if part is type(None) else _kind(part) for part in get_args(hint))
    if get_origin(hint) is tuple:
        return "a list of texts"
    return {int: "a whole number", float: "a number", bool: "true or false"}.get(hint, "a text")


def _did_you_mean(given: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(given.partition("=")[0], known, n=1)
    return f"; did you mean {close[0]}?" if close else "; --help lists them"


def _one_line(text: str) -> str:
    return " ".join(text.split())
