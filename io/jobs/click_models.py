"""Click models without propensities by cell: the fit to pages or counts, its files, and click weights.

Trust bias may be given as a table of alpha and beta, or of theta and eps, by position:

    P(C_r = 1) = alpha_k gamma_qd + beta_k,    alpha_k = theta_k (eps+_k - eps-_k),    beta_k = theta_k eps-_k

Source: Agarwal et al. 2019 (WWW); Vardasbi, Oosterhuis & de Rijke 2020 (CIKM).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Integers
from posbias.core.counts.checks import check_no_silent_position
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import SIGNATURE
from posbias.core.errors import LogFormatError, SchemaError, StatisticsError, UsageError, plural, population
from posbias.core.fit.propensities import PROPENSITY
from posbias.core.log.pages import in_page_order
from posbias.core.models import ClickModel, ExaminationModel, get_click_model
from posbias.core.models.em import (
    N_GROUPS,
    STD_ERROR,
    VALUE,
    EMOptions,
    ModelEstimate,
    TrainingPages,
    fit,
    parameter_table,
    standard_errors,
)
from posbias.core.models.page_matrices import Floats, at_position
from posbias.core.models.position_based import CLICK_IF_NOT, CLICK_IF_RELEVANT, TrustBiasModel
from posbias.core.schema import CLICKS, IMPRESSIONS, PAIR, POSITION, PREVIOUS_CLICK, QUERY
from posbias.core.training.layout import DocumentSums, LayoutOfCounts, LayoutOfPages, RowsOfPairs
from posbias.core.training.weights import (
    ATTRACTED,
    BASELINE,
    BEYOND,
    EXPECTED,
    WeightOptions,
    examination_of_rows,
    row_weights,
    sum_by_document,
    sums_by_position,
    weigh_rows,
)
from posbias.io.counting.count import CountedLog, PairsOfPart, compress_parts
from posbias.io.engines.engine import Engine, Parts
from posbias.io.fits.saved_fit import StoredFit, fit_in
from posbias.io.jobs.fit import Job, count, read_pages
from posbias.io.jobs.page_batches import (
    Units,
    all_pages,
    counts_as_pages,
    number_units,
    numbered_pages,
    rows_of_counts,
    up_to_position,
)
from posbias.io.jobs.tables import MOST_ROWS, Column, Printed, PrintedTable, Result, number_in_words
from posbias.io.jobs.training import Data, Weigh, Weighed, WeightRequest
from posbias.io.log.scan import reading, resolve_quotes, scan_sources
from posbias.io.log.sources import find_sources
from posbias.io.places.locations import Location
from posbias.io.places.temporary import KeptFrame, keep
from posbias.io.progress import Progress
from posbias.io.results.conclusions import reason
from posbias.io.results.manifest import StoredResult, open_stored
from posbias.io.results.tables import ATTRACTIVENESS, FIT_FILES, read_table, write_attractiveness_csv, write_small_table
from posbias.io.stores.metadata import Counted
from posbias.io.training.feature_parts import FeaturesRequest, route_rows
from posbias.io.training.laid_out import check_unidentified

_CLICK_MODEL = "click_model"  # section of the manifest
_PARAMETERS = "parameters"
_FILES = (f"{_PARAMETERS}.parquet", f"{ATTRACTIVENESS}.parquet")
_RELEVANCE = "posbias_relevance"
_SEED = 5  # of the hash by which queries are grouped
_AFFINE = ("alpha", "beta")
_FACTORS = ("theta", "epsilon_plus", "epsilon_minus")
_LARGEST_POSITION = 100_000


@dataclass(frozen=True)
class PageFit:
    """Request to fit a click model without propensities by cell."""

    model: ClickModel
    em: EMOptions
    trust: str | None = None  # table of given trust bias
    csv: bool = False

    @property
    def sessions_for(self) -> str:
        """The option that requires whole pages."""
        return f"--model {self.model.name}"

    @property
    def features(self) -> FeaturesRequest:
        """No features."""
        return FeaturesRequest()

    @property
    def also_read(self) -> list[str]:
        """Files to read beside the log: the table of trust bias."""
        return [] if self.trust is None else [self.trust]

    def check(self, job: Job) -> None:
        """Raise StatisticsError if the inputs are statistics without the columns of the model."""
        if not job.statistics:
            return
        needed, held, path = set(self.model.statistics_columns), job.plan.cell_columns, job.statistics[0].path
        if not needed or not needed <= set(held):
            advice = "Collect them with --model ubm, or give the logs" if len(needed) > 1 else "Give the logs"
            raise StatisticsError(
                f"{self.sessions_for}: needs whole pages, and {path} holds counts by {' and '.join(held)}. {advice}."
            )
        if job.plan.position_bins:
            raise StatisticsError(
                f"{self.sessions_for}: {path} holds counts by bins of positions. Collect them without "
                "--position-bins, or give the logs."
            )

    def check_weights(self, layout: LayoutOfPages | LayoutOfCounts, options: WeightOptions) -> None:
        """Raise UsageError if the model cannot weigh clicks for a layout."""
        model, name = self.model, self.model.name
        check_can_weigh(model)
        if not isinstance(model, ExaminationModel):
            if isinstance(layout, LayoutOfPages):
                raise no_weight_of_rows(f"--layout {layout.name}")
            if options.self_normalize:
                raise UsageError("--self-normalize: is not defined under trust bias (--model tpbm). Leave it out.")
        if options.replicates:
            raise UsageError(
                f"--layout-options replicates={options.replicates}: the errors of the examination of --model {name} "
                "are not known row by row. Leave it out."
            )
        if "negatives" in layout.takes and options.negatives == "posterior":
            raise UsageError(f"--layout-options negatives=posterior: is not known under --model {name}. Use clamp.")

    def fit(self, job: Job, engine: Engine, result: Result) -> tuple[Data, Weigh]:
        """Read the log, fit by EM, write the tables, and add headline, reasons and next step to the result."""
        model, plan, progress = self.model, job.plan, result.progress
        if job.statistics:
            data = count(job, engine, result)
            check_no_silent_position(data.statistics)
            folder = engine.scratch / "counts"
            folder.mkdir(mode=0o700)
            parts = engine.parts_of([rows.scan() for rows in rows_of_counts(data, folder)])
            units = number_units(parts, model.unit_columns, all_pages, folder)
            pages = counts_as_pages(parts, units, model.statistics_columns, folder)
        else:
            data = read_pages(job, engine, result)
            check_no_silent_position(compress_parts(data.statistics(plan), plan, engine, progress)[0])
            parts = data.buckets
            page_filter = all_pages if plan.max_position is None else partial(up_to_position, deepest=plan.max_position)
            folder = None if parts.in_memory else engine.scratch / "pages"
            if folder is not None:
                folder.mkdir(mode=0o700)
            with progress.stage("reading pages", parts.number):
                units = number_units(parts, model.unit_columns, page_filter, folder)
                (pages,) = numbered_pages(parts, [units], page_filter, folder, "pages")
        if self.trust is not None:
            shown = {int(k) for batch in pages for k in np.unique(batch.position[batch.shown])}
            check_trust_is_known(self.em.fixed, sorted(shown), self.trust)
        with progress.stage(f"fitting {model.name}") as stage:
            fitted = fit(model, pages, self.em, stage.advance)
        with progress.stage("standard errors") as stage:
            groups = _jackknife_groups(units)
            errors = standard_errors(model, pages, groups, fitted, self.em, stage.advance)
        parameters = parameter_table(model.parameters, fitted, errors)
        write_small_table(parameters, result.folder, _PARAMETERS, csv=self.csv)
        priors, n_groups = fitted.priors, int(groups.max()) + 1 if errors else None
        if priors:
            _write_attractiveness(fitted, units, pages, engine, result, csv=self.csv)
        result.content[_CLICK_MODEL] = ClickModelSection(
            model.name, fitted.passes, fitted.converged, n_groups, self.trust
        )
        result.headline = f"{model.name} is fitted to {plural(units.number, 'documents')}"
        judge = f"posbias evaluate LOGS --models {','.join(dict.fromkeys((model.name, 'pbm', 'ubm')))} -o judged"
        result.next = result.next_if_refused = judge
        result.printed += [f"{model.name}: {model.about}", *_shared_parameter_table(parameters)]
        if not fitted.converged:
            result.reasons.append(reason("not-converged.of-pages", {"passes": fitted.passes}))
        details = "; ".join(
            f"prior of {name}: mean {prior.mean:.3f}, worth {prior.strength:.3g} impressions"
            for name, prior in priors.items()
        )
        case = "" if isinstance(model, ExaminationModel) else ".trust" if model.name == "tpbm" else ".click-rate"
        result.reasons.append(reason(f"no-propensity-by-position{case}", {}, details, model=model.name))
        means = {name: prior.mean for name, prior in priors.items()}
        documents = result.folder / f"{ATTRACTIVENESS}.parquet" if means else None
        model_fit = ClickModelFit(model, plan, _shared_values(parameters, model), means, documents)
        return data, partial(weigh_by_row, model_fit)


def _shared_parameter_table(parameters: pl.DataFrame) -> list[Printed]:
    """Print parameters that are shared by all documents."""
    shared = parameters.filter(pl.col(VALUE).is_not_null())
    if not shared.height:
        return []
    rows = shared.head(MOST_ROWS).to_dicts()
    columns = [Column("parameter", tuple(row["parameter"] for row in rows), label=True, text=True)]
    if shared[POSITION].is_not_null().any():
        columns.append(Column("position", tuple(str(row[POSITION]) for row in rows), label=True))
    columns.append(Column("value", tuple(f"{row[VALUE]:.4f}" for row in rows)))
    errors = tuple(number_in_words(row[STD_ERROR], ".4f") for row in rows)
    columns.append(Column("std. error", errors, folded="std.\nerror"))
    left = shared.height - MOST_ROWS
    more = f"and {plural(left, 'more')} in parameters.parquet" if left > 0 else ""
    scope = [population()] if shared[STD_ERROR].is_not_null().any() else []
    return [PrintedTable(tuple(columns), more), *scope]


def _jackknife_groups(units: Units) -> Integers:
    """Assign the query of each unit to one of N_GROUPS jackknife groups, by the rank of its hash.

    Group sizes differ by at most one query; groups do not depend on the parts of the log.

    Returns:
        Shape (J + 1,); 0 for the last entry, which stands for no unit.
    """
    first, hashes = [np.empty(0, np.int64)], [np.empty(0, np.uint64)]
    for number in range(len(units.parts)):
        query = units.parts[number].scan().select(QUERY).collect()[QUERY]
        starts = np.flatnonzero((~query.eq_missing(query.shift(1))).to_numpy())
        starts = np.union1d(starts, [0]) if len(query) else starts
        first.append(starts + units.first[number])
        hashes.append(query[starts].hash(_SEED).to_numpy())
    start, hashed = np.concatenate(first), np.concatenate(hashes)
    rank = np.empty(len(start), np.int64)
    rank[np.argsort(hashed, kind="stable")] = np.arange(len(start))
    group = np.repeat(rank % N_GROUPS, np.diff(np.append(start, units.number)))
    return np.append(group, 0)


def _write_attractiveness(
    fitted: ModelEstimate, units: Units, pages: TrainingPages, engine: Engine, result: Result, *, csv: bool
) -> None:
    """Write `attractiveness.parquet`: impressions, clicks and parameters of each unit."""
    columns = {name: np.zeros(units.number) for name in (IMPRESSIONS, CLICKS)}
    for batch in pages:
        unit, weight = batch.unit.ravel(), batch.row_weight
        for name, counts in ((IMPRESSIONS, weight), (CLICKS, weight * batch.click)):
            columns[name] += np.bincount(unit, counts.ravel(), minlength=units.number)
    count_type = pl.Int64 if (columns[IMPRESSIONS] == np.floor(columns[IMPRESSIONS])).all() else pl.Float64
    columns |= {name: fitted.parameters[name][:-1] for name in fitted.priors}
    spans = zip(units.parts, units.first, [*units.first[1:], units.number], strict=True)
    items = ((kept, {name: values[start:end] for name, values in columns.items()}) for kept, start, end in spans)
    with result.progress.stage("writing", len(units.parts)) as stage:
        work = partial(_attractiveness_rows, count_type=count_type)
        for _ in engine.write_table(items, work, result.folder / f"{ATTRACTIVENESS}.parquet"):
            stage.advance()
    if csv:
        write_attractiveness_csv(result.folder)


def _attractiveness_rows(item: tuple[KeptFrame, dict[str, Floats]], count_type: type[pl.DataType]) -> pl.DataFrame:
    units, columns = item
    types = dict.fromkeys(columns, pl.Float64) | {IMPRESSIONS: count_type, CLICKS: count_type}
    return units.load().with_columns(pl.Series(name, values).cast(types[name]) for name, values in columns.items())


class ClickModelSection(msgspec.Struct, frozen=True):
    """Section of the manifest on a fitted click model.

    Attributes:
        model: name.
        passes: EM passes over the pages.
        converged: whether EM converged.
        error_groups: jackknife groups of queries; None if there are no standard errors.
        trust: table of given trust bias.
    """

    model: str
    passes: int
    converged: bool
    error_groups: int | None = None
    trust: str | None = None


class _FitManifest(msgspec.Struct, frozen=True):
    """Fields of the manifest that `read_fitted` reads."""

    counted: Counted
    click_model: ClickModelSection


@dataclass(frozen=True)
class ClickModelFit:
    """A fitted click model.

    Attributes:
        model: the click model.
        plan: the plan under which the log was read.
        shared: parameters shared by documents: shape (), or (K + 1,) by position; NaN if unknown.
        prior_means: prior mean of each parameter by document, for unseen documents.
        documents: Parquet of `query`, `doc` and parameters by document; None if the model has none.
    """

    model: ClickModel
    plan: StatisticsPlan
    shared: dict[str, Floats]
    prior_means: dict[str, float]
    documents: Path | None


def read_fitted(place: Location) -> StoredFit | ClickModelFit:
    """Read propensities by cell, or a click model, from a result of `fit` or `run`.

    Raises:
        LogFormatError: the result is damaged, or was replaced while it was read.
        UsageError: the result holds neither.
    """
    with open_stored(place, {*FIT_FILES, *_FILES}) as stored:
        if _CLICK_MODEL in stored.content:
            return _click_model(stored)
        return replace(fit_in(stored, f"--propensities {stored.folder}"), name=str(place))


def _click_model(stored: StoredResult) -> ClickModelFit:
    """Read a click model; raise LogFormatError if it is damaged."""
    manifest, folder, again = stored.typed(_FitManifest), stored.folder, "Run `posbias fit` again."
    section = manifest.click_model
    try:
        model = get_click_model(section.model)
    except UsageError as error:
        raise LogFormatError(f"{folder}: holds a click model {section.model!r} that is not known here.") from error
    path = folder / f"{_PARAMETERS}.parquet"
    table = read_table(path)
    by_document = [parameter.name for parameter in model.parameters if parameter.shape == "unit"]
    try:
        shared = _shared_values(table, model)
        by_name = pl.col("parameter")
        means = {name: _probability(table.filter(by_name == name)["prior_mean"].item(), name) for name in by_document}
    except (pl.exceptions.PolarsError, ValueError, TypeError) as error:
        raise LogFormatError(f"{path}: is damaged: {str(error).splitlines()[0]}. {again}") from error
    documents = folder / f"{ATTRACTIVENESS}.parquet" if means else None
    if documents is not None and not documents.exists():
        raise LogFormatError(f"{folder}: holds no {documents.name}. {again}")
    return ClickModelFit(model, manifest.counted.plan(), shared, means, documents)


def _shared_values(table: pl.DataFrame, model: ClickModel) -> dict[str, Floats]:
    """Parameters shared by documents: shape (), or (K + 1,) by position with nulls filled from the position above.

    Raises:
        ValueError: a value is not a probability, or positions are not 1 to K.
    """
    shared = dict[str, Floats]()
    for parameter in (parameter for parameter in model.parameters if parameter.shape != "unit"):
        name, own = parameter.name, table.filter(pl.col("parameter") == parameter.name)
        if parameter.shape == "one":
            shared[name] = np.array(_probability(own[VALUE].item(), name))
            continue
        if parameter.shape != "position":
            raise ValueError(f"{name} differs by {PREVIOUS_CLICK}")
        if own[POSITION].to_list() != list(range(1, own.height + 1)):
            raise ValueError(f"{name} is not known position by position")
        values = own[VALUE].fill_null(strategy="forward").to_list()
        known = (np.nan if value is None else _probability(value, name) for value in values)
        shared[name] = np.array([np.nan, *known])
    return shared


def _probability(value: object, name: str) -> float:
    if not isinstance(value, float) or not 0 <= value <= 1:
        raise ValueError(f"{name} is {value!r}, and no probability")
    return value


def read_trust(file: str) -> dict[str, Floats]:
    """Read the click probabilities of the trust-bias model, p = alpha + beta and q = beta, by position.

    Args:
        file: a table with `position` and either `alpha` and `beta`, or `theta`, `epsilon_plus` and `epsilon_minus`.

    Returns:
        By parameter, shape (K + 1,); NaN for positions that the table lacks.

    Raises:
        LogFormatError: the file is missing or unreadable.
        SchemaError: a column is missing, a position is repeated, or a value is out of range.
    """
    sources = resolve_quotes(find_sources([file], "Name a table of position, alpha and beta."))[0]
    with reading(sources):
        table = scan_sources(sources).collect()
    names = next((names for names in (_AFFINE, _FACTORS) if {POSITION, *names} <= set(table.columns)), None)
    if names is None:
        raise SchemaError(
            f"--trust {file}: it must have the columns {POSITION}, {' and '.join(_AFFINE)}; or {POSITION}, "
            f"{', '.join(_FACTORS[:2])} and {_FACTORS[2]}. The columns are: {', '.join(table.columns)}."
        )
    position, *values = _numbers(table, (POSITION, *names), file)
    alpha, beta = values if names == _AFFINE else (values[0] * (values[1] - values[2]), values[0] * values[2])
    wrong = (alpha <= 0) | (beta < 0) | (alpha + beta > 1)
    for shares in values if names == _FACTORS else []:
        wrong |= (shares < 0) | (shares > 1)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise SchemaError(
            f"--trust {file}: position {position[row]:g}: alpha is {alpha[row]:g} and beta {beta[row]:g}. alpha must "
            "be above 0, beta at least 0, and alpha + beta, the click rate of a relevant document, at most 1."
        )
    clicked = {CLICK_IF_RELEVANT.name: alpha + beta, CLICK_IF_NOT.name: beta}
    by_position = {name: np.full(int(position.max()) + 1, np.nan) for name in clicked}
    for name, probability in clicked.items():
        by_position[name][position.astype(np.int64)] = probability
    return by_position


def _numbers(table: pl.DataFrame, names: Sequence[str], file: str) -> list[Floats]:
    """Cast columns to Float64, `position` first.

    Raises:
        SchemaError: the table is empty, a value is not a finite number, or a position is not whole or is repeated.
    """
    numbers = table.select(pl.col(names).cast(pl.Float64, strict=False))
    for name, values in zip(names, numbers, strict=True):
        broken = (values.is_null() | ~values.is_finite().fill_null(value=False)).arg_true()
        if len(broken):
            value = table[name][broken[0]]
            raise SchemaError(f"--trust {file}: row {broken[0] + 1}: {name} is {value!r}; it must be a number.")
    position, *others = (values.to_numpy() for values in numbers)
    if not len(position):
        raise SchemaError(f"--trust {file}: holds no row.")
    wrong = np.flatnonzero((position < 1) | (position != np.floor(position)) | (position > _LARGEST_POSITION))
    if len(wrong):
        where = f"--trust {file}: row {wrong[0] + 1}: position {position[wrong[0]]:g}"
        raise SchemaError(f"{where} must be a whole number from 1 to {_LARGEST_POSITION:,}.")
    if len(np.unique(position)) < len(position):
        raise SchemaError(f"--trust {file}: a position stands twice. Write one row for each.")
    return [position, *others]


def check_trust_is_known(trust: Mapping[str, Floats], shown: Sequence[int], file: str) -> None:
    """Check that trust bias is known at all positions of a log.

    Args:
        trust: as from `read_trust`.
        shown: positions of the log.
        file: name in messages.

    Raises:
        SchemaError: a position is missing.
    """
    known = trust[CLICK_IF_NOT.name]
    missing = [k for k in sorted(shown) if k >= len(known) or np.isnan(known[k])]
    if missing:
        raise SchemaError(
            f"--trust {file}: says nothing of position {missing[0]}, which the log shows. Add a row for it, or leave "
            "such results out with --max-position."
        )


def check_can_weigh(model: ClickModel) -> None:
    """Raise UsageError if a click model has neither examination nor trust bias to weigh clicks by."""
    if not isinstance(model, ExaminationModel) and model.name != TrustBiasModel.name:
        raise UsageError(
            f"--model {model.name}: has no examination, so that there is nothing to weigh clicks by. Its click rates "
            "are in what `posbias fit` writes."
        )


def no_weight_of_rows(option: str) -> UsageError:
    """Error for weights of single impressions under trust bias."""
    return UsageError(
        f"{option}: under trust bias an impression without a click is worth less than nothing, and a weight cannot say "
        "that. Use --layout pointwise or judgments."
    )


def weigh_by_row(fit: ClickModelFit, data: Data, request: WeightRequest, engine: Engine, progress: Progress) -> Weighed:
    """Weigh clicks by the examination of each row given the clicks above it; see `Weigh`.

    Unseen documents have the prior means.

    Raises:
        SchemaError: ids differ in type from those of the fit.
    """
    if isinstance(data, CountedLog):
        raise TypeError("the impressions of pages are weighed, not counts")
    options, impressions = request.options, data.buckets
    folder = None if impressions.in_memory else engine.scratch
    with progress.stage("examination", impressions.number) as stage:
        documents = _document_parameters(impressions, fit, engine, folder)
        work = partial(_weigh, fit=replace(fit, documents=None), documents=documents, options=options, folder=folder)
        weighed: list[tuple[KeptFrame, pl.DataFrame]] = []
        for part in impressions.map(work):
            weighed.append(part)
            stage.advance()
    summary, by_position = row_weights(pl.concat(sums for _, sums in weighed), options)
    parts, factor = [frame for frame, _ in weighed], summary.self_normalization_factor
    check_unidentified(summary, stop=request.stop)

    def sum_documents(layout: LayoutOfCounts) -> tuple[list[PairsOfPart], Floats, RowsOfPairs, int]:
        work = partial(_add_up, options=options, factor=factor, folder=folder)
        added = list[tuple[KeptFrame, pl.DataFrame]]()
        with progress.stage("adding up", len(parts)) as stage:
            for part in engine.each(list(enumerate(parts)), work):
                added.append(part)
                stage.advance()
        sums, ends = pl.concat(sums for _, sums in added), np.cumsum([0, *(sums.height for _, sums in added)])
        columns = (IMPRESSIONS, CLICKS, BEYOND, ATTRACTED, EXPECTED, _RELEVANCE)
        *values, relevance = (sums[name].cast(pl.Float64).fill_null(np.nan).to_numpy() for name in columns)
        posterior, whole = (np.zeros(0), relevance, np.full(len(relevance), np.nan)), not data.log.roles.weight
        documents = DocumentSums(*values, posterior=lambda: posterior, options=options, whole=whole)
        pairs = [  # every document is a signature, numbered over all parts
            PairsOfPart(number, kept, np.arange(*ends[number : number + 2], dtype=np.int64))
            for number, (kept, _) in enumerate(added)
        ]
        return pairs, *layout.by_document(documents), sums.height

    weigh = partial(weigh_rows, options=options, factor=factor)
    section = {"examination": "row", "model": fit.model.name}
    pages = engine.parts_of([part.scan() for part in parts])
    return Weighed(summary, by_position, pages, weigh, sum_documents, section)


def _document_parameters(
    impressions: Parts, fit: ClickModelFit, engine: Engine, folder: Path | None
) -> list[pl.LazyFrame] | None:
    """Route the parameters of documents to the parts of a log; None if the model has none."""
    if fit.documents is None:
        return None
    keys = [frame.scan() for frame in impressions.map(partial(_unique_pairs, folder=folder))]
    sources = find_sources([str(fit.documents)])
    table = scan_sources(sources)
    known, ours = table.collect_schema(), keys[0].collect_schema()
    for name in PAIR:
        if known[name] != ours[name] and not (known[name].is_integer() and ours[name].is_integer()):
            raise SchemaError(
                f"the {name} holds {ours[name]} in this log and {known[name]} in the fit, so that no document would be "
                "known. Write both with the same type."
            )
    rows = table.select(*(pl.col(name).cast(ours[name]) for name in PAIR), *fit.prior_means)
    return route_rows(rows, PAIR, sources, keys, engine.scratch / "documents", engine.memory)


def _unique_pairs(number: int, impressions: pl.LazyFrame, folder: Path | None) -> KeptFrame:
    return keep(impressions.select(PAIR).unique().collect(engine="streaming"), folder, f"keys-{number:05d}")


def _weigh(
    number: int,
    impressions: pl.LazyFrame,
    fit: ClickModelFit,
    documents: Sequence[pl.LazyFrame] | None,
    options: WeightOptions,
    folder: Path | None,
) -> tuple[KeptFrame, pl.DataFrame]:
    """Add propensity, baseline and relevance to the rows of a part; return the rows and `sums_by_position`."""
    if fit.plan.max_position is not None:
        impressions = impressions.filter(pl.col(POSITION) <= fit.plan.max_position)
    rows = in_page_order(impressions.collect(engine="streaming"))
    model, row_parameters = fit.model, dict[str, Floats]()
    if documents is not None:  # parameters by document, shape (M,)
        parameters, pairs = documents[number], rows.lazy().select(PAIR)
        known = pairs.join(parameters, on=PAIR, how="left", nulls_equal=True, maintain_order="left").collect()
        row_parameters = {name: known[name].fill_null(mean).to_numpy() for name, mean in fit.prior_means.items()}
    if isinstance(model, ExaminationModel):
        baseline, propensity = np.zeros(rows.height), examination_of_rows(model, rows, row_parameters, fit.shared)
    else:
        position = rows[POSITION].cast(pl.Int64).to_numpy()
        baseline = at_position(fit.shared[CLICK_IF_NOT.name], position)
        propensity = at_position(fit.shared[CLICK_IF_RELEVANT.name], position) - baseline
    relevance = model.relevance(row_parameters)
    columns = {
        PROPENSITY: np.where(propensity > 0, propensity, np.nan),
        BASELINE: baseline,
        _RELEVANCE: np.full(rows.height, np.nan) if relevance is None else relevance,
    }
    rows = rows.with_columns(pl.Series(name, values, nan_to_null=True) for name, values in columns.items())
    return keep(rows, folder, f"weighed-{number:05d}"), sums_by_position(rows, options)


def _add_up(
    item: tuple[int, KeptFrame], options: WeightOptions, factor: float, folder: Path | None
) -> tuple[KeptFrame, pl.DataFrame]:
    """Sum the rows of a part by document; return the pairs, numbered by SIGNATURE, and their sums."""
    number, kept = item
    rows = kept.load()
    sums = sum_by_document(rows, options, factor)
    relevance = rows.group_by(PAIR, maintain_order=True).agg(pl.first(_RELEVANCE))
    sums = sums.join(relevance, on=PAIR, how="left", nulls_equal=True, maintain_order="left")
    pairs = sums.select(PAIR).with_row_index(SIGNATURE)
    return keep(pairs, folder, f"documents-{number:05d}"), sums.drop(PAIR)
