"""`fit`, `open_result` and `weights_for`: a result as one object."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from operator import index
from os import PathLike, fsdecode
from pathlib import Path
from typing import Any, SupportsIndex, cast, get_args

import numpy as np
import polars as pl

from posbias.core.choices import OnBadRows, Source
from posbias.core.counts.checks import DEFAULT_MODEL, check_context, check_named_columns, counted_model
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.errors import SchemaError, UsageError
from posbias.core.estimators import EstimationOptions, get_estimator
from posbias.core.fit.propensities import PROPENSITY
from posbias.core.log.impressions import LARGEST_POSITION, ReadingRules
from posbias.core.models.click_model import ExaminationModel
from posbias.core.schema import SESSION, WEIGHT, Roles
from posbias.core.training.weights import WeightOptions, check_min_propensity
from posbias.io import clock
from posbias.io.counting.count import read_log
from posbias.io.fits.saved_fit import PreviousFit, fit_in
from posbias.io.jobs.click_model_fits import CLICK_MODEL, ClickModelFit, click_model_in
from posbias.io.jobs.click_model_fits import FILES as FILES_OF_A_CLICK_MODEL
from posbias.io.jobs.click_models import FittedPages
from posbias.io.jobs.fit import CellFit, FittedCells, Job, WeightRequest
from posbias.io.jobs.tables import Result, write_description
from posbias.io.jobs.weighing import check_can_weigh, no_weight_of_rows
from posbias.io.log.click_log import open_log
from posbias.io.log.faults import doubts
from posbias.io.notebooks.frames import (
    FRAME,
    NUMBER,
    Frame,
    FrameT,
    Names,
    check_choice,
    local_engine,
    name,
    name_or_none,
    names,
    request_of,
)
from posbias.io.places.locations import location
from posbias.io.progress import SilentProgress
from posbias.io.results.manifest import open_stored
from posbias.io.results.tables import ATTRACTIVENESS, FILES_OF_A_FIT, PROPENSITIES


@dataclass(frozen=True, repr=False)
class FitResult:
    """A fit: its tables, its manifest, and weights by it.

    Attributes:
        where: its directory, or the frame that it was made of.
        manifest: what was read and counted, how the fit went, verdicts and warnings, as `manifest.json` holds it.
        tables: those that it has, by the name of the file.
        fitted: what weights are made from.
    """

    where: str
    manifest: dict[str, Any]
    tables: dict[str, pl.LazyFrame]
    fitted: PreviousFit | ClickModelFit

    @property
    def propensities(self) -> pl.DataFrame:
        """The table `propensities.parquet`: a row per cell, `propensity` relative to the reference cell = 1.

        Null where it is not known; `reason` says why. The columns are those of io/results/README.md.

        Raises:
            UsageError: a click model without cells was fitted (dbn, sdbn and the like).
        """
        return self._table(PROPENSITIES).collect()

    @property
    def attractiveness(self) -> pl.LazyFrame:
        """The table `attractiveness.parquet`: a row per (query, document), P(click | examined) in [0, 1].

        Lazy, as it may be large: it is read from the result's directory when it is collected.

        Raises:
            UsageError: the click model has no attractiveness.
        """
        return self._table(ATTRACTIVENESS)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the command warned of: read it before the numbers."""
        return tuple(self.manifest.get("warnings", ()))

    def weights_for(  # noqa: PLR0913 - each is an option of the command
        self,
        frame: FrameT,
        *,
        session: Names = None,
        query: Names = None,
        doc: Names = None,
        position: str | None = None,
        click: str | None = None,
        weight_column: str | None = None,
        propensity: Source = "smooth",
        min_propensity: float = 0.01,
        self_normalize: bool = False,
        unidentified: OnBadRows = "drop",
        on_bad_rows: OnBadRows = "error",
    ) -> FrameT:
        """The frame with two more columns, `propensity` and `weight`, by the code of `posbias weight`.

            weight of a click in cell e: 1 / max(propensity of e, min_propensity)        of an unclicked impression: 1

        A cell is the position, with the fit's contexts, or with the last click above (UBM); a click model without cells
        weighs by the examination of each row. These are the weights of `posbias weight --layout session`, to the bit.

        Args:
            frame: a row per impression: a Polars frame (lazy or not), a pandas frame or an Arrow table. It must hold
                query, document, position (from 1) and click, the contexts of the fit under their names, and the session
                for UBM and click models. Whole pages, as a click above may matter; the rows may be in any order.
            session: the column of it, or several that make up one id; by default one of a well-known name.
            query: likewise.
            doc: likewise.
            position: its column.
            click: its column.
            weight_column: how many impressions a row stands for (> 0); weights are multiplied by it.
            propensity: `smooth` takes the smooth curve where the fitted propensity is too uncertain; `fitted` never.
            min_propensity: the least propensity that is divided by, in (0, 1], relative to the reference cell.
            self_normalize: whether the weights of all clicks of the frame are scaled to a mean of 1.
            unidentified: whether clicks in cells without a propensity get no weight (drop), or are an error.
            on_bad_rows: whether rows that break the rules for logs are an error, or get no weight (drop).

        Returns:
            The same kind of frame: its columns, the order of its rows and their index as they were, then the two new
            columns (Float64). Both are null (NaN in pandas) where a position has no propensity, where it is beyond the
            `--max-position` of the fit, and in dropped rows; an unclicked row without a propensity has weight 1, as
            long as its position was counted.

        Raises:
            UsageError: what was handed in is no such frame, an option is out of range, or the click model has nothing
                to weigh rows by.
            SchemaError: a column is missing, is there twice or holds other types than the fit; rows break the rules;
                `propensity` or `weight` is there already; the frame has no rows, or is a log of clicks alone.
            IdentifiabilityError: clicks have no propensity, and `unidentified` is error.
        """
        # moved

        roles = Roles(
            names("session", session),
            names("query", query),
            names("doc", doc),
            name_or_none("position", position),
            name_or_none("click", click),
            name_or_none("weight-column", weight_column),
        )
        options = WeightOptions(min_propensity, self_normalize)
        return weigh(frame, self.fitted, roles, options, propensity, on_bad_rows, unidentified)

    def __repr__(self) -> str:
        warned = len(self.warnings)
        return f"<{type(self).__name__} of {self.where}: {self.model}, {warned} warning{'s' if warned != 1 else ''}>"

    @property
    def model(self) -> str:
        """The name of the click model, as `--model` takes it."""
        return self.fitted.model.name if isinstance(self.fitted, ClickModelFit) else self.fitted.plan.model.name

    def _table(self, name: str) -> pl.LazyFrame:
        if name not in self.tables:
            raise UsageError(f"{self.where}: --model {self.model} has no {name}.")
        return self.tables[name]


def open_result(path: str | PathLike[str]) -> FitResult:
    """The result that `posbias fit` or `posbias run` wrote into a directory.

    Args:
        path: the directory, on disk.

    Raises:
        LogFormatError: it is not there, holds no result, or one that is damaged or was edited.
        UsageError: it is no name of a directory, holds another result than a fit, or lies in an object store.
    """
    try:
        name = fsdecode(path)
    except TypeError:
        name = ""
    if not name:
        raise UsageError(f"open_result({path!r}): give the name of a directory, as text or as a path.")
    place = location(name)
    if not isinstance(place, Path):
        raise UsageError(f"{place}: lies in an object store. Copy the directory to disk, and open that.")
    return read_result(place.absolute(), str(place))


def read_result(folder: Path, where: str) -> FitResult:
    """The result in a directory.

    Args:
        folder: the directory.
        where: what the result is called.

    Raises:
        PosbiasError: as above.
    """
    with open_stored(folder, {*FILES_OF_A_FIT, *FILES_OF_A_CLICK_MODEL}) as stored:
        fitted = click_model_in(stored) if CLICK_MODEL in stored.content else fit_in(stored, where)
        tables = {
            name: pl.scan_parquet(path, glob=False, hive_partitioning=False)
            for name in (PROPENSITIES, ATTRACTIVENESS)
            if (path := folder / f"{name}.parquet").exists()
        }
        return FitResult(where, stored.content, tables, fitted)


_FEWEST_POSITIONS = 2


def fit(  # noqa: PLR0913 - each is an option of the command
    frame: object,
    *,
    session: Names = None,
    query: Names = None,
    doc: Names = None,
    position: str | None = None,
    click: str | None = None,
    weight_column: str | None = None,
    timestamp: str | None = None,
    context: Names = None,
    model: str = DEFAULT_MODEL,
    method: str = "conditional",
    max_position: int | None = None,
    on_bad_rows: OnBadRows = "error",
) -> FitResult:
    """Estimate propensities and attractiveness from a frame, by the code of `posbias fit`.

        P(click) = theta_cell * gamma_(query, doc)

    The same rows in a Parquet file give `posbias fit` the same numbers, to the bit. Every parameter means what the
    option of its name means, and errors name options; other options than these are for the command.

    Args:
        frame: a row per impression: a Polars frame (lazy or not), a pandas frame or an Arrow table.
        session: the column of one results page, or several that make up one id; by default one of a well-known name.
        query: likewise.
        doc: likewise.
        position: its column, from 1.
        click: its column, 0/1 or boolean.
        weight_column: how many impressions a row stands for (> 0).
        timestamp: when the page was shown; attractiveness may then vary by period, as needed.
        context: columns by which propensities differ.
        model: `pbm` or `ubm`, which needs the session.
        method: the estimator.
        max_position: impressions further down are left out; at least 2.
        on_bad_rows: whether rows that break the rules for logs are an error, or left out (drop).

    Returns:
        What `open_result` returns, with all tables in memory. What the command warns of is in its `warnings`, and is
        issued as a `UserWarning` as well.

    Raises:
        UsageError: what was handed in is no such frame, or an option is unknown or does not go with another one.
        SchemaError: a column is missing or of the wrong type, rows break the rules, or nothing can be estimated.
        IdentifiabilityError: the log cannot say what is asked of it.
        OutputError: there is no place for temporary files.
    """
    given = Frame.of(frame)
    max_position = None if max_position is None else _position(max_position)
    named = {
        "session": names("session", session),
        "query": names("query", query),
        "doc": names("doc", doc),
        "position": name_or_none("position", position),
        "click": name_or_none("click", click),
        "weight-column": name_or_none("weight-column", weight_column),
        "timestamp": name_or_none("timestamp", timestamp),
        "context": names("context", context),
    }
    roles = Roles(*named.values())  # pyright: ignore[reportArgumentType] - in their order
    counted = counted_model(name("model", model))
    check_named_columns(counted, [("--context", roles.context)])
    check_context(counted, roles.context)
    period, weighted = None if roles.timestamp is None else "quarter", roles.weight is not None
    plan = StatisticsPlan(counted, max_position, context=roles.context, period=period, weighted=weighted)
    get_estimator(name("method", method))
    request = CellFit(method, EstimationOptions())
    with local_engine(on_bad_rows) as engine:
        rules, pages = ReadingRules(period=plan.period), plan.model.needs_session
        log = request_of(given, roles, rules, engine.scratch, needs_session=pages, numbered=False)
        job = Job((FRAME,), plan, log)
        request.check(job)
        result = Result(engine.scratch / "result", SilentProgress())
        result.folder.mkdir()
        request.fit(job, engine, result)
        result.content["sources"] = dict.fromkeys(result.content["sources"], FRAME)
        options = {option: list(given) if isinstance(given, tuple) else given for option, given in named.items()}
        options |= {"model": model, "method": method, "on-bad-rows": on_bad_rows, "max-position": max_position}
        options = {option: given for option, given in options.items() if given not in (None, [])}
        write_description(result, "fit", [FRAME], options)
        found = read_result(result.folder, FRAME)
        found = replace(found, tables={name: table.collect().lazy() for name, table in found.tables.items()})
    for sentence in result.warnings:
        warnings.warn(sentence, stacklevel=2)
    return found


def _position(given: object) -> int:
    """The last position that is kept; NumPy's whole numbers are such, too.

    Raises:
        UsageError: it is none.
    """
    try:
        position = index(cast("SupportsIndex", given))
    except TypeError:
        position = 0
    if not _FEWEST_POSITIONS <= position <= LARGEST_POSITION:
        raise UsageError(f"--max-position {given}: give a whole number from {_FEWEST_POSITIONS} to {LARGEST_POSITION}.")
    return position


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
    """The frame with `propensity` and `weight`: see `FitResult.weights_for`."""
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
        fitted, pages = FittedPages(fit), True
        plan = StatisticsPlan(counted_model(DEFAULT_MODEL), of_fit.max_position, weighted=weighted)
    else:  # the cells of the fit; what only its estimate depended on is left aside
        fitted, pages, bins = FittedCells(fit.theta), of_fit.model.needs_session, of_fit.position_bins
        plan = StatisticsPlan(of_fit.model, of_fit.max_position, bins, of_fit.context, weighted=weighted)
    request = WeightRequest(options, source, unidentified == "error", (NUMBER,))
    roles, rules = replace(roles, context=plan.context), ReadingRules()
    with local_engine(on_bad_rows) as engine:
        log = open_log(request_of(frame, roles, rules, engine.scratch, needs_session=pages, numbered=True))
        read = read_log(log, plan, engine, SilentProgress(), clock.today(), keep_sessions=pages).read
        weighed = fitted.weigh(read, plan, request, engine, SilentProgress())
        parts = (weighed.pages or read.buckets).map(partial(_columns_of_part, weigh=weighed.weigh))
        rows = pl.concat(parts)
    for sentence in doubts(log):
        warnings.warn(sentence, stacklevel=3)  # where `weights_for` is called
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
