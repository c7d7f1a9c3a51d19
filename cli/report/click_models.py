"""What is said of a fitted click model that has no propensity by cell."""

import polars as pl

from posbias.cli.report.table import MOST_ROWS, Column, Printed, PrintedTable
from posbias.core.browsing.table import STD_ERROR, VALUE
from posbias.core.models.click_model import ExaminationModel
from posbias.core.schema import POSITION
from posbias.core.wording import counted, population
from posbias.io.browsing.fitting import FittedToLog


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
