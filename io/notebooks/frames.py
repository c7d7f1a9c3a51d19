"""Frames of other libraries as logs, and further columns in the same kind of frame."""

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

import narwhals as nw
import polars as pl

from posbias.core.choices import MOST_BAD_ROWS
from posbias.core.errors import EngineError, PosbiasError, RoleError, SchemaError, UsageError
from posbias.core.log.impressions import ReadingRules
from posbias.core.roles import resolve_roles, says_offset, says_page
from posbias.core.schema import CLICK, DOC, POSITION, QUERY, SESSION, Roles
from posbias.io.engines.engine import OnBadRows
from posbias.io.engines.local import LocalEngine
from posbias.io.log.click_log import LogRequest
from posbias.io.places.ownership import owned_directory, system_temporary

FRAME = "the frame"
"""What messages and the manifest call it."""

FrameT = TypeVar("FrameT")

_FAULTS = (TypeError, ValueError, ArithmeticError, LookupError, NotImplementedError, pl.exceptions.PolarsError)
"""What libraries raise over columns that they cannot convert; pyarrow's errors are of these kinds, too."""


@dataclass(frozen=True)
class Frame:
    """A frame that was handed in.

    Attributes:
        rows: it, in memory.
        lazy: whether it was lazy, and is to be given back like that.
    """

    rows: nw.DataFrame[Any]
    lazy: bool

    @classmethod
    def of(cls, given: object) -> "Frame":
        """A Polars frame (lazy ones are collected), a pandas frame or an Arrow table.

        Raises:
            UsageError: it is none of them.
            SchemaError: a lazy frame cannot be collected, or a column is there twice.
        """
        lazy = isinstance(given, pl.LazyFrame)
        if type(given) in {nw.DataFrame, nw.LazyFrame}:
            raise _not_taken(given)
        try:
            rows = given.collect() if isinstance(given, pl.LazyFrame) else given
        except pl.exceptions.PolarsError as error:
            raise SchemaError(f"{FRAME}: cannot be collected: {error}") from error
        try:
            return cls(nw.from_native(rows, eager_only=True), lazy)
        except TypeError:
            raise _not_taken(given) from None
        except ValueError as error:
            raise SchemaError(f"{FRAME}: cannot be read: {error}") from error

    @property
    def columns(self) -> list[str]:
        """The names of its columns; those that are no text play no role."""
        names: list[object] = list(self.rows.columns)
        return [name for name in names if isinstance(name, str)]

    def select(self, names: Sequence[str]) -> pl.DataFrame:
        """Some of its columns.

        Raises:
            SchemaError: a column holds what no column of a log can.
        """
        try:
            return self.rows.select(*names).to_polars()
        except _FAULTS as error:
            raise SchemaError(f"{FRAME}: columns {', '.join(map(repr, names))} cannot be read: {error}") from error

    def with_columns(self, columns: Sequence[pl.Series]) -> Any:  # noqa: ANN401 - whatever was handed in
        """The same kind of frame with further columns of numbers, its rows and their index as they are."""
        own = [
            nw.new_series(one.name, one.to_list(), nw.Float64(), backend=self.rows.implementation) for one in columns
        ]
        wider = self.rows.with_columns(*own).to_native()
        return wider.lazy() if self.lazy else wider


def _not_taken(given: object) -> UsageError:
    kind = f"{type(given).__module__}.{type(given).__qualname__}"
    return UsageError(f"{FRAME}: is {kind}. Give a Polars or pandas frame, or an Arrow table.")


NUMBER = "row of the frame"
"""The column that numbers the rows of a frame, from 0; with blanks, as no column of a role is likely to be called."""

Names = str | Sequence[str] | None
"""The column of a role, or several that make up one id; None looks for a well-known name."""

_FILE = "frame.parquet"
_MEMORY = 2 << 30  # as the command line has it


def names(option: str, given: object) -> tuple[str, ...]:
    """The columns that play a role.

    Raises:
        UsageError: they are not named by text, or by a sequence of texts.
    """
    if given is None or isinstance(given, str):
        return () if given is None else (name(option, given),)
    try:
        return tuple(name(option, one) for one in cast("Iterable[object]", given))
    except TypeError:
        raise UsageError(f"--{option} {given!r}: give a name, or a list of names.") from None


def name(option: str, given: object) -> str:
    """A name: of a column, a model, a method. The command line gets nothing but text.

    Raises:
        UsageError: it is no text, or empty.
    """
    if not isinstance(given, str) or not given:
        raise UsageError(f"--{option} {given!r}: give a name, as text.")
    return given


def name_or_none(option: str, given: object) -> str | None:
    """The same, of an option that may be left out."""
    return None if given is None else name(option, given)


def check_choice(option: str, given: object, choices: tuple[object, ...]) -> None:
    """See that a value is one of those that an option takes; the command line does so by itself.

    Raises:
        UsageError: it is not.
    """
    if given not in choices:
        raise UsageError(f"--{option} {given}: choose {' or '.join(map(str, choices))}.")


@contextmanager
def local_engine(on_bad_rows: OnBadRows) -> Generator[LocalEngine]:
    """An engine with a temporary directory of its own, which is removed at the end. Its errors speak of the frame.

    Raises:
        PosbiasError: whatever fails.
    """
    check_choice("on-bad-rows", on_bad_rows, get_args(OnBadRows))
    with owned_directory(system_temporary().absolute()) as scratch:
        try:
            yield LocalEngine(_MEMORY, scratch, on_bad_rows, "sample")
        except RoleError as error:
            raise RoleError(_of_frame(error, scratch), error.options, error.several) from None
        except PosbiasError as error:
            raise type(error)(_of_frame(error, scratch)) from None
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            raise EngineError(f"Polars failed: {_of_frame(error, scratch)}") from error


def _of_frame(error: BaseException, scratch: Path) -> str:
    return str(error).replace(str(scratch / _FILE), FRAME)


def request_of(
    frame: Frame, requested: Roles, rules: ReadingRules, folder: Path, *, needs_session: bool, numbered: bool
) -> LogRequest:
    """A frame as a log to be opened.

    Args:
        frame: a row per impression.
        requested: the columns that were named.
        rules: how values are read.
        folder: for the temporary file.
        needs_session: whether the work cannot be done without the session column.
        numbered: whether NUMBER is a feature of its rows.

    Raises:
        SchemaError: a role has no column, or more than one, or a column cannot be read.
    """
    required = {QUERY, DOC, POSITION, CLICK} | ({SESSION} if needs_session else set[str]())
    roles = resolve_roles(requested, frame.columns, where=FRAME, required=required)
    path = folder / _FILE
    played = roles.columns()
    of_pages = [name for name in frame.columns if (says_page(name) or says_offset(name)) and name not in played]
    rows = frame.select([*played, *of_pages])  # what numbers pages shows whether positions go on from one to the next
    rows = rows.drop(name for name in of_pages if not rows.schema[name].is_numeric())
    for name, dtype in rows.schema.items():
        if dtype.is_nested() or dtype == pl.Object:
            raise SchemaError(
                f"{FRAME}: column {name!r} holds {dtype}. Give a frame with a row per impression, whose columns hold "
                "numbers, text or times."
            )
    (rows.with_row_index(NUMBER) if numbered else rows).write_parquet(path)
    return LogRequest(
        inputs=(str(path),),
        roles=replace(requested, features=(NUMBER,) if numbered else ()),
        rules=rules,
        needs_session=needs_session,
        form="flat",
        max_bad_rows=MOST_BAD_ROWS,
    )
