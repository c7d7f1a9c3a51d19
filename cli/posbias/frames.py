"""Frames of other libraries as logs, and weights added to frames of the same kind."""

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
from posbias.io.fits.saved_fit import CellPropensities
from posbias.io.jobs.click_models import ClickModelFit, check_can_weigh, no_weight_of_rows, weigh_by_row
from posbias.io.jobs.training import WeightRequest, weigh_by_cell
from posbias.io.log.click_log import LogRequest, open_log
from posbias.io.log.faults import column_faults
from posbias.io.places.ownership import owned_directory, system_temporary
from posbias.io.progress import SilentProgress
from posbias.io.results.conclusions import warning_sentences

FRAME = "the frame"
"""The name of a frame in messages and in the manifest."""

FrameT = TypeVar("FrameT")

_FAULTS = (TypeError, ValueError, ArithmeticError, LookupError, NotImplementedError, pl.exceptions.PolarsError)
"""Errors of libraries over columns that they cannot convert; errors of pyarrow are subclasses."""


@dataclass(frozen=True)
class Frame:
    """A caller's frame in memory."""

    rows: nw.DataFrame[Any]
    lazy: bool  # whether it was a LazyFrame

    @classmethod
    def of(cls, given: object) -> "Frame":
        """Wrap a Polars frame (a lazy one is collected), a pandas frame, an Arrow table or an Arrow stream.

        Streams, such as relations of DuckDB, are read into Polars.

        Raises:
            UsageError: an object of another kind.
            SchemaError: a lazy frame cannot be collected, or a column occurs twice.
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
        """The names of the columns; names that are not text are left out."""
        names: list[object] = list(self.rows.columns)
        return [name for name in names if isinstance(name, str)]

    def select(self, names: Sequence[str]) -> pl.DataFrame:
        """Return columns as a Polars frame.

        Raises:
            SchemaError: a column cannot be converted.
        """
        try:
            return self.rows.select(*names).to_polars()
        except _FAULTS as error:
            for name in names if len(names) > 1 else ():
                self.select([name])  # raises with the name of the faulty column
            raise SchemaError(f"{FRAME}: column {names[0]!r} cannot be read: {error}") from error

    def with_columns(self, columns: Sequence[pl.Series]) -> Any:  # noqa: ANN401 - the caller's kind of frame
        """Return a frame of the caller's kind with further Float64 columns, its rows and index unchanged."""
        backend = self.rows.implementation
        native = [nw.new_series(column.name, column.to_list(), nw.Float64(), backend=backend) for column in columns]
        wider = self.rows.with_columns(*native).to_native()
        return wider.lazy() if self.lazy else wider


def is_frame(value: object) -> bool:
    """Whether a value is a data frame, an Arrow table or stream, or a DataFrame of Spark."""
    native = nw.to_native(cast("Any", value), pass_through=True)
    if isinstance(native, pl.LazyFrame) or hasattr(native, "__arrow_c_stream__") or is_spark_frame(native):
        return True
    return isinstance(nw.from_native(native, pass_through=True), nw.DataFrame)


def is_spark_frame(value: object) -> bool:
    """Whether a value is a DataFrame of Spark or Spark Connect."""
    return all(hasattr(value, name) for name in ("createOrReplaceTempView", "sparkSession"))


def is_single(value: object) -> bool:
    """Whether a value is text, a path, a frame or not iterable: a single input, not a sequence of inputs."""
    if isinstance(value, str | bytes | PathLike) or not isinstance(value, Iterable):
        return True
    return is_frame(cast("object", value))


NUMBER = "row of the frame"
"""The column with the number of each row of a frame, from 0; its blanks avoid clashes with columns of a log."""

Names = str | Sequence[str] | None
"""The column of a role, or several columns that make up its id; None looks for a well-known name."""

_FILE = "frame.parquet"
_MEMORY = 2 << 30  # bytes, the default of --memory


def parse_names(option: str, given: object) -> tuple[str, ...]:
    """Validate the columns of a role, given as text or a sequence of texts; None is no column.

    Raises:
        UsageError: a name is not text, or empty.
    """
    if given is None or isinstance(given, str):
        return () if given is None else (parse_name(option, given),)
    try:
        return tuple(parse_name(option, name) for name in cast("Iterable[object]", given))
    except TypeError:
        raise UsageError(f"--{option} {given!r}: give a name, or a list of names.") from None


def parse_name(option: str, given: object) -> str:
    """Validate a name of a column.

    Raises:
        UsageError: the name is not text, or empty.
    """
    if not isinstance(given, str) or not given:
        raise UsageError(f"--{option} {given!r}: give a name, as text.")
    return given


def parse_optional_name(option: str, given: object) -> str | None:
    """Validate a name of a column that may be None."""
    return None if given is None else parse_name(option, given)


def check_choice(option: str, given: object, choices: tuple[object, ...]) -> None:
    """Raise UsageError if a value is not among the choices of an option, as the command line does."""
    if given not in choices:
        raise UsageError(f"--{option} {given}: choose {' or '.join(map(str, choices))}.")


class FrameFiles:
    """Frames written to temporary files, and views of Spark frames."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack  # removes the files and views
        self._names: dict[str, str] = {}  # names of frames in messages, by file or view

    def plain(self, value: object, name: str) -> object:
        """Convert a value for a command line: a path to text, a frame to the name of the file it is written to.

        Args:
            value: of an option or an input.
            name: the name of a frame in messages.

        Raises:
            SchemaError: a frame cannot be written.
        """
        if isinstance(value, bytes | PathLike):
            return fsdecode(cast("PathLike[str]", value))
        if isinstance(value, np.generic):
            return cast("object", value.item())
        if not is_frame(value):
            return value
        if is_spark_frame(value):
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

    def view_of(self, frame: object) -> str:
        """Create a temporary view of a DataFrame of Spark, and return its name."""
        view = self._stack.enter_context(session_of(frame))
        self._names[f"table {view}"] = self._names[view] = FRAME
        return view

    def in_words(self, text: str) -> str:
        """Replace files and views in a line of a message by names of frames, and escape it for printing."""
        for path, name in self._names.items():
            text = text.replace(path, name)
        return printable(text)


@contextmanager
def frame_files() -> Generator[FrameFiles]:
    """Yield files for frames while the block runs; errors in it name the frames, and Polars errors become EngineError.

    Raises:
        PosbiasError: the error of the block.
    """
    with ExitStack() as stack:
        files = FrameFiles(stack)
        try:
            yield files
        except PosbiasError as error:
            raise error.reworded(files.in_words) from None
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            raise EngineError(f"Polars failed: {files.in_words(str(error))}") from error


def log_request(
    frame: Frame, requested: Roles, rules: ReadingRules, files: FrameFiles, *, needs_session: bool
) -> LogRequest:
    """Return the request of a log for a frame, with NUMBER as a feature of its rows.

    Args:
        frame: a row per impression.
        requested: the columns that the caller named.
        rules: of reading values.
        files: to write the frame into.
        needs_session: whether a session column is required.

    Raises:
        SchemaError: a role has no column or several, or a column cannot be converted.
    """
    required = {QUERY, DOC, POSITION, CLICK} | ({SESSION} if needs_session else set[str]())
    columns = resolve_roles(requested, frame.columns, where=FRAME, required=required).columns()
    # Numbers of pages show whether positions continue from page to page.
    pages = [name for name in frame.columns if (is_page_name(name) or is_offset_name(name)) and name not in columns]
    rows = frame.select([*columns, *pages])
    rows = rows.drop(name for name in pages if not rows.schema[name].is_numeric())
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

WEIGHT_COLUMNS = (PROPENSITY, WEIGHT)


def weigh(
    given: FrameT,
    fit: CellPropensities | ClickModelFit,
    roles: Roles,
    options: WeightOptions,
    source: Source,
    on_bad_rows: OnBadRows,
    unidentified: OnBadRows,
) -> FrameT:
    """Add `propensity` and `weight` to a frame: see `Result.weights`."""
    check_choice("on-bad-rows", on_bad_rows, get_args(OnBadRows))
    check_choice("propensity", source, get_args(Source))
    check_choice("unidentified", unidentified, get_args(OnBadRows))
    check_choice("self-normalize", options.self_normalize, (True, False))
    check_min_propensity(options.min_propensity)
    frame = Frame.of(given)
    taken = [name for name in WEIGHT_COLUMNS if name in frame.columns]
    if taken:
        raise SchemaError(
            f"{FRAME}: has a column {taken[0]!r} already, and one of this name is added. Rename it, or leave it out."
        )
    fitted, weighted = fit.plan, roles.weight is not None
    if isinstance(fit, ClickModelFit):
        check_can_weigh(fit.model)
        if not isinstance(fit.model, ExaminationModel):
            raise no_weight_of_rows(f"--model {fit.model.name}")
        weigh_log, pages = partial(weigh_by_row, fit), True
        plan = StatisticsPlan(counted_model(DEFAULT_MODEL), fitted.max_position, weighted=weighted)
    else:  # only the cells of the fit, without columns that served its estimate
        weigh_log, pages = partial(weigh_by_cell, fit.theta), fitted.model.needs_session
        columns = (fitted.position_bins, fitted.context, fitted.cell)
        plan = StatisticsPlan(fitted.model, fitted.max_position, *columns, weighted=weighted)
    request = WeightRequest(options, source, unidentified == "error", (NUMBER,))
    roles, rules = replace(roles, context=plan.context, cell=plan.cell), ReadingRules()
    with frame_files() as files, owned_directory(system_temporary().absolute()) as scratch:
        engine = LocalEngine(_MEMORY, scratch, on_bad_rows, "sample")
        log = open_log(log_request(frame, roles, rules, files, needs_session=pages))
        read = read_log(log, plan, engine, SilentProgress(), keep_sessions=pages)
        weighed = weigh_log(read, request, engine, SilentProgress())
        parts = (weighed.pages or read.buckets).map(partial(_part_weights, weigh=weighed.weigh))
        rows, sentences = pl.concat(parts), warning_sentences(column_faults(log))
    for sentence in sentences:
        warnings.warn(printable(sentence), stacklevel=3)  # at the call of `Result.weights`
    return frame.with_columns([_by_row(rows, name, read.rows_read) for name in WEIGHT_COLUMNS])


def _part_weights(_: int, impressions: pl.LazyFrame, weigh: Callable[[pl.DataFrame], pl.DataFrame]) -> pl.DataFrame:
    """Return NUMBER, `propensity` and `weight` of the rows of a bucket."""
    rows = impressions.collect(engine="streaming")
    if SESSION not in rows.columns:  # no cell depends on other rows of the page
        rows = rows.with_columns(pl.lit(0).alias(SESSION))
    return weigh(rows).select(NUMBER, *WEIGHT_COLUMNS)


def _by_row(weighed: pl.DataFrame, name: str, rows: int) -> pl.Series:
    """Return a column in the order of the frame's rows, null for rows without a value."""
    values = np.full(rows, np.nan)
    values[weighed[NUMBER].to_numpy()] = weighed[name].cast(pl.Float64).fill_null(np.nan).to_numpy()
    return pl.Series(name, values, nan_to_null=True)
