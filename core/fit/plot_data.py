"""Tables of a fit as reports draw them: curves and documents.

A document may attract more than its click rate says, as one does that stands low on its pages. Listed are those of
which that is surest, by

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
"""So many lines differ in colour and in the shape of their points."""

MOST_LINES_OF_CELLS = 3
"""Values of the further columns of cells up to which each has a line over positions; of more, a heat map is drawn."""

MOST_ROWS_OF_GRID = 40
"""Rows of a heat map."""

MOST_POSITIONS = 100
"""The points of a line; of more positions, some are drawn."""

_IN_FULL = 50  # positions from the top that are all drawn
_LONGEST_LABEL = 60
_NUMBERS = (IMPRESSIONS, CLICKS, "ctr", PROPENSITY, "ci_low", "ci_high", LINKING_CLICKS)
_NEW_NAMES = {"ctr": CLICK_RATE, "ci_low": LOW, "ci_high": HIGH}
_OF_REFERENCE = "of_reference"
_COUNTS = (IMPRESSIONS, CLICKS, LINKING_CLICKS)


@dataclass(frozen=True)
class PlottedCurves:
    """Cells that are drawn."""

    # `position`, `previous_click` (null but for models that have it), `context` (a text of its columns and of a cell's
    # further ones, empty where there are none), `impressions`, `clicks`, `click_rate`, `relative_rate`, `propensity`,
    # `low`, `high`, `linking_clicks`; numbers that are not known are null
    cells: pl.DataFrame
    contexts: tuple[str, ...]  # those that are drawn: the reference's with cells, then the most frequent first
    n_contexts: int  # how many there are
    positions: tuple[int, ...]  # those that are drawn
    n_positions: int  # how many there are
    clicks: float  # of all cells
    across: str = POSITION  # the column that `position` has: the last of a grid whose positions follow from it
    by: str = ""  # the columns that `context` has
    grid: bool = False  # whether cells are drawn as a heat map, with all contexts in the order of the table

    @property
    def browsing(self) -> bool:
        """Whether cells differ by the last click above as well."""
        return self.cells[PREVIOUS_CLICK].is_not_null().any()

    @property
    def lines(self) -> pl.DataFrame:
        """One cell for each position and context: where cells differ by the last click, that of no click above."""
        return self.cells.filter(pl.col(PREVIOUS_CLICK).is_null() | (pl.col(PREVIOUS_CLICK) == 0))

    @property
    def first(self) -> pl.DataFrame:
        """Of `lines`, those of the first context."""
        return self.lines.filter(pl.col(CONTEXT) == self.contexts[0])

    @property
    def omissions(self) -> list[str]:
        """Sentences on what is not drawn."""
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
    """The cells of `propensities.parquet` that are drawn.

    Args:
        table: as it was read, its cell columns checked.
        context: the columns that tell contexts apart.
        cell: the further columns of cells.
        where: the file, for the message.

    Raises:
        LogFormatError: a column is missing, or holds no numbers.
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
        _labels(table, context).alias(_OF_REFERENCE),
        *numbers,
    ).rename(_NEW_NAMES)
    finite = [name for name, dtype in cells.schema.items() if dtype == pl.Float64]
    cells = cells.with_columns(pl.when(pl.col(name).is_finite()).then(pl.col(name)).alias(name) for name in finite)
    # Click rates as what people take for propensities: relative to that of the reference cell of the context, the first
    # of those whose propensity is exactly 1; where there is none, there is no rate.
    reference = (
        cells.filter((pl.col(PROPENSITY) == 1) & (pl.col(CLICK_RATE) > 0))
        .sort(POSITION, PREVIOUS_CLICK, maintain_order=True)
        .group_by(_OF_REFERENCE, maintain_order=True)
        .agg(pl.col(CLICK_RATE).first().alias("reference_rate"))
    )
    rate = (pl.col(CLICK_RATE) / pl.col("reference_rate")).alias(RELATIVE_RATE)
    joined = cells.join(reference, on=_OF_REFERENCE, how="left", maintain_order="left")
    cells = joined.with_columns(rate).drop("reference_rate", _OF_REFERENCE)
    is_reference = (pl.col(PROPENSITY) == 1).any() & pl.lit(bool(cell))
    by_context = cells.group_by(CONTEXT, maintain_order=True).agg(pl.col(IMPRESSIONS).sum(), is_reference.alias("r"))
    contexts = by_context.sort("r", IMPRESSIONS, descending=True, maintain_order=True)[CONTEXT].to_list()
    positions, clicks = cells[POSITION].unique().sort().to_list(), float(cells[CLICKS].sum())
    grid = bool(cell) and len(contexts) > MOST_LINES_OF_CELLS
    drawn, shown = contexts[: MOST_ROWS_OF_GRID if grid else MOST_CONTEXTS], thinned(positions, MOST_POSITIONS)
    kept = cells.filter(pl.col(CONTEXT).is_in(drawn) & pl.col(POSITION).is_in(shown))
    by = ", ".join(curve)
    return PlottedCurves(
        kept, tuple(drawn), len(contexts), tuple(shown), len(positions), clicks, across=across, by=by, grid=grid
    )


def thinned(positions: Sequence[int], most: int) -> list[int]:
    """Positions in ascending order; of more than `most`, all of the first ones, and then ever fewer, with the last."""
    if len(positions) <= most:
        return list(positions)
    first = min(_IN_FULL, most)
    places = np.geomspace(first, len(positions) - 1, most - first).round().astype(int).tolist()
    return [*positions[:first], *(positions[place] for place in dict.fromkeys(places))]


def short_label(values: Sequence[object]) -> str:
    """The values of a key as one short text."""
    text = escape_unseen(", ".join("none" if value is None else str(value) for value in values))
    return text if len(text) <= _LONGEST_LABEL else f"{text[: _LONGEST_LABEL - 3]}..."


def _labels(table: pl.DataFrame, context: Sequence[str]) -> pl.Series:
    """A text for each row that says its context; contexts that differ have texts that differ."""
    if not context:
        return pl.Series(CONTEXT, [""] * table.height, pl.String)
    rows, texts, taken = table.select(context).rows(), dict[str, str](), set[str]()
    for values in rows:
        if repr(values) not in texts:
            text = short_label(values)
            texts[repr(values)] = text if text not in taken else f"{text} (no. {len(texts) + 1:,})"
            taken.add(texts[repr(values)])
    return pl.Series(CONTEXT, [texts[repr(values)] for values in rows], pl.String)


ATTRACTIVENESS, STD_DEV = "attractiveness", "std_dev"
COLUMNS = (IMPRESSIONS, CLICKS, ATTRACTIVENESS, STD_DEV)
FEWEST_IMPRESSIONS = 10
"""Fewest impressions of a document: below, the prior says more than its clicks."""

_Z = 1.959963984540054
_SURE = "sure"


def document_differences(table: pl.LazyFrame, keys: Sequence[str], most: int) -> tuple[int, int, pl.DataFrame]:
    """Compare attractiveness with click rates, in one pass each over the documents.

    Returns how many have enough impressions, how many of these a click rate outside of the 95 % interval of their
    attractiveness, and the keys, `impressions`, `clicks`, `click_rate`, `attractiveness`, `std_dev` of those that are
    clicked less often than they attract, the surest first.

    Args:
        table: rows of `attractiveness.parquet`; those with values that cannot be are left out.
        keys: the columns that say which document it is.
        most: how many documents are named.
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
