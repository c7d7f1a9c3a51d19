"""Frames of other libraries as logs, and further columns in the same kind of frame."""

from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from os import PathLike, fsdecode
from typing import Any, TypeVar, cast, get_args

import narwhals as nw
import numpy as np
import polars as pl

from posbias.core.choices import MOST_BAD_ROWS
from posbias.core.errors import EngineError, PosbiasError, SchemaError, UsageError, shown
from posbias.core.log.impressions import ReadingRules
from posbias.core.roles import resolve_roles, says_offset, says_page
from posbias.core.schema import CLICK, DOC, POSITION, QUERY, SESSION, Roles
from posbias.io.engines.engine import OnBadRows
from posbias.io.engines.local import LocalEngine
from posbias.io.engines.spark_session import session_of, spark_errors
from posbias.io.log.click_log import LogRequest
from posbias.io.places.ownership import owned_directory, system_temporary

FRAME = "the frame"
"""The name of a frame in messages and in the manifest."""

FrameT = TypeVar("FrameT")

_FAULTS = (TypeError, ValueError, ArithmeticError, LookupError, NotImplementedError, pl.exceptions.PolarsError)
"""Errors of libraries over columns that they cannot convert; pyarrow's are of these kinds, too."""


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
        """A Polars frame (lazy ones are collected), a pandas frame, an Arrow table, or a stream of Arrow batches.

        Streams, such as relations of DuckDB, are read into Polars.

        Raises:
            UsageError: it is none of them.
            SchemaError: a lazy frame cannot be collected, or a column is there twice.
        """
        given = nw.to_native(given, pass_through=True)
        lazy = isinstance(given, pl.LazyFrame)
        try:
            rows = given.collect() if isinstance(given, pl.LazyFrame) else given
        except pl.exceptions.PolarsError as error:
            raise SchemaError(f"{FRAME}: cannot be collected: {error}") from error
        try:
            return cls(nw.from_native(rows, eager_only=True), lazy)
        except TypeError:
            pass
        except ValueError as error:
            raise SchemaError(f"{FRAME}: cannot be read: {error}") from error
        if not hasattr(rows, "__arrow_c_stream__") or isinstance(rows, pl.Series):
            raise _not_taken(given)
        try:
            return cls(nw.from_native(pl.DataFrame(cast("Any", rows)), eager_only=True), lazy)
        except _FAULTS as error:
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
            unreadable = next((name for name in names if not self._is_readable(name)), "")
            raise SchemaError(f"{FRAME}: column {unreadable!r} cannot be read: {error}") from error

    def _is_readable(self, name: str) -> bool:
        try:
            self.rows.select(name).to_polars()
        except _FAULTS:
            return False
        return True

    def with_columns(self, columns: Sequence[pl.Series]) -> Any:  # noqa: ANN401 - whatever was handed in
        """The same kind of frame with further columns of numbers, its rows and their index as they are."""
        own = [
            nw.new_series(one.name, one.to_list(), nw.Float64(), backend=self.rows.implementation) for one in columns
        ]
        wider = self.rows.with_columns(*own).to_native()
        return wider.lazy() if self.lazy else wider


def is_frame(value: object) -> bool:
    """Whether a value is a table of rows, and not the name of a file or an option."""
    native = nw.to_native(cast("Any", value), pass_through=True)
    if isinstance(native, pl.LazyFrame) or hasattr(native, "__arrow_c_stream__") or is_of_spark(native):
        return True
    return isinstance(nw.from_native(native, pass_through=True), nw.DataFrame)


def is_of_spark(value: object) -> bool:
    """Whether a value is a DataFrame of Spark, or of Spark Connect."""
    return all(hasattr(value, name) for name in ("createOrReplaceTempView", "sparkSession"))


def is_single(value: object) -> bool:
    """Whether a value is one value, and not several."""
    if isinstance(value, str | bytes | PathLike) or not isinstance(value, Iterable):
        return True
    return is_frame(cast("object", value))


def _not_taken(given: object) -> UsageError:
    kind = f"{type(given).__module__}.{type(given).__qualname__}"
    return UsageError(f"{FRAME}: is {kind}. Give a Polars or pandas frame, or an Arrow table.")


NUMBER = "row of the frame"
"""The column that numbers the rows of a frame, from 0; with blanks, as no column of a role is likely to be called."""

Names = str | Sequence[str] | None
"""The column of a role, or several that make up one id; None looks for a well-known name."""

_FILE = "frame.parquet"
_MEMORY = 2 << 30  # as the command line has it


def checked_names(option: str, given: object) -> tuple[str, ...]:
    """The columns that play a role.

    Raises:
        UsageError: they are not named by text, or by a sequence of texts.
    """
    if given is None or isinstance(given, str):
        return () if given is None else (checked_name(option, given),)
    try:
        return tuple(checked_name(option, one) for one in cast("Iterable[object]", given))
    except TypeError:
        raise UsageError(f"--{option} {given!r}: give a name, or a list of names.") from None


def checked_name(option: str, given: object) -> str:
    """A name: of a column, a model, a method. The command line gets nothing but text.

    Raises:
        UsageError: it is no text, or empty.
    """
    if not isinstance(given, str) or not given:
        raise UsageError(f"--{option} {given!r}: give a name, as text.")
    return given


def name_or_none(option: str, given: object) -> str | None:
    """The same, of an option that may be left out."""
    return None if given is None else checked_name(option, given)


def check_choice(option: str, given: object, choices: tuple[object, ...]) -> None:
    """Check that a value is one of those that an option takes; the command line does so by itself.

    Raises:
        UsageError: it is not.
    """
    if given not in choices:
        raise UsageError(f"--{option} {given}: choose {' or '.join(map(str, choices))}.")


class FrameFiles:
    """Frames as files, for as long as `frame_files` runs."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack  # removes the files
        self._names: dict[str, str] = {}  # of frames, by the file that each is written to

    def plain(self, value: object, name: str) -> object:
        """A value as a command line takes it: a file as its name, and a frame as the file that it is written to.

        Raises:
            SchemaError: a frame cannot be written.
        """
        if isinstance(value, bytes | PathLike):
            return fsdecode(cast("PathLike[str]", value))
        if isinstance(value, np.generic):
            return cast("object", value.item())
        if not is_frame(value):
            return value
        if is_of_spark(value):
            with spark_errors():
                value = cast("Any", value).toArrow()
        try:
            frame = Frame.of(value)
            rows = frame.select(frame.columns)
        except SchemaError as error:
            raise error.reworded(lambda line: line.replace(FRAME, name, 1)) from error
        path = self._stack.enter_context(owned_directory(system_temporary().absolute())) / _FILE
        self._names[str(path)] = name
        try:
            rows.write_parquet(path)
        except _FAULTS as error:
            raise SchemaError(f"{name}: cannot be written as Parquet: {error}") from error
        return str(path)

    def table_of(self, frame: object) -> str:
        """The name of a view of a DataFrame of Spark, which is there as long as the files are."""
        view = self._stack.enter_context(session_of(frame))
        self._names[f"table {view}"] = self._names[view] = FRAME
        return view

    def in_words(self, text: str) -> str:
        """A line of a message that names frames, and not their files; Python prints it as it is."""
        for path, name in self._names.items():
            text = text.replace(path, name)
        return shown(text)


@contextmanager
def frame_files() -> Generator[FrameFiles]:
    """A place for frames that are read as files. Errors speak of the frame; those of Polars are errors of posbias.

    Raises:
        PosbiasError: whatever fails.
    """
    with ExitStack() as stack:
        files = FrameFiles(stack)
        try:
            yield files
        except PosbiasError as error:
            raise error.reworded(files.in_words) from None
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            raise EngineError(f"Polars failed: {files.in_words(str(error))}") from error


@contextmanager
def local_engine(on_bad_rows: OnBadRows) -> Generator[tuple[FrameFiles, LocalEngine]]:
    """An engine with a temporary directory of its own, which is removed at the end, and a place for frames.

    Raises:
        PosbiasError: whatever fails.
    """
    check_choice("on-bad-rows", on_bad_rows, get_args(OnBadRows))
    with frame_files() as files, owned_directory(system_temporary().absolute()) as scratch:
        yield files, LocalEngine(_MEMORY, scratch, on_bad_rows, "sample")


def request_of(
    frame: Frame, requested: Roles, rules: ReadingRules, files: FrameFiles, *, needs_session: bool
) -> LogRequest:
    """A frame as a log to be opened, with NUMBER as a feature of its rows.

    Args:
        frame: a row per impression.
        requested: the columns that were named.
        rules: how values are read.
        files: where it is written.
        needs_session: whether the work cannot be done without the session column.

    Raises:
        SchemaError: a role has no column, or more than one, or a column cannot be read.
    """
    required = {QUERY, DOC, POSITION, CLICK} | ({SESSION} if needs_session else set[str]())
    roles = resolve_roles(requested, frame.columns, where=FRAME, required=required)
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
    return LogRequest(
        inputs=(str(files.plain(rows.with_row_index(NUMBER), FRAME)),),
        roles=replace(requested, features=(NUMBER,)),
        rules=rules,
        needs_session=needs_session,
        form="flat",
        max_bad_rows=MOST_BAD_ROWS,
    )
