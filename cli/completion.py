"""What a shell offers when Tab is pressed: commands, options, and the values that an option can have.

The shell runs posbias with the words of the line, up to the one that is to be completed, and a variable that says who
asks. Nothing of the line is run; of a log that is named on it, no more than the schema is read. Whatever goes wrong,
nothing is offered, and the shell falls back on names of files.
"""

import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from glob import glob
from typing import Any

from typer.core import TyperOption

from posbias.cli.options import names

VARIABLE = "_POSBIAS_COMPLETION"

_VALUES: Mapping[str, Callable[[], Sequence[str]]] = {
    "--model": names.models,
    "--models": lambda: [*names.models(), "all"],
    "--method": names.methods,
    "--shape": names.shapes,
    "--learner": names.learners,
    "--layout": names.layouts,
    "--format": names.formats,
    "--input-format": names.forms,
}
_OF_CELLS = "collect"
_LISTS = ("--models",)
_OF_CLICKS = "--clicks-"
_PACKED = (".gz", ".zst", ".bz2")


def is_asked() -> bool:
    """Whether a shell asks what to offer."""
    return VARIABLE in os.environ


def answer(application: Any) -> None:  # noqa: ANN401 - a type of Typer's own
    """Print what can stand at the end of the command line, one candidate a line."""
    with suppress(BaseException):  # also a panic of Rust, and Ctrl-C
        shell = os.environ[VARIABLE]
        words = _joined(sys.argv[1:]) if shell == "bash" else sys.argv[1:]
        found = [text for text in candidates(application, words) if text.isprintable()]
        if shell == "bash":  # breaks words at `=`, and takes what is offered as it is
            start = words[-1].find("=") + 1 if words[-1].startswith("-") else 0
            found = [shlex.quote(text[start:]) for text in found]
        sys.stdout.write("".join(f"{text}\n" for text in found))


def candidates(application: Any, words: Sequence[str]) -> list[str]:  # noqa: ANN401 - a type of Typer's own
    """What the last word can be completed to; nothing where it is a file or a number."""
    if not words:
        return []
    *before, incomplete = words
    if not before:
        flags = [flag for option in _options(application) for flag in option.opts]
        return _starting(incomplete, [*flags, "--help"] if incomplete.startswith("-") else application.commands)
    line = _Line.read(application.commands[before[0]], before[0], before[1:])
    if line.open_option is not None:
        return _values(line, line.open_option, incomplete)
    flag, equals, value = incomplete.partition("=")
    if equals and flag in line.options:
        return [f"{flag}={found}" for found in _values(line, line.options[flag], value)]
    if incomplete.startswith("-"):
        said = {flag for flag, option in line.options.items() if option.name in line.said and not option.multiple}
        return _starting(incomplete, [flag for flag in (*line.options, "--help") if flag not in said])
    return []


@dataclass(frozen=True)
class _Line:
    """The words of a command that are complete.

    Attributes:
        command: its name.
        options: those that it has, by flag.
        arguments: words that are no option.
        said: values of options, by parameter.
        open_option: the option whose value comes next.
    """

    command: str
    options: Mapping[str, TyperOption]
    arguments: tuple[str, ...]
    said: Mapping[str, list[str]]
    open_option: TyperOption | None

    @classmethod
    def read(cls, command: Any, name: str, words: Sequence[str]) -> "_Line":  # noqa: ANN401 - a type of Typer's own
        """Tell options, their values and arguments apart."""
        options = {flag: each for each in _options(command) for flag in (*each.opts, *each.secondary_opts)}
        arguments: list[str] = []
        said: dict[str, list[str]] = {}
        waiting: TyperOption | None = None
        for word in words:
            flag, equals, value = word.partition("=")
            if waiting is not None:
                said[waiting.name or ""].append(_unquoted(word))
                waiting = None
            elif flag in options:
                option = options[flag]
                held = said.setdefault(option.name or "", [])
                if equals:
                    held.append(_unquoted(value))
                elif not option.is_flag:
                    waiting = option
            else:
                arguments.append(_unquoted(word))
        return cls(name, options, tuple(arguments), said, waiting)


def _values(line: _Line, option: TyperOption, incomplete: str) -> list[str]:
    """What an option can be set to."""
    choices = option.type_descriptor.choices
    if choices:
        return _starting(incomplete, map(str, choices))
    flag = next(flag for flag in option.opts if flag.startswith("--"))
    if (option.metavar or "").startswith("COLUMN"):
        return _starting(incomplete, _columns(line, flag))
    if flag not in _VALUES or option.metavar == "DIR":  # `score --model DIR`
        return []
    known = names.cell_models() if flag == "--model" and line.command == _OF_CELLS else _VALUES[flag]()
    if flag not in _LISTS:
        return _starting(incomplete, known)
    done, comma, last = incomplete.rpartition(",")
    return [f"{done}{comma}{name}" for name in _starting(last, known) if name not in done.split(",")]


def _columns(line: _Line, flag: str) -> list[str]:
    """The columns of the log on the line, or of its table of clicks.

    Nothing is looked for in an object store, in a file that would have to be unpacked, or in what is no plain file.
    """
    from posbias.io.log.scan import schema_of  # noqa: PLC0415 - only where a column is to be completed
    from posbias.io.log.sources import find_sources  # noqa: PLC0415 - likewise

    named = line.said.get("clicks", []) if flag.startswith(_OF_CLICKS) else line.arguments
    local = [name for name in named if "://" not in name]
    found = (file for name in local for file in sorted(glob(name)) + sorted(glob(f"{name}/*")))  # noqa: PTH207
    first = next((file for file in found if os.path.isfile(file) and not file.endswith(_PACKED)), None)  # noqa: PTH113
    return [] if first is None else list(schema_of(find_sources([first])[0]))


def _options(command: Any) -> list[TyperOption]:  # noqa: ANN401 - a type of Typer's own
    return [each for each in command.params if isinstance(each, TyperOption)]


def _starting(start: str, known: Iterable[str]) -> list[str]:
    return [name for name in known if name.startswith(start)]


def _joined(words: Sequence[str]) -> list[str]:
    """Words as they were typed: bash parts `--model=ubm` into three."""
    joined: list[str] = []
    for number, word in enumerate(words):
        after_equals = number > 0 and words[number - 1] == "=" and len(joined) > 0
        if (word == "=" and joined and joined[-1].startswith("--")) or (after_equals and joined[-1].endswith("=")):
            joined[-1] += word
        else:
            joined.append(word)
    return joined


def _unquoted(word: str) -> str:
    """A word without the marks that quote it on the line."""
    with suppress(ValueError):
        parts = shlex.split(word)
        return os.path.expanduser(parts[0]) if len(parts) == 1 else word  # noqa: PTH111 - a word need not be a path
    return word
