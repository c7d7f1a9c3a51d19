"""What is said of a fitted click model that has no propensity by cell."""

from collections.abc import Sequence

import polars as pl
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table

from posbias.cli.console import counted, line
from posbias.core.browsing.table import STD_ERROR, VALUE
from posbias.core.models.click_model import ExaminationModel
from posbias.core.schema import POSITION
from posbias.io.browsing.fitting import FittedToLog

_MOST_POSITIONS = 50


def tables(found: FittedToLog) -> list[RenderableType]:
    """The parameters that all documents share."""
    shared = found.parameters.filter(pl.col(VALUE).is_not_null())
    if not shared.height:
        return []
    with_positions = shared[POSITION].is_not_null().any()
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("parameter")
    for title in (["position"] if with_positions else []) + ["value", "std. error"]:
        table.add_column(title, justify="right")
    for row in shared.head(_MOST_POSITIONS).iter_rows(named=True):
        position = [str(row[POSITION])] if with_positions else []
        error = row[STD_ERROR]
        table.add_row(row["parameter"], *position, f"{row[VALUE]:.4f}", "-" if error is None else f"{error:.4f}")
    left = shared.height - _MOST_POSITIONS
    more = [line(f"and {counted(left, 'more')} in parameters.parquet")] if left > 0 else []
    return [Group(line(f"{found.model.name}: {found.model.about}"), table, *more)]


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


def lines(said: Sequence[str]) -> list[RenderableType]:
    """Sentences to show."""
    return [line(sentence) for sentence in said]
