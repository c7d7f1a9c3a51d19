"""What `train` shows: what was learnt from, how well it fits, and which features matter."""

import polars as pl
from rich.console import RenderableType
from rich.table import Table

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
    return found


def importance(table: pl.DataFrame) -> RenderableType:
    """The features that lowered the loss most."""
    shown = Table(title="feature importance", title_justify="left", box=None, pad_edge=False)
    shown.add_column("feature")
    shown.add_column("share of gain", justify="right")
    shown.add_column("splits", justify="right")
    total = float(table["gain"].sum()) or 1.0
    for row in table.head(_MOST_FEATURES).iter_rows(named=True):
        shown.add_row(row["feature"], f"{row['gain'] / total:.1%}", f"{row['splits']:,}")
    if table.height > _MOST_FEATURES:
        shown.add_row(f"and {table.height - _MOST_FEATURES:,} more", "", "")
    return shown
