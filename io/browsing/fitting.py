"""A click model fitted to a log, or to statistics that hold all that it looks at, and its files."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Integers
from posbias.core.browsing.batch import Floats
from posbias.core.browsing.em import EMOptions, FittedModel, TrainingPages, fit
from posbias.core.browsing.jackknife import N_GROUPS, standard_errors
from posbias.core.browsing.table import parameter_table
from posbias.core.models import ClickModel
from posbias.core.schema import CLICKS, IMPRESSIONS, QUERY
from posbias.io.browsing.pages import Units
from posbias.io.engines.engine import Engine
from posbias.io.progress import Progress
from posbias.io.results.tables import ATTRACTIVENESS, write_attractiveness_csv, write_small_table
from posbias.io.temporary.kept import KeptFrame

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
        clicks: likewise.
        n_groups: of queries, that standard errors were found by.
    """

    model: ClickModel
    fitted: FittedModel
    std_errors: dict[str, Floats]
    units: Units
    impressions: Floats
    clicks: Floats
    n_groups: int

    @property
    def parameters(self) -> pl.DataFrame:
        """What all units share, and priors; see `parameter_table`."""
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
        progress: is told.
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


def write_click_model(found: FittedToLog, engine: Engine, folder: Path, progress: Progress, *, csv: bool) -> None:
    """Write `parameters.parquet` and, where documents have parameters, `attractiveness.parquet`, both as CSV if asked.

    Args:
        found: the fitted model.
        engine: where the parts of its units are.
        folder: of the result.
        progress: is told.
        csv: whether people want to read it.
    """
    write_small_table(found.parameters, folder, PARAMETERS, csv=csv)
    names = [parameter.name for parameter in found.model.parameters if parameter.shape == "unit"]
    if not names:
        return
    columns = {IMPRESSIONS: found.impressions, CLICKS: found.clicks}
    columns |= {name: found.fitted.parameters[name][:-1] for name in names}
    whole = bool((found.impressions == np.floor(found.impressions)).all())
    items = ((found.units.parts[number], columns_of) for number, columns_of in _by_part(found.units, columns))
    with progress.stage("writing", len(found.units.parts)) as stage:
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
