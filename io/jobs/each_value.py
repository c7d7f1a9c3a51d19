"""`fit --for-each`: a separate fit for each value of a column of the log."""

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import numpy as np
import polars as pl

from posbias.core.errors import (
    IdentifiabilityError,
    PosbiasError,
    SchemaError,
    StatisticsError,
    UsageError,
    plural,
    printable,
)
from posbias.core.fit.propensities import is_thin
from posbias.core.schema import NAMES_TAKEN, POSITION, PREVIOUS_CLICK
from posbias.core.training.weights import as_count
from posbias.io.counting.count import ValueOfColumn, count_by_value
from posbias.io.counting.profile import faults_of_log
from posbias.io.engines.engine import Engine
from posbias.io.fits.saved_fit import scalar
from posbias.io.jobs.fit import CellFit, Job, describe, describe_reading
from posbias.io.jobs.tables import (
    DONE,
    Column,
    Printed,
    PrintedTable,
    Result,
    first,
    interval_in_words,
    more,
    number_in_words,
    write_description,
)
from posbias.io.places.ownership import remove_tree
from posbias.io.results.conclusions import reason
from posbias.io.results.tables import PROPENSITIES, write_small_table

_LONGEST_NAME = 200  # bytes; file systems take 255
_NOT_IN_NAMES = r'[\x00-\x1f\x7f%/\\:*?"<>|=#{}\[\]]'
_SKIPPED_ERRORS = (IdentifiabilityError, SchemaError, StatisticsError)  # of one value; other values are fitted
_EMPTY = "__HIVE_DEFAULT_PARTITION__"


def check_column(job: Job, column: str, request: CellFit) -> None:
    """Check that a fit can be made for each value of a column.

    Raises:
        UsageError: the inputs are statistics, the column has another role or a reserved name, or pages are needed.
    """
    if job.statistics:
        raise UsageError(
            f"--for-each {column}: {job.inputs[0]} holds statistics, in which the values of a column are added up. "
            "Give the logs."
        )
    if column in (*job.plan.context, *job.plan.strata, *job.plan.auxiliary_columns):
        raise UsageError(f"--for-each {column}: the column has another role already. Leave one of them out.")
    if column in NAMES_TAKEN["--for-each"] or column in job.plan.cell_columns:
        raise UsageError(f"--for-each {column}: this name means something else in the results. Rename the column.")
    if request.sessions_for is not None:
        raise UsageError(
            f"--for-each {column}: {request.sessions_for} needs the pages of the log, which are not kept apart by "
            "value. Leave one of them out."
        )


def fit_each(
    job: Job, column: str, request: CellFit, engine: Engine, options: Mapping[str, object], result: Result
) -> None:
    """Fit each value of a column; write each fit as a result in a folder of its own, and one table of all.

    Raises:
        PosbiasError: the log cannot be read, or no value can be fitted.
    """
    log = job.with_roles(each=(column,)).open_log(result)
    read, facts, values = count_by_value(log, job.plan, column, engine, result.progress, job.decay)
    result.content |= {"sources": read.sources, "rows": read.rows}
    describe_reading(result, read.rows, read.clicks, read.days, read.notes)
    result.faults += faults_of_log(read, facts, read.plan)
    entries, tables, errors = list[dict[str, Any]](), list[pl.DataFrame](), list[PosbiasError]()
    for value in values:
        counts = {"impressions": as_count(value.impressions), "clicks": as_count(value.clicks)}
        entry = {"value": scalar(value.value), "folder": None, **counts}
        entry |= {"cells": 0, "identified": 0, "poorly_known": 0}
        try:
            table, fitted = _fit_one(value, column, job, request, engine, options, result)
        except _SKIPPED_ERRORS as error:
            errors.append(error)
            table, fitted = pl.DataFrame(), {"why": f"no estimate: {str(error).split('. ')[0].rstrip('.')}"}
        tables.append(table)
        entries.append(entry | fitted | {"reliable": fitted["why"] is None})
    if errors and len(errors) == len(entries):
        raise errors[0]
    together = pl.concat([table for table in tables if table.height], how="diagonal_relaxed")
    write_small_table(together, result.folder, PROPENSITIES, csv=request.csv)
    result.content["for_each"] = {"column": column, "values": entries}
    positions = together[POSITION].unique().sort()
    middle = positions[len(positions) // 2]
    result.printed += _table(column, entries, middle, [_propensity_at(table, middle) for table in tables])
    unreliable = sum(not entry["reliable"] for entry in entries)
    result.headline = f"the propensities of {plural(len(entries), 'values')} of {printable(column)} are estimated"
    result.next = result.next_if_refused = f"posbias report {result.target} -o report.html"
    if unreliable:
        figures = {"unreliable": unreliable, "values": len(entries)}
        result.reasons.append(reason("values-not-reliable", figures, column=printable(column)))


def _fit_one(
    value: ValueOfColumn,
    column: str,
    job: Job,
    request: CellFit,
    engine: Engine,
    options: Mapping[str, object],
    result: Result,
) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Fit one value and write its result; return its propensities and its entry of the manifest."""
    name = folder_name(column, value.value)
    own = Result(result.folder / name, result.progress, f"{result.target}/{name}")
    try:
        own.folder.mkdir()
    except FileExistsError as error:
        raise UsageError(
            f"--for-each {column}: two values would lie in {name}, as this file system knows no capital letters. Write "
            "them alike in the log, or choose another place with --output."
        ) from error
    try:
        counts = value.count()
        describe(counts, own)
        own.content["for_each"] = {"column": column, "value": scalar(value.value)}
        fit = request.fit_counts(counts, engine, own)
        write_description(own, "fit", job.inputs, options)
    except PosbiasError:
        remove_tree(own.folder)
        raise
    known = np.isfinite(fit.estimate.propensity)
    cells, identified = len(known), int(known.sum())
    thin = int(is_thin(fit.estimate.propensity, fit.estimate.intervals.std_error).sum())
    why = None
    if not fit.estimate.converged:
        why = "has not converged"
    elif own.exit_code != DONE:
        why = "in doubt, see its warnings"
    elif identified < cells:
        why = f"{cells - identified} of {cells} without a propensity"
    elif thin:
        why = f"{thin} of {cells} poorly known"
    table = fit.propensities.select(pl.lit(value.value).alias(column), pl.all())
    return table, {"folder": name, "cells": cells, "identified": identified, "poorly_known": thin, "why": why}


def _propensity_at(propensities: pl.DataFrame, position: int) -> tuple[float | None, float | None, float | None]:
    """Propensity and interval at a position (UBM: below no click); None unless it is a single cell."""
    cells = propensities.filter(position=position) if propensities.height else propensities
    if PREVIOUS_CLICK in cells.columns:
        cells = cells.filter(pl.col(PREVIOUS_CLICK) == 0)
    if cells.height != 1:
        return None, None, None
    row = cells.row(0, named=True)
    return row["propensity"], row["ci_low"], row["ci_high"]


def _table(
    column: str,
    entries: Sequence[dict[str, Any]],
    position: int,
    middle: Sequence[tuple[float | None, float | None, float | None]],
) -> list[Printed]:
    """Print a row per value, most impressions first, with the propensity at a position."""
    largest = sorted(zip(entries, middle, strict=True), key=lambda both: -both[0]["impressions"])
    rows, known = [entry for entry, _ in largest], [propensity for _, propensity in largest]
    reliable = sum(entry["reliable"] for entry in entries)
    title = f"a fit for each {printable(column)}: {reliable:,} of {len(entries):,} reliable"
    names = ("(empty)" if row["value"] is None else printable(str(row["value"])) for row in rows)
    identified = (f"{row['identified']} of {row['cells']}" for row in rows)
    intervals = (interval_in_words(low, high) for _, low, high in known)
    columns = (
        Column(printable(column), first(names), label=True),
        Column("impressions", first(f"{row['impressions']:,.0f}" for row in rows), folded="impres-\nsions"),
        Column("clicks", first(f"{row['clicks']:,.0f}" for row in rows)),
        Column("propensities", first(identified), folded="propen-\nsities"),
        Column(f"at {position}", first(number_in_words(value) for value, _, _ in known)),
        Column("95 % interval", first(intervals), folded="95 %\ninterval", beside=True, spare=1),
        Column("", first(row["why"] or "reliable" for row in rows), text=True),
    )
    return [title, PrintedTable(columns, more(len(rows), "values in manifest.json, at `for_each`"))]


def folder_name(column: str, value: object) -> str:
    """Name the folder of a value as a Hive partition, e.g. `market=de`; null has the name of Hive's null partition.

    Raises:
        UsageError: the name is too long.
    """
    text = _EMPTY if value is None else str(scalar(value))
    name = "=".join(re.sub(_NOT_IN_NAMES, lambda match: quote(match[0], safe=""), part) for part in (column, text))
    if value == _EMPTY:  # a text of this name is not null
        name = name.replace("=_", "=%5F", 1)
    if len(name.encode()) > _LONGEST_NAME:
        raise UsageError(f"--for-each {column}: the value {text[:60]!r}... is too long to name a folder. Shorten it.")
    return name
