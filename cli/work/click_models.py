"""`fit` and `run` with a click model that has no propensity by cell: fitted, printed, and weights made of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import polars as pl

from posbias.cli.options.columns import ColumnOptions
from posbias.cli.options.options import CountingOptions, EstimationOptions
from posbias.cli.options.reading import ReadingOptions
from posbias.cli.options.values import parse_prior
from posbias.cli.report.result import WITH_DOUBTS, Result
from posbias.cli.report.table import MOST_ROWS, Column, Printed, PrintedTable
from posbias.cli.work import steps, training_files
from posbias.cli.work.job import ESTIMATED, Job, Kept, resolve
from posbias.core.browsing.batch import Floats
from posbias.core.browsing.em import EMOptions
from posbias.core.browsing.table import STD_ERROR, VALUE
from posbias.core.counts.checks import check_no_silent_position
from posbias.core.errors import StatisticsError, UsageError
from posbias.core.models import ClickModel, get_click_model
from posbias.core.models.click_model import ExaminationModel
from posbias.core.schema import POSITION
from posbias.core.training.layouts import LayoutOfCounts, LayoutOfPages
from posbias.core.training.row_weights import weighed_rows
from posbias.core.wording import counted, population
from posbias.io.browsing.counts import bring_counts, rows_of_counts
from posbias.io.browsing.fits import CLICK_MODEL, ClickModelFit, ClickModelSection, as_read
from posbias.io.browsing.fitting import FittedToLog, fit_model, write_click_model
from posbias.io.browsing.held_out import AllPages, UpToPosition
from posbias.io.browsing.pages import number_units, pages_to_learn_from
from posbias.io.browsing.trust import check_positions, read_trust
from posbias.io.browsing.weighing import check_can_weigh, no_weight_of_rows, weigh_documents, weigh_rows
from posbias.io.counting.count import CountedLog, compress_parts
from posbias.io.engines.engine import Engine, ReadLog
from posbias.io.layouts.pair_weights import check_unidentified
from posbias.io.layouts.parts import PageLayout, lay_out_pages, lay_out_pairs


def tables(found: FittedToLog) -> list[Printed]:
    """The parameters that all documents share."""
    shared = found.parameters.filter(pl.col(VALUE).is_not_null())
    said: list[Printed] = [f"{found.model.name}: {found.model.about}"]
    if not shared.height:
        return said
    rows = shared.head(MOST_ROWS).to_dicts()
    columns = [Column("parameter", tuple(row["parameter"] for row in rows), label=True, text=True)]
    if shared[POSITION].is_not_null().any():
        columns.append(Column("position", tuple(str(row[POSITION]) for row in rows), label=True))
    columns.append(Column("value", tuple(f"{row[VALUE]:.4f}" for row in rows)))
    errors = ("-" if row[STD_ERROR] is None else f"{row[STD_ERROR]:.4f}" for row in rows)
    columns.append(Column("std. error", tuple(errors), folded="std.\nerror"))
    left = shared.height - MOST_ROWS
    more = f"and {counted(left, 'more')} in parameters.parquet" if left > 0 else ""
    whom = [population()] if shared[STD_ERROR].is_not_null().any() else []
    return [*said, PrintedTable(tuple(columns), more), *whom]


def verdicts(found: FittedToLog) -> list[str]:
    """What the fit says of documents, and what it can be used for."""
    said: list[str] = []
    for name, prior in found.fitted.priors.items():
        said.append(
            f"{name} of {counted(found.units.number, 'documents')}: prior mean {prior.mean:.3f}, worth "
            f"{prior.strength:.3g} impressions."
        )
    name = found.model.name
    if isinstance(found.model, ExaminationModel):
        said.append(
            f"{name} has no propensity by position: `posbias weight` finds how likely each impression was examined, "
            "given the clicks above it."
        )
    elif found.model.name == "tpbm":
        said.append("relevance is on the scale of the given trust bias; `posbias weight` corrects for it.")
    else:
        said.append(f"{name} has no examination: it is a click rate to compare others with.")
    said.append(f"whether it predicts clicks better than others: `posbias evaluate LOGS --models {name},pbm,ubm`.")
    return said


def warnings(found: FittedToLog) -> list[str]:
    """What a reader must know before using the fit."""
    said: list[str] = []
    if not found.fitted.converged:
        said.append(f"EM had not converged after {found.fitted.passes:,} passes. Allow more: --max-iterations.")
    return said


OF_THE_CELLS = ("context", "period_column", "stratify", "cluster_column", "randomized_where", "timestamp")
"""Columns that a fit by cell looks at, and others do not."""


@dataclass(frozen=True)
class Request:
    """Which click model is asked for, and how.

    Attributes:
        model: it.
        em: how it is fitted.
        file: the table of trust bias, where it is given.
        trust: what that says.
        csv: whether tables are also written as CSV.
    """

    model: ClickModel
    em: EMOptions
    file: str | None
    trust: Mapping[str, Floats] = field(default_factory=dict[str, Floats])
    csv: bool = False

    @property
    def also_read(self) -> list[str]:
        """What is read beside the log."""
        return [] if self.file is None else [self.file]


def requested(name: str, estimation: EstimationOptions) -> Request:
    """Which click model without propensities by cell is asked for.

    Raises:
        UsageError: it is unknown, or the clicks cannot tell what it asks for.
        SchemaError: trust bias is given by a table that says something else.
    """
    model = get_click_model(name)
    if model.name == "tpbm" and estimation.trust is None:
        raise UsageError(
            "--model tpbm: clicks alone do not tell trust bias from attractiveness: P(click) = alpha_k gamma + beta_k "
            "stays the same if gamma is stretched or moved and alpha and beta are changed to fit, so that every such "
            "curve explains the log equally well. Give alpha and beta of each position, e.g. from an experiment with "
            "judged documents: --trust FILE."
        )
    prior = estimation.attractiveness_prior
    trust = {} if estimation.trust is None else read_trust(estimation.trust)
    em = EMOptions(
        prior=None if prior == ESTIMATED else parse_prior("--attractiveness-prior", prior),
        passes=estimation.max_iterations or EMOptions.passes,
        fixed=trust,
    )
    return Request(model, em, estimation.trust, trust, estimation.csv)


def job(
    inputs: list[str],
    columns: ColumnOptions,
    reading: ReadingOptions,
    counting: CountingOptions,
    model: ClickModel,
    kept: Kept | None = None,
) -> Job:
    """What is read: whole pages of a log, or statistics that hold all that the model looks at.

    Raises:
        StatisticsError: statistics do not.
    """
    of_pages = replace(columns, **dict.fromkeys(OF_THE_CELLS))
    kept = replace(kept or Kept(), sessions_for=f"--model {model.name}")
    found = resolve(inputs, of_pages, reading, CountingOptions(max_position=counting.max_position), kept=kept)
    if not found.statistics:
        return found
    plan = found.plan
    if not set(model.statistics_columns) <= set(plan.cell_columns) or not model.statistics_columns:
        needs = "--model ubm" if len(model.statistics_columns) > 1 else None
        advice = "Give the logs" if needs is None else f"Collect them with {needs}, or give the logs"
        raise StatisticsError(
            f"--model {model.name}: needs whole pages, and {found.statistics[0].path} holds counts by "
            f"{' and '.join(plan.cell_columns)}. {advice}."
        )
    if plan.position_bins:
        raise StatisticsError(
            f"--model {model.name}: {found.statistics[0].path} holds counts by bins of positions. Collect them without "
            "--position-bins, or give the logs."
        )
    return replace(found, kept=replace(kept, sessions_for=None))


def job_like(
    logs: list[str], columns: ColumnOptions, reading: ReadingOptions, fitted: ClickModelFit, kept: Kept
) -> Job:
    """What is read to weigh a log by a click model.

    Raises:
        StatisticsError: it is no log.
    """
    found = job(logs, columns, reading, CountingOptions(max_position=fitted.plan.max_position), fitted.model, kept)
    if found.statistics:
        raise StatisticsError(
            f"{found.statistics[0].path} holds statistics, and --model {fitted.model.name} weighs the impressions of "
            "pages. Give the logs."
        )
    return found


def fit(asked: Job, request: Request, engine: Engine, result: Result) -> None:
    """Fit a click model to a log, or to statistics, write it, and say how sure its parameters are."""
    if asked.statistics:
        _write(_fit_to_counts(steps.count(asked, engine, result), request, engine, result), request, engine, result)
    else:
        fit_log(asked, request, engine, result)


def fit_log(asked: Job, request: Request, engine: Engine, result: Result) -> tuple[ReadLog, ClickModelFit]:
    """The same for a log, which is given back as it was read, with the fit."""
    read = steps.read_pages(asked, engine, result)
    found = _fit_to_pages(read, asked, request, engine, result)
    _write(found, request, engine, result)
    return read, as_read(found, asked.plan, result.folder)


def _write(found: FittedToLog, request: Request, engine: Engine, result: Result) -> None:
    write_click_model(found, engine, result.folder, result.progress, csv=request.csv)
    groups = found.n_groups if found.std_errors else None
    fitted = found.fitted
    section = ClickModelSection(request.model.name, fitted.passes, fitted.converged, groups, request.file)
    result.content[CLICK_MODEL] = section
    result.content["verdicts"] = said = verdicts(found)
    result.printed += [*tables(found), *said]
    result.warnings += warnings(found)
    if not fitted.converged:
        result.exit_code = WITH_DOUBTS


def _fit_to_pages(read: ReadLog, asked: Job, request: Request, engine: Engine, result: Result) -> FittedToLog:
    check_no_silent_position(compress_parts(read.statistics(asked.plan), asked.plan, engine, result.progress))
    parts, deepest = read.buckets, asked.plan.max_position
    folder = None if parts.in_memory else engine.scratch / "pages"
    if folder is not None:
        folder.mkdir(mode=0o700)
    of_pages = AllPages() if deepest is None else UpToPosition(deepest)
    with result.progress.stage("reading pages", parts.number):
        units = number_units(parts, request.model.unit_columns, of_pages, folder)
        pages = pages_to_learn_from(parts, units, of_pages, folder, "pages")
    if request.file is not None:
        shown = {int(k) for batch in pages for k in np.unique(batch.position[batch.shown])}
        check_positions(request.trust, sorted(shown), request.file)
    return fit_model(request.model, units, pages, request.em, result.progress)


def _fit_to_counts(counted: CountedLog, request: Request, engine: Engine, result: Result) -> FittedToLog:
    check_no_silent_position(counted.statistics)
    folder, model = engine.scratch / "counts", request.model
    folder.mkdir(mode=0o700)
    parts = engine.parts_of([rows.scan() for rows in rows_of_counts(counted, folder)])
    units = number_units(parts, model.unit_columns, AllPages(), folder)
    counts = bring_counts(parts, units, model.statistics_columns, folder)
    if request.file is not None:
        shown = {int(k) for batch in counts for k in np.unique(batch.position)}
        check_positions(request.trust, sorted(shown), request.file)
    return fit_model(model, units, counts, request.em, result.progress)


def check_weights(model: ClickModel, files: training_files.Request) -> None:
    """See, before anything is read, that training files can be made from a click model as they are asked for.

    Raises:
        UsageError: they cannot.
    """
    name, asked = model.name, files.asked
    check_can_weigh(model)
    if not isinstance(model, ExaminationModel):
        if isinstance(files.layout, LayoutOfPages):
            raise no_weight_of_rows(f"--layout {files.layout.name}")
        if asked.self_normalize:
            raise UsageError("--self-normalize: is not defined under trust bias (--model tpbm). Leave it out.")
    if isinstance(files.layout, LayoutOfCounts) and type(files.layout).by_document is LayoutOfCounts.by_document:
        raise UsageError(f"--layout {files.layout.name}: is made from counts by cell, and --model {name} has no cells.")
    if asked.replicates:
        raise UsageError(
            f"--replicates {asked.replicates}: the errors of the examination of --model {name} are not known row by "
            "row. Leave it out."
        )
    if "negatives" in files.layout.takes and asked.negatives == "posterior":
        raise UsageError(f"--negatives posterior: is not known under --model {name}. Use clamp.")


def write_training_files(
    read: ReadLog, fitted: ClickModelFit, engine: Engine, files: training_files.Request, result: Result
) -> None:
    """Write training files by the examination of each impression given the clicks above it."""
    weighed = weigh_rows(read.buckets, fitted, files.options, engine, result.progress)
    result.content["weights_from"] = {"examination": "row", "model": fitted.model.name}
    check_unidentified(weighed.weights.summary, stop=files.asked.unidentified == "error")
    layout, options = files.layout, files.options
    buffer, n_documents = files.buffer(engine, in_memory=read.buckets.in_memory), None
    if isinstance(layout, LayoutOfPages):
        weigh = partial(weighed_rows, options=options, factor=weighed.weights.factor)
        parts = engine.parts_of([part.scan() for part in weighed.parts])
        laid_out = lay_out_pages(parts, PageLayout(layout, files.grouping, weigh), buffer, result.progress)
    else:
        whole = not read.log.roles.weight
        pairs = weigh_documents(weighed, options, engine, result.progress, whole=whole)
        terms, rows_of = layout.by_document(pairs.documents)
        laid_out = lay_out_pairs(pairs, terms, rows_of, engine, buffer, result.progress)
        n_documents = pairs.number if layout.one_row_each else None
    training_files.report_weights(weighed.weights, result)
    n_rows = training_files.write_laid_out(laid_out, buffer, read, files, engine, result)
    if n_documents is not None:
        result.content["documents_left_out"] = n_documents - n_rows
