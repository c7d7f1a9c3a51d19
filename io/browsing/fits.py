"""A click model that `fit` has written, read again: to weigh the impressions of a log by its examination."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import polars as pl

from posbias.core.browsing.batch import Floats
from posbias.core.browsing.parameters import Parameter
from posbias.core.browsing.table import VALUE
from posbias.core.counts.plan import StatisticsPlan
from posbias.core.errors import LogFormatError, UsageError
from posbias.core.models import ClickModel, get_click_model
from posbias.core.schema import POSITION, PREVIOUS_CLICK
from posbias.io.browsing.fitting import PARAMETERS, FittedToLog
from posbias.io.places.locations import Location
from posbias.io.results.stored import StoredResult, open_stored
from posbias.io.results.tables import ATTRACTIVENESS, read_table
from posbias.io.stores.manifest import Counted

CLICK_MODEL = "click_model"
"""The section of the manifest."""

FILES = (f"{PARAMETERS}.parquet", f"{ATTRACTIVENESS}.parquet")
"""What is read of it beside the manifest."""

_AGAIN = "Run `posbias fit` again."


class ClickModelSection(msgspec.Struct, frozen=True):
    """What the manifest says about a fitted click model.

    Attributes:
        model: its name.
        passes: over the pages, that EM made.
        converged: whether it ended by itself.
        error_groups: groups of queries that standard errors were found by; None where there are none.
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
    """A click model with what was found of it.

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


def as_read(found: FittedToLog, plan: StatisticsPlan, folder: Path) -> ClickModelFit:
    """A click model that was just written into a folder, as it would be read again."""
    means = {name: prior.mean for name, prior in found.fitted.priors.items()}
    return ClickModelFit(found.model, plan, _shared(found.parameters, found.model), means, _documents(folder, means))


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
    said, folder = stored.typed(_FitManifest), stored.folder
    section = said.click_model
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
    return ClickModelFit(model, said.counted.plan(), shared, means, documents)


def _documents(folder: Path, means: Mapping[str, float]) -> Path | None:
    return folder / f"{ATTRACTIVENESS}.parquet" if means else None


def _shared(table: pl.DataFrame, model: ClickModel) -> dict[str, Floats]:
    """What all documents share."""
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
