"""Frames of other libraries as logs, and further columns in the same kind of frame."""

import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike, fsdecode
from typing import Any, TypeVar, cast, get_args

import narwhals as nw
import numpy as np
import polars as pl

from posbias.core.choices import MOST_BAD_ROWS, OnBadRows, Source
from posbias.core.counts.checks import DEFAULT_MODEL, counted_model
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.errors import EngineError, PosbiasError, SchemaError, UsageError, printable
from posbias.core.fit.propensities import PROPENSITY
from posbias.core.log.impressions import ReadingRules
from posbias.core.models import ExaminationModel
from posbias.core.roles import is_offset_name, is_page_name, resolve_roles
from posbias.core.schema import CLICK, DOC, POSITION, QUERY, SESSION, WEIGHT, Roles
from posbias.core.training.weights import WeightOptions, check_min_propensity
from posbias.io.counting.count import read_log
from posbias.io.engines.local import LocalEngine
from posbias.io.engines.spark_session import session_of, spark_errors
from posbias.io.fits.saved_fit import PreviousFit
from posbias.io.jobs.click_models import ClickModelFit, check_can_weigh, no_weight_of_rows, weigh_by_row
from posbias.io.jobs.training import WeightRequest, weigh_by_cell
from posbias.io.log.click_log import LogRequest, open_log
from posbias.io.log.faults import doubts
from posbias.io.places.ownership import owned_directory, system_temporary
from posbias.io.progress import SilentProgress
from posbias.io.results.conclusions import warnings_in

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
            kind = f"{type(given).__module__}.{type(given).__qualname__}"
            raise UsageError(f"{FRAME}: is {kind}. Give a Polars or pandas frame, or an Arrow table.")
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
            for name in names if len(names) > 1 else ():
                self.select([name])  # which names the column that is at fault
            raise SchemaError(f"{FRAME}: column {names[0]!r} cannot be read: {error}") from error

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
        return printable(text)


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
    of_pages = [name for name in frame.columns if (is_page_name(name) or is_offset_name(name)) and name not in played]
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


# --- weights for the rows of a frame: `propensity` and `weight`, as `posbias weight --layout session` writes them ---

ADDED = (PROPENSITY, WEIGHT)
"""The columns that are added."""


def weigh(
    given: FrameT,
    fit: PreviousFit | ClickModelFit,
    roles: Roles,
    options: WeightOptions,
    source: Source,
    on_bad_rows: OnBadRows,
    unidentified: OnBadRows,
) -> FrameT:
    """The frame with `propensity` and `weight`: see `Result.weights`."""
    check_choice("on-bad-rows", on_bad_rows, get_args(OnBadRows))
    check_choice("propensity", source, get_args(Source))
    check_choice("unidentified", unidentified, get_args(OnBadRows))
    check_choice("self-normalize", options.self_normalize, (True, False))
    check_min_propensity(options.min_propensity)
    frame = Frame.of(given)
    taken = [name for name in ADDED if name in frame.columns]
    if taken:
        raise SchemaError(
            f"{FRAME}: has a column {taken[0]!r} already, and one of this name is added. Rename it, or leave it out."
        )
    of_fit, weighted = fit.plan, roles.weight is not None
    if isinstance(fit, ClickModelFit):
        check_can_weigh(fit.model)
        if not isinstance(fit.model, ExaminationModel):
            raise no_weight_of_rows(f"--model {fit.model.name}")
        weigh_log, pages = partial(weigh_by_row, fit), True
        plan = StatisticsPlan(counted_model(DEFAULT_MODEL), of_fit.max_position, weighted=weighted)
    else:  # the cells of the fit; what only its estimate depended on is left aside
        weigh_log, pages, bins = partial(weigh_by_cell, fit.theta), of_fit.model.needs_session, of_fit.position_bins
        by = bins, of_fit.context, of_fit.cell
        plan = StatisticsPlan(of_fit.model, of_fit.max_position, *by, weighted=weighted)
    request = WeightRequest(options, source, unidentified == "error", (NUMBER,))
    roles, rules = replace(roles, context=plan.context, cell=plan.cell), ReadingRules()
    with frame_files() as files, owned_directory(system_temporary().absolute()) as scratch:
        engine = LocalEngine(_MEMORY, scratch, on_bad_rows, "sample")
        log = open_log(request_of(frame, roles, rules, files, needs_session=pages))
        read = read_log(log, plan, engine, SilentProgress(), keep_sessions=pages)
        weighed = weigh_log(read, request, engine, SilentProgress())
        parts = (weighed.pages or read.buckets).map(partial(_columns_of_part, weigh=weighed.weigh))
        rows, doubted = pl.concat(parts), warnings_in(doubts(log))
    for sentence in doubted:
        warnings.warn(printable(sentence), stacklevel=3)  # where `Result.weights` is called
    return frame.with_columns([_in_frame(rows, name, read.rows_read) for name in ADDED])


def _columns_of_part(_: int, impressions: pl.LazyFrame, weigh: Callable[[pl.DataFrame], pl.DataFrame]) -> pl.DataFrame:
    """NUMBER, `propensity` and `weight` of the rows."""
    rows = impressions.collect(engine="streaming")
    if SESSION not in rows.columns:  # then no cell depends on the rest of the page
        rows = rows.with_columns(pl.lit(0).alias(SESSION))
    return weigh(rows).select(NUMBER, *ADDED)


def _in_frame(weighed: pl.DataFrame, name: str, rows: int) -> pl.Series:
    """A column in the order of the frame, null for rows that have no value."""
    values = np.full(rows, np.nan)
    values[weighed[NUMBER].to_numpy()] = weighed[name].cast(pl.Float64).fill_null(np.nan).to_numpy()
    return pl.Series(name, values, nan_to_null=True)
