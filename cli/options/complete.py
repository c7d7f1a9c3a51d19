"""What a shell offers as the value of an option when Tab is pressed; whatever goes wrong, nothing is offered."""

import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from glob import glob

import typer

_PACKED = (".gz", ".zst", ".bz2")
_PLAIN = re.compile(r"[\w.-]+")  # a shell would act on other characters of a name


def one_of(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Names that begin so."""
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


def several_of(names: Iterable[str]) -> Callable[[str], list[str]]:
    """The same for a list with commas."""

    def complete(incomplete: str) -> list[str]:
        done, comma, last = incomplete.rpartition(",")
        rest = [name for name in names if name.startswith(last) and name not in done.split(",")]
        return [f"{done}{comma}{name}" for name in rest]

    return complete


def columns_of_the_log(option: str) -> Callable[[typer.Context, str], list[str]]:
    """The columns of the log on the line or, for options about it, of its table of clicks.

    No more than a schema is read, and that of no file in an object store, that would have to be unpacked, or is no
    plain file.
    """

    def complete(invocation: typer.Context, incomplete: str) -> list[str]:
        from posbias.io.log.scan import schema_of  # noqa: PLC0415 - only where a column is to be completed
        from posbias.io.log.sources import find_sources  # noqa: PLC0415 - likewise

        said = invocation.params
        inputs = said.get("clicks") if option.startswith("clicks_") else said.get("logs") or said.get("inputs")
        local = [name for name in inputs or () if "://" not in name]
        files = [file for name in local for file in sorted(glob(name)) + sorted(glob(f"{name}/*"))]  # noqa: PTH207
        first = next((file for file in files if os.path.isfile(file) and not file.endswith(_PACKED)), None)  # noqa: PTH113
        with suppress(BaseException):  # also a panic of Rust
            columns = [] if first is None else list(schema_of(find_sources([first])[0]))
            return [name for name in columns if _PLAIN.fullmatch(name) and name.startswith(incomplete)]
        return []

    return complete
