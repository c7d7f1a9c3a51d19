"""A click model fitted to a log, or to statistics that hold all that it looks at, and its files.

Trust bias as it is given: a table of alpha and beta by position.

    P(C_r = 1) = alpha_k gamma_qd + beta_k,    alpha_k = theta_k (eps+_k - eps-_k),    beta_k = theta_k eps-_k

Source: Agarwal et al. 2019 (WWW); Vardasbi, Oosterhuis & de Rijke 2020 (CIKM).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Integers
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.errors import LogFormatError, SchemaError, UsageError
from posbias.core.models import ClickModel, get_click_model
from posbias.core.models.em import (
    N_GROUPS,
    VALUE,
    EMOptions,
    ModelEstimate,
    TrainingPages,
    fit,
    parameter_table,
    standard_errors,
)
from posbias.core.models.page_matrices import Floats, Parameter
from posbias.core.models.position_based import CLICK_IF_NOT, CLICK_IF_RELEVANT
from posbias.core.schema import CLICKS, IMPRESSIONS, POSITION, PREVIOUS_CLICK, QUERY
from posbias.io.engines.engine import Engine
from posbias.io.jobs.page_batches import Units
from posbias.io.log.scan import reading, resolve_quotes, scan_sources
from posbias.io.log.sources import find_sources
from posbias.io.places.locations import Location
from posbias.io.places.temporary import KeptFrame
from posbias.io.progress import Progress
from posbias.io.results.manifest import StoredResult, open_stored
from posbias.io.results.tables import ATTRACTIVENESS, read_table, write_attractiveness_csv, write_small_table
from posbias.io.stores.metadata import Counted

PARAMETERS = "parameters"

_SEED = 5


@dataclass(frozen=True)
class FittedToLog:
    """A fitted click model, and what it was fitted to.

    Attributes:
        model: it.
        fitted: with its parameters.
        std_errors: of those that all units share, by name; empty where they are not known.
        units: what has parameters of its own.
        impressions: of each unit, shape (J,), sums of weights where rows carry some.
        clicks: on them.
        n_groups: of queries, by which standard errors were estimated.
    """

    model: ClickModel
    fitted: ModelEstimate
    std_errors: dict[str, Floats]
    units: Units
    impressions: Floats
    clicks: Floats
    n_groups: int

    @property
    def parameters(self) -> pl.DataFrame:
        """Shared parameters, and priors; see `parameter_table`."""
        return parameter_table(self.model.parameters, self.fitted, self.std_errors)


def fit_model(
    model: ClickModel, units: Units, pages: TrainingPages, options: EMOptions, progress: Progress
) -> FittedToLog:
    """Fit a click model, and find the errors of what all units share by the jackknife.

    Args:
        model: it.
        units: what has parameters of its own.
        pages: to learn from.
        options: how.
        progress: where stages are reported.
    """
    with progress.stage(f"fitting {model.name}") as stage:
        fitted = fit(model, pages, options, stage.advance)
    with progress.stage("standard errors") as stage:
        groups = groups_of_queries(units)
        errors = standard_errors(model, pages, groups, fitted, options, stage.advance)
    shown, clicked = np.zeros(units.number), np.zeros(units.number)
    for batch in pages:
        unit, weight = batch.unit.ravel(), batch.row_weight
        shown += np.bincount(unit, weight.ravel(), minlength=units.number)
        clicked += np.bincount(unit, (weight * batch.click).ravel(), minlength=units.number)
    return FittedToLog(model, fitted, errors, units, shown, clicked, int(groups.max()) + 1)


def groups_of_queries(units: Units) -> Integers:
    """The jackknife group of the query of each unit, shape (J + 1,): as many queries in each, but for one more or less.

    It does not depend on the parts that queries lie in.
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


def write_click_model(fit: FittedToLog, engine: Engine, folder: Path, progress: Progress, *, csv: bool) -> None:
    """Write `parameters.parquet` and, where documents have parameters, `attractiveness.parquet`; with `csv` as CSV too.

    Args:
        fit: the fitted model.
        engine: where the parts of its units are.
        folder: of the result.
        progress: where stages are reported.
        csv: whether people want to read it.
    """
    write_small_table(fit.parameters, folder, PARAMETERS, csv=csv)
    names = [parameter.name for parameter in fit.model.parameters if parameter.shape == "unit"]
    if not names:
        return
    columns = {IMPRESSIONS: fit.impressions, CLICKS: fit.clicks}
    columns |= {name: fit.fitted.parameters[name][:-1] for name in names}
    whole = bool((fit.impressions == np.floor(fit.impressions)).all())
    items = ((fit.units.parts[number], columns_of) for number, columns_of in _by_part(fit.units, columns))
    with progress.stage("writing", len(fit.units.parts)) as stage:
        work = partial(_rows, whole=whole)
        for _ in engine.write_table(items, work, folder / f"{ATTRACTIVENESS}.parquet"):
            stage.advance()
    if csv:
        write_attractiveness_csv(folder)


def _by_part(units: Units, columns: dict[str, Floats]) -> Iterator[tuple[int, dict[str, Floats]]]:
    ends = [*units.first[1:], units.number]
    for number, (start, end) in enumerate(zip(units.first, ends, strict=True)):
        yield number, {name: values[start:end] for name, values in columns.items()}


def _rows(item: tuple[KeptFrame, dict[str, Floats]], *, whole: bool) -> pl.DataFrame:
    units, columns = item
    counts = pl.Int64 if whole else pl.Float64
    return units.load().with_columns(
        pl.Series(name, values).cast(counts if name in {IMPRESSIONS, CLICKS} else pl.Float64)
        for name, values in columns.items()
    )


CLICK_MODEL = "click_model"
"""The section of the manifest."""

FILES = (f"{PARAMETERS}.parquet", f"{ATTRACTIVENESS}.parquet")
"""Files of a click model that are read beside the manifest."""

_AGAIN = "Run `posbias fit` again."


class ClickModelSection(msgspec.Struct, frozen=True):
    """The section of a fitted click model in the manifest.

    Attributes:
        model: its name.
        passes: over the pages, that EM made.
        converged: whether it ended by itself.
        error_groups: groups of queries by which standard errors were estimated; None where there are none.
        trust: the table that trust bias was given in, if it was.
    """

    model: str
    passes: int
    converged: bool
    error_groups: int | None = None
    trust: str | None = None


class _FitManifest(msgspec.Struct, frozen=True):
    """As much of the manifest as is read again."""

    counted: Counted
    click_model: ClickModelSection


@dataclass(frozen=True)
class ClickModelFit:
    """A fitted click model.

    Attributes:
        model: it.
        plan: how the log was read.
        shared: the parameters that all documents share, as models take them; nan where a log did not tell them.
        prior_means: of the parameters by document, for those that the fit has not seen.
        documents: the file, or the directory, of `query`, `doc` and their parameters; None where there are none.
    """

    model: ClickModel
    plan: StatisticsPlan
    shared: dict[str, Floats]
    prior_means: dict[str, float]
    documents: Path | None


def as_read(fit: FittedToLog, plan: StatisticsPlan, folder: Path) -> ClickModelFit:
    """A click model that was just written into a folder, as it would be read again."""
    means = {name: prior.mean for name, prior in fit.fitted.priors.items()}
    return ClickModelFit(fit.model, plan, _shared(fit.parameters, fit.model), means, _documents(folder, means))


def has_click_model(place: Location) -> bool:
    """Whether a result of `fit` or `run` is a click model that has no propensities by cell.

    Raises:
        PosbiasError: it is none of their results.
    """
    with open_stored(place) as stored:
        return CLICK_MODEL in stored.content


def read_click_model(place: Location) -> ClickModelFit:
    """The click model in a directory that `fit` or `run` wrote.

    Raises:
        LogFormatError: it is damaged, or was replaced while it was read.
    """
    with open_stored(place, FILES) as stored:
        return click_model_in(stored)


def click_model_in(stored: StoredResult) -> ClickModelFit:
    """The click model that a result holds.

    Raises:
        LogFormatError: it is damaged.
    """
    manifest, folder = stored.typed(_FitManifest), stored.folder
    section = manifest.click_model
    try:
        model = get_click_model(section.model)
    except UsageError as error:
        raise LogFormatError(f"{folder}: holds a click model {section.model!r} that is not known here.") from error
    path = folder / f"{PARAMETERS}.parquet"
    table = read_table(path)
    by_document = [parameter.name for parameter in model.parameters if parameter.shape == "unit"]
    try:
        shared = _shared(table, model)
        means = {name: _mean(table, name) for name in by_document}
    except (pl.exceptions.PolarsError, ValueError, TypeError) as error:
        raise LogFormatError(f"{path}: is damaged: {str(error).splitlines()[0]}. {_AGAIN}") from error
    documents = _documents(folder, means)
    if documents is not None and not documents.exists():
        raise LogFormatError(f"{folder}: holds no {documents.name}. {_AGAIN}")
    return ClickModelFit(model, manifest.counted.plan(), shared, means, documents)


def _documents(folder: Path, means: Mapping[str, float]) -> Path | None:
    return folder / f"{ATTRACTIVENESS}.parquet" if means else None


def _shared(table: pl.DataFrame, model: ClickModel) -> dict[str, Floats]:
    """The shared parameters."""
    return {p.name: _values(table, p) for p in model.parameters if p.shape != "unit"}


def _mean(table: pl.DataFrame, name: str) -> float:
    """The mean of a prior."""
    return _probability(table.filter(pl.col("parameter") == name)["prior_mean"].item(), name)


def _values(table: pl.DataFrame, parameter: Parameter) -> Floats:
    """The values of a parameter in its shape; what is not known by position is taken from the nearest one above."""
    own = table.filter(pl.col("parameter") == parameter.name)
    if parameter.shape == "one":
        return np.array(_probability(own[VALUE].item(), parameter.name))
    if parameter.shape != "position":
        raise ValueError(f"{parameter.name} differs by {PREVIOUS_CLICK}")
    if own[POSITION].to_list() != list(range(1, own.height + 1)):
        raise ValueError(f"{parameter.name} is not known position by position")
    values = own[VALUE].fill_null(strategy="forward").to_list()
    return np.array([np.nan, *(np.nan if value is None else _probability(value, parameter.name) for value in values)])


def _probability(value: object, name: str) -> float:
    if not isinstance(value, float) or not 0 <= value <= 1:
        raise ValueError(f"{name} is {value!r}, and no probability")
    return value


_AFFINE = ("alpha", "beta")
_PARTS = ("theta", "epsilon_plus", "epsilon_minus")
_DEEPEST = 100_000


def read_trust(file: str) -> dict[str, Floats]:
    """The parameters of the trust-bias model, shape (K + 1,) each, nan where the table lacks a position.

    Args:
        file: a table with `position` and either `alpha` and `beta`, or `theta`, `epsilon_plus` and `epsilon_minus`.

    Raises:
        LogFormatError: it is missing, or cannot be read.
        SchemaError: columns are missing, a position stands twice, or a value is none.
    """
    sources = resolve_quotes(find_sources([file], "Name a table of position, alpha and beta."))[0]
    with reading(sources):
        table = scan_sources(sources).collect()
    names = next((names for names in (_AFFINE, _PARTS) if {POSITION, *names} <= set(table.columns)), None)
    if names is None:
        raise SchemaError(
            f"--trust {file}: it must have the columns {POSITION}, {' and '.join(_AFFINE)}; or {POSITION}, "
            f"{', '.join(_PARTS[:2])} and {_PARTS[2]}. The columns are: {', '.join(table.columns)}."
        )
    position, values = _numbers(table, names, file)
    alpha, beta = values if names == _AFFINE else (values[0] * (values[1] - values[2]), values[0] * values[2])
    _check(file, position, alpha, beta, values if names == _PARTS else [])
    clicked = {CLICK_IF_RELEVANT.name: alpha + beta, CLICK_IF_NOT.name: beta}
    return {name: _by_position(position, of_positions) for name, of_positions in clicked.items()}


def _numbers(table: pl.DataFrame, names: Sequence[str], file: str) -> tuple[Floats, list[Floats]]:
    """Position and the other columns, as numbers."""
    columns: list[Floats] = []
    for name in (POSITION, *names):
        values = table[name].cast(pl.Float64, strict=False)
        broken = values.is_null() | ~values.is_finite().fill_null(value=False)
        if broken.any():
            row = int(broken.arg_true()[0])
            value = table[name][row]
            raise SchemaError(f"--trust {file}: row {row + 1}: {name} is {value!r}; it must be a number.")
        columns.append(values.to_numpy())
    position = columns[0]
    if not len(position):
        raise SchemaError(f"--trust {file}: holds no row.")
    wrong = np.flatnonzero((position < 1) | (position != np.floor(position)) | (position > _DEEPEST))
    if len(wrong):
        where = f"--trust {file}: row {wrong[0] + 1}"
        raise SchemaError(f"{where}: position {position[wrong[0]]:g} must be a whole number from 1 to {_DEEPEST:,}.")
    if len(np.unique(position)) < len(position):
        raise SchemaError(f"--trust {file}: a position stands twice. Write one row for each.")
    return position, columns[1:]


def _check(file: str, position: Floats, alpha: Floats, beta: Floats, shares: Sequence[Floats]) -> None:
    """Check that all are probabilities, and that clicks depend on documents.

    Raises:
        SchemaError: one is none.
    """
    wrong = (alpha <= 0) | (beta < 0) | (alpha + beta > 1)
    for values in shares:
        wrong |= (values < 0) | (values > 1)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise SchemaError(
            f"--trust {file}: position {position[row]:g}: alpha is {alpha[row]:g} and beta {beta[row]:g}. alpha must "
            "be above 0, beta at least 0, and alpha + beta, the click rate of a relevant document, at most 1."
        )


def _by_position(position: Floats, values: Floats) -> Floats:
    by_position = np.full(int(position.max()) + 1, np.nan)
    by_position[position.astype(np.int64)] = values
    return by_position


def check_positions(trust: Mapping[str, Floats], shown: Sequence[int], file: str) -> None:
    """Check that trust is given for all positions of a log.

    Args:
        trust: as from `read_trust`.
        shown: the positions.
        file: where trust comes from.

    Raises:
        SchemaError: it is not.
    """
    known = trust[CLICK_IF_NOT.name]
    missing = [k for k in sorted(shown) if k >= len(known) or np.isnan(known[k])]
    if missing:
        raise SchemaError(
            f"--trust {file}: says nothing of position {missing[0]}, which the log shows. Add a row for it, or leave "
            "such results out with --max-position."
        )
