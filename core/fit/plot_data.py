"""Tables for the charts of a fit: curves, and documents whose click rate understates their attractiveness.

Such documents are mostly shown at low positions. They are sorted by the certainty of the difference,

    attractiveness - click rate - 1.96 standard deviations.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from posbias.core.errors import LogFormatError, escape_unseen
from posbias.core.schema import CLICKS, IMPRESSIONS, POSITION, PREVIOUS_CLICK

CONTEXT, CLICK_RATE, RELATIVE_RATE = "context", "click_rate", "relative_rate"
PROPENSITY, LOW, HIGH = "propensity", "low", "high"
LINKING_CLICKS = "linking_clicks"

MOST_CONTEXTS = 6
"""Largest number of lines that differ in colour and in the shape of their points."""

MOST_LINES_OF_CELLS = 3
"""Largest number of values of further cell columns with a line each; with more, a heat map is drawn."""

MOST_ROWS_OF_GRID = 40
"""Largest number of rows of a heat map."""

MOST_POSITIONS = 100
"""Largest number of points of a line."""

_IN_FULL = 50  # positions from the top that are drawn without gaps
_LONGEST_LABEL = 60
_NUMBERS = (IMPRESSIONS, CLICKS, "ctr", PROPENSITY, "ci_low", "ci_high", LINKING_CLICKS)
_NEW_NAMES = {"ctr": CLICK_RATE, "ci_low": LOW, "ci_high": HIGH}
_REFERENCE_CONTEXT = "reference_context"
_COUNTS = (IMPRESSIONS, CLICKS, LINKING_CLICKS)


@dataclass(frozen=True)
class PlottedCurves:
    """The cells of a chart.

    Attributes:
        cells: `position`, `previous_click` (null for models without it), `context` (a text of the context and further
            cell columns, empty without any), `impressions`, `clicks`, `click_rate`, `relative_rate`, `propensity`,
            `low`, `high`, `linking_clicks`; unknown numbers are null.
        contexts: contexts in the chart, the most frequent first; with further cell columns, those of references first.
        n_contexts: number of contexts in the table.
        positions: positions in the chart.
        n_positions: number of positions in the table.
        clicks: of all cells of the table.
        across: column shown as `position`: the last one of a grid if it determines the position.
        by: names of the columns in `context`.
        grid: whether the chart is a heat map.
    """

    cells: pl.DataFrame
    contexts: tuple[str, ...]
    n_contexts: int
    positions: tuple[int, ...]
    n_positions: int
    clicks: float
    across: str = POSITION
    by: str = ""
    grid: bool = False

    @property
    def browsing(self) -> bool:
        """Whether cells differ by the last click above."""
        return self.cells[PREVIOUS_CLICK].is_not_null().any()

    @property
    def lines(self) -> pl.DataFrame:
        """A cell for each position and context; of cells by the last click above, that without a click."""
        return self.cells.filter(pl.col(PREVIOUS_CLICK).is_null() | (pl.col(PREVIOUS_CLICK) == 0))

    @property
    def first(self) -> pl.DataFrame:
        """The rows of `lines` in the first context."""
        return self.lines.filter(pl.col(CONTEXT) == self.contexts[0])

    @property
    def omissions(self) -> list[str]:
        """Sentences on contexts and positions missing in the chart."""
        sentences: list[str] = []
        if self.n_contexts > len(self.contexts):
            sentences.append(f"Of {self.n_contexts:,} contexts, the {len(self.contexts)} most frequent are drawn.")
        if self.n_positions > len(self.positions):
            sentences.append(
                f"Of {self.n_positions:,} positions, {len(self.positions)} are drawn: the first {_IN_FULL}, then ever "
                f"fewer, to position {self.positions[-1]:,}."
            )
        return sentences


def plotted_curves(
    table: pl.DataFrame, context: Sequence[str], cell: Sequence[str] = (), *, where: str
) -> PlottedCurves:
    """Prepare the cells of `propensities.parquet` for a chart.

    Args:
        table: content of the file, with valid cell columns.
        context: context columns.
        cell: further cell columns.
        where: the file, for the message.

    Raises:
        LogFormatError: a column is missing, or is not numeric.
    """
    for name in _NUMBERS:
        if name not in table.columns:
            raise LogFormatError(f"{where}: has no column {name!r}. Run `posbias fit` again.")
        dtype = table.schema[name]
        if not (dtype.is_numeric() or dtype == pl.Null):
            raise LogFormatError(f"{where}: column {name!r} holds {dtype} instead of numbers. Run `posbias fit` again.")
    numbers = [pl.col(name) if name in _COUNTS else pl.col(name).cast(pl.Float64) for name in _NUMBERS]
    across, curve = POSITION, [*context, *cell]
    if len(cell) > 1 and table.schema[cell[-1]].is_integer() and table.select(curve).is_unique().all():
        across = curve.pop()
    cells = table.select(
        pl.col(across).cast(pl.Int64).alias(POSITION),
        (pl.col(PREVIOUS_CLICK).cast(pl.Int64) if PREVIOUS_CLICK in table.columns else pl.lit(None, pl.Int64)).alias(
            PREVIOUS_CLICK
        ),
        _labels(table, curve),
        _labels(table, context).alias(_REFERENCE_CONTEXT),
        *numbers,
    ).rename(_NEW_NAMES)
    floats = [name for name, dtype in cells.schema.items() if dtype == pl.Float64]
    cells = cells.with_columns(pl.when(pl.col(name).is_finite()).then(pl.col(name)).alias(name) for name in floats)
    # Click rates relative to that of the reference cell, the first of its context with a propensity of exactly 1
    reference = (
        cells.filter((pl.col(PROPENSITY) == 1) & (pl.col(CLICK_RATE) > 0))
        .sort(POSITION, PREVIOUS_CLICK, maintain_order=True)
        .group_by(_REFERENCE_CONTEXT, maintain_order=True)
        .agg(pl.col(CLICK_RATE).first().alias("reference_rate"))
    )
    rate = (pl.col(CLICK_RATE) / pl.col("reference_rate")).alias(RELATIVE_RATE)
    joined = cells.join(reference, on=_REFERENCE_CONTEXT, how="left", maintain_order="left")
    cells = joined.with_columns(rate).drop("reference_rate", _REFERENCE_CONTEXT)
    is_reference = (pl.col(PROPENSITY) == 1).any() & pl.lit(bool(cell))
    by_context = cells.group_by(CONTEXT, maintain_order=True).agg(pl.col(IMPRESSIONS).sum(), is_reference.alias("r"))
    contexts = by_context.sort("r", IMPRESSIONS, descending=True, maintain_order=True)[CONTEXT].to_list()
    positions, clicks = cells[POSITION].unique().sort().to_list(), float(cells[CLICKS].sum())
    grid = bool(cell) and len(contexts) > MOST_LINES_OF_CELLS
    plotted = contexts[: MOST_ROWS_OF_GRID if grid else MOST_CONTEXTS]
    points = thin_out(positions, MOST_POSITIONS)
    return PlottedCurves(
        cells=cells.filter(pl.col(CONTEXT).is_in(plotted) & pl.col(POSITION).is_in(points)),
        contexts=tuple(plotted),
        n_contexts=len(contexts),
        positions=tuple(points),
        n_positions=len(positions),
        clicks=clicks,
        across=across,
        by=", ".join(curve),
        grid=grid,
    )


def thin_out(positions: Sequence[int], most: int) -> list[int]:
    """Return at most `most` of the ascending positions: all at the top, then ever fewer, and the last."""
    if len(positions) <= most:
        return list(positions)
    first = min(_IN_FULL, most)
    indices = np.geomspace(first, len(positions) - 1, most - first).round().astype(int).tolist()
    return [*positions[:first], *(positions[index] for index in dict.fromkeys(indices))]


def short_label(values: Sequence[object]) -> str:
    """Join the values of a key to a text of at most `_LONGEST_LABEL` characters."""
    text = escape_unseen(", ".join("none" if value is None else str(value) for value in values))
    return text if len(text) <= _LONGEST_LABEL else f"{text[: _LONGEST_LABEL - 3]}..."


def _labels(table: pl.DataFrame, context: Sequence[str]) -> pl.Series:
    """Label the context of each row; different contexts have different labels."""
    if not context:
        return pl.Series(CONTEXT, [""] * table.height, pl.String)
    rows, texts, used = table.select(context).rows(), dict[str, str](), set[str]()
    for values in rows:
        if repr(values) not in texts:
            text = short_label(values)
            texts[repr(values)] = text if text not in used else f"{text} (no. {len(texts) + 1:,})"
            used.add(texts[repr(values)])
    return pl.Series(CONTEXT, [texts[repr(values)] for values in rows], pl.String)


ATTRACTIVENESS, STD_DEV = "attractiveness", "std_dev"
COLUMNS = (IMPRESSIONS, CLICKS, ATTRACTIVENESS, STD_DEV)
FEWEST_IMPRESSIONS = 10
"""Smallest number of impressions of a document: below, the prior outweighs its clicks."""

_Z = 1.959963984540054
_SURE = "sure"


def document_differences(table: pl.LazyFrame, keys: Sequence[str], most: int) -> tuple[int, int, pl.DataFrame]:
    """Compare attractiveness with click rates.

    Args:
        table: rows of `attractiveness.parquet`; rows with values out of range are ignored.
        keys: columns that identify a document.
        most: largest number of documents in the table returned.

    Returns:
        Number of documents with enough impressions, number of these with a click rate outside of the 95 % interval of
        attractiveness, and the keys, `impressions`, `clicks`, `click_rate`, `attractiveness`, `std_dev` of documents
        whose click rate is below the interval, the most certain first.
    """
    rate, mean, deviation = pl.col(CLICK_RATE), pl.col(ATTRACTIVENESS), pl.col(STD_DEV)
    rows = (
        table.select(*keys, IMPRESSIONS, CLICKS, pl.col(ATTRACTIVENESS, STD_DEV).cast(pl.Float64))
        .filter(pl.col(IMPRESSIONS) >= FEWEST_IMPRESSIONS)
        .with_columns((pl.col(CLICKS) / pl.col(IMPRESSIONS)).alias(CLICK_RATE))
        .filter(rate.is_between(0, 1) & mean.is_between(0, 1) & deviation.is_between(0, 1))
        .with_columns(((mean - rate).abs() - _Z * deviation).alias(_SURE))
    )
    totals = rows.select(pl.len(), (pl.col(_SURE) > 0).sum().alias("outside")).collect(engine="streaming")
    underrated = (
        rows.filter((pl.col(_SURE) > 0) & (mean > rate))
        .sort([_SURE, *COLUMNS], descending=[True, *[True] * len(COLUMNS)])
        .head(most)
        .drop(_SURE)
        .collect(engine="streaming")
    )
    documents, outside = totals.row(0)
    return documents, outside, underrated
