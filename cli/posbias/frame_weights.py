"""Weights for the rows of a frame: `propensity` and `weight`, as `posbias weight --layout session` writes them."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import get_args

import numpy as np
import polars as pl

from posbias.core.choices import OnBadRows, Source
from posbias.core.counts.checks import DEFAULT_MODEL, counted_model
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.errors import SchemaError, shown
from posbias.core.fit.propensities import PROPENSITY
from posbias.core.log.impressions import ReadingRules
from posbias.core.models import ExaminationModel
from posbias.core.schema import SESSION, WEIGHT, Roles
from posbias.core.training.weights import WeightOptions, check_min_propensity
from posbias.frames import FRAME, NUMBER, Frame, FrameT, check_choice, local_engine, request_of
from posbias.io.counting.count import read_log
from posbias.io.fits.saved_fit import PreviousFit
from posbias.io.jobs.click_model_fits import ClickModelFit
from posbias.io.jobs.click_models import FittedPages
from posbias.io.jobs.fit import FittedCells, WeightRequest
from posbias.io.jobs.weighing import check_can_weigh, no_weight_of_rows
from posbias.io.log.click_log import open_log
from posbias.io.log.faults import doubts
from posbias.io.progress import SilentProgress
from posbias.io.results.conclusions import warnings_in

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
    with local_engine(on_bad_rows) as (files, engine):
        log = open_log(request_of(frame, roles, rules, files, needs_session=pages))
        read = read_log(log, plan, engine, SilentProgress(), keep_sessions=pages)
        weighed = fitted.weigh(read, plan, request, engine, SilentProgress())
        parts = (weighed.pages or read.buckets).map(partial(_columns_of_part, weigh=weighed.weigh))
        rows = pl.concat(parts)
    for sentence in warnings_in(doubts(log)):
        warnings.warn(shown(sentence), stacklevel=3)  # where `Result.weights` is called
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
