"""What `train` shows: what was learnt from, how well it fits, and which features matter."""

import polars as pl

from posbias.cli.report.table import Column, Printed, PrintedTable
from posbias.core.learners.data import LearningData
from posbias.core.learners.learner import ROUND, TRAINING, VALIDATION, Learned

_MOST_FEATURES = 10


def sentences(learned: Learned, data: LearningData, measure: str) -> list[str]:
    """What was learnt from, and how well it fits by the measure of the learner."""
    apart = f", {len(data.apart):,} of them held out" if len(data.apart) else ""
    found = [f"learnt from {data.n_documents:,} documents of {int(data.query[-1]) + 1:,} queries{apart}"]
    curve = learned.curve
    if curve.height:
        last = curve.filter(pl.col(ROUND) == learned.report.get("trees", curve[ROUND][-1])).row(-1, named=True)
        values = [f"{value:.5f} {name}" for name in (TRAINING, VALIDATION) if (value := last[name]) is not None]
        found.append(f"round {last[ROUND]:,}: {measure} {', '.join(values)}")
    chosen_by = learned.report.get("regularization_chosen_by")
    if chosen_by is not None:
        penalties = [one["regularization"] for one in chosen_by["tried"]]
        found.append(
            f"penalty {learned.report['regularization']:.3g}: the best of {len(penalties)} from {min(penalties):.3g} "
            f"to {max(penalties):.3g} for {chosen_by['impressions_apart']:,.0f} impressions that were set apart "
            f"({chosen_by['fits']} fits; --regularization X: one)"
        )
    return found


def importance(table: pl.DataFrame) -> list[Printed]:
    """The features that lowered the loss most."""
    total = float(table["gain"].sum()) or 1.0
    top = table.head(_MOST_FEATURES)
    rest = table.height - _MOST_FEATURES
    columns = (
        Column("feature", tuple(top["feature"]), label=True, text=True),
        Column("share of gain", tuple(f"{gain / total:.1%}" for gain in top["gain"])),
        Column("splits", tuple(f"{splits:,}" for splits in top["splits"])),
    )
    return ["feature importance", PrintedTable(columns, f"and {rest:,} more" if rest > 0 else "")]
