"""Weights for the rows of a frame, by the code of `posbias weight`."""

import warnings
from dataclasses import dataclass, replace
from functools import partial
from typing import get_args

import numpy as np
import polars as pl

from posbias.core.choices import Source
from posbias.core.counts.checks import DEFAULT_MODEL, counted_model
from posbias.core.counts.plan import StatisticsPlan
from posbias.core.errors import SchemaError
from posbias.core.fit.propensities import PROPENSITY, choose_propensities
from posbias.core.log.impressions import ReadingRules
from posbias.core.models.click_model import ExaminationModel
from posbias.core.schema import SESSION, WEIGHT, RequestedRoles
from posbias.core.training.layouts.layout import weighted_pages
from posbias.core.training.row_weights import weighed_rows
from posbias.core.training.weights import ClickWeights, WeightOptions, check_min_propensity
from posbias.io import clock
from posbias.io.browsing.fits import ClickModelFit
from posbias.io.browsing.weighing import check_can_weigh, no_weight_of_rows, weigh_rows
from posbias.io.counting.count import read_log
from posbias.io.engines.engine import Engine, OnBadRows, ReadLog
from posbias.io.fits.read import PreviousFit
from posbias.io.layouts.pair_weights import check_unidentified, weights_of_log
from posbias.io.log.doubts import doubts
from posbias.io.notebooks.frames import FRAME, NUMBER, Frame, FrameT, check_choice, local_engine, log_of
from posbias.io.progress import SilentProgress

ADDED = (PROPENSITY, WEIGHT)
"""The columns that are added."""


@dataclass(frozen=True)
class WeightRequest:
    """How a frame is weighed.

    Attributes:
        roles: the columns that were named.
        options: clipping and normalisation.
        source: which propensities weights are made from.
        on_bad_rows: whether rows that break the rules for logs stop the work, or get no weight.
        unidentified: whether clicks in cells without a propensity stop it, or get none.
    """

    roles: RequestedRoles
    options: WeightOptions
    source: Source
    on_bad_rows: OnBadRows
    unidentified: OnBadRows


def weigh(given: FrameT, fitted: PreviousFit | ClickModelFit, asked: WeightRequest) -> FrameT:
    """The frame with `propensity` and `weight`: see `FitResult.weights_for`."""
    check_choice("propensity", asked.source, get_args(Source))
    check_choice("unidentified", asked.unidentified, get_args(OnBadRows))
    check_choice("self-normalize", asked.options.self_normalize, (True, False))
    check_min_propensity(asked.options.min_propensity)
    frame = Frame.of(given)
    taken = [name for name in ADDED if name in frame.columns]
    if taken:
        raise SchemaError(
            f"{FRAME}: has a column {taken[0]!r} already, and one of this name is added. Rename it, or leave it out."
        )
    by_row = isinstance(fitted, ClickModelFit)
    plan = _plan_of_rows(fitted, asked.roles) if by_row else _plan_of_cells(fitted, asked.roles)
    roles = replace(asked.roles, context=plan.context)
    if by_row:
        check_can_weigh(fitted.model)
        if not isinstance(fitted.model, ExaminationModel):
            raise no_weight_of_rows(f"--model {fitted.model.name}")
    with local_engine(asked.on_bad_rows) as engine:
        pages = by_row or plan.model.needs_session
        log = log_of(frame, roles, ReadingRules(), engine.scratch, needs_session=pages, numbered=True)
        found = read_log(log, plan, engine, SilentProgress(), clock.today(), keep_sessions=pages)
        weighed = _by_row(found.read, fitted, engine, asked) if by_row else _by_cell(found.read, plan, fitted, asked)
    for sentence in doubts(log):
        warnings.warn(sentence, stacklevel=3)  # where `weights_for` is called
    return frame.with_columns([_in_frame(weighed, name, found.read.rows_read) for name in ADDED])


def _plan_of_cells(fitted: PreviousFit, roles: RequestedRoles) -> StatisticsPlan:
    """The cells of the fit; what only its estimate depended on is left aside."""
    weighted = roles.weight is not None
    return StatisticsPlan(
        fitted.plan.model, fitted.plan.max_position, fitted.plan.position_bins, fitted.plan.context, weighted=weighted
    )


def _plan_of_rows(fitted: ClickModelFit, roles: RequestedRoles) -> StatisticsPlan:
    return StatisticsPlan(counted_model(DEFAULT_MODEL), fitted.plan.max_position, weighted=roles.weight is not None)


def _by_cell(read: ReadLog, plan: StatisticsPlan, fitted: PreviousFit, asked: WeightRequest) -> pl.DataFrame:
    """NUMBER, `propensity` and `weight` of the rows, by the cells that they are in."""
    propensities = choose_propensities(fitted.theta.propensities, asked.source).table
    stop = asked.unidentified == "error"
    weights = weights_of_log(read, plan, propensities, asked.options, fitted.theta, stop=stop)
    return pl.concat(read.buckets.map(partial(_weigh_part, plan=plan, weights=weights)))


def _weigh_part(_: int, impressions: pl.LazyFrame, plan: StatisticsPlan, weights: ClickWeights) -> pl.DataFrame:
    rows = impressions.collect(engine="streaming")
    if SESSION not in rows.columns:  # then no cell depends on the rest of the page
        rows = rows.with_columns(pl.lit(0).alias(SESSION))
    return weighted_pages(rows, plan, weights, (NUMBER,)).select(NUMBER, *ADDED)


def _by_row(read: ReadLog, fitted: ClickModelFit, engine: Engine, asked: WeightRequest) -> pl.DataFrame:
    """The same, by the examination of each row given the clicks above it."""
    weighed = weigh_rows(read.buckets, fitted, asked.options, engine, SilentProgress())
    check_unidentified(weighed.weights.summary, stop=asked.unidentified == "error")
    factor = weighed.weights.factor
    parts = (weighed_rows(part.load(), asked.options, factor) for part in weighed.parts)
    return pl.concat(part.select(NUMBER, *ADDED) for part in parts)


def _in_frame(weighed: pl.DataFrame, name: str, rows: int) -> pl.Series:
    """A column in the order of the frame, null for rows that have no value."""
    values = np.full(rows, np.nan)
    values[weighed[NUMBER].to_numpy()] = weighed[name].cast(pl.Float64).fill_null(np.nan).to_numpy()
    return pl.Series(name, values, nan_to_null=True)
