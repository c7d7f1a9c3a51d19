"""Checks before and after counting (models, column names, positions without clicks), and counts by clicks above.

For tests of the model, impressions are also counted by their state, the clicks above them on the page: none; one, on
the result directly above; one, further up; two; three or more.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import narwhals as nw
import numpy as np
import polars as pl

from posbias.core.arrays.count_table import CountTable, Flags, Floats, Members
from posbias.core.counts.counting_plan import StatisticsPlan, run_numbers
from posbias.core.counts.sufficient_statistics import CELL, Strata, SufficientStatistics, to_count_table
from posbias.core.errors import IdentifiabilityError, UsageError
from posbias.core.log.pages import in_page_order
from posbias.core.models import FactorisedModel, click_model_names, get_model, model_names
from posbias.core.schema import CLICK, CLICKS, IMPRESSIONS, NAMES_TAKEN, POSITION, QUERY, SESSION, Length, with_periods

DEFAULT_MODEL = "pbm"

_SHOWN = 1000.0  # fewest impressions of a position without clicks that is checked
_SURELY = math.log(1e6)  # a Poisson variable of this mean is 0 with probability 1e-6
_FALLS_BY = 0.1  # click rates fall by no more than this factor from one position to the next


def counted_model(name: str) -> FactorisedModel:
    """Return the model of this name, whose cells are to be counted.

    Raises:
        UsageError: there is none of this name, or it has no cells.
    """
    try:
        return get_model(name)
    except UsageError:
        if name not in click_model_names():
            raise
    raise UsageError(
        f"--model {name}: needs whole pages, and what is counted are impressions by cell, for "
        f"{' and '.join(model_names())}. It is for `posbias fit` and `run`."
    )


def check_named_columns(model: FactorisedModel, named: Iterable[tuple[str, Sequence[str]]]) -> None:
    """Check that columns which enter results under their own names do not collide with columns of results.

    Args:
        model: its cell columns are columns of results, too.
        named: options with the columns that they name.

    Raises:
        UsageError: a name is taken.
    """
    for flag, names in named:
        for name in names:
            if name in NAMES_TAKEN[flag] or name in model.cell_columns:
                raise UsageError(f"{flag} {name}: this name means something else in the results. Rename the column.")


def check_curves(model: FactorisedModel, context: Sequence[str], cell: Sequence[str]) -> None:
    """Check that the model supports contexts and further cell columns, if there are any.

    Raises:
        UsageError: it does not, or a column is named for both.
    """
    for flag, names in (("--context", context), ("--cell", cell)):
        if names and model.name != DEFAULT_MODEL:
            raise UsageError(f"{flag}: works only with --model {DEFAULT_MODEL}, not {model.name}.")
    both = sorted({*context} & {*cell})
    if both:
        raise UsageError(
            f"--cell {' '.join(both)}: --context already has a curve of each value, whose documents it compares with "
            "those of no other. Leave one of them out: --cell if the page differs by it, --context if the users do."
        )


@dataclass(frozen=True)
class _Row:
    """Counts of one position of one curve."""

    cells: Flags  # whether each cell belongs to it, shape (K,)
    position: int
    impressions: float
    clicks: float


def check_no_silent_position(statistics: SufficientStatistics) -> None:
    """Check that no position with 1,000 impressions or more lacks clicks, unless by chance (p > 1e-6).

    The expected click rate is the smaller one of the next positions with clicks above and below; at the top, that of
    the position below. At the bottom, it falls to a tenth with each position further down, and expected clicks are at
    most those that the same documents would have at the click rates that they have elsewhere: the end of a long page
    may have none. Between other positions, the number of pairs without a click must be significant as well, as clicks
    on one document are not independent.

    Raises:
        IdentifiabilityError: a position lacks clicks.
    """
    keys = (*statistics.plan.curve, POSITION)
    place = run_numbers(statistics.cells, keys)
    first = np.unique(place, return_index=True)[1]
    impressions, clicks = (np.bincount(place, of_cells) for of_cells in statistics.cell_totals)
    curve, position = statistics.curve_of_cell[first], statistics.position_of_cell[first]

    def row_at(at: int) -> _Row:
        return _Row(place == at, int(position[at]), float(impressions[at]), float(clicks[at]))

    for at in np.flatnonzero((clicks == 0) & (impressions >= _SHOWN)):
        clicked = np.flatnonzero((clicks > 0) & (curve == curve[at]))
        before, after = clicked[clicked < at][-1:], clicked[clicked > at][:1]
        row, above, below = row_at(int(at)), *([row_at(int(next_at)) for next_at in side] for side in (before, after))
        expected = _expected(statistics.pair_signatures, row, above, below)
        if expected is not None:
            named = statistics.cells.row(int(first[at]), named=True)
            where = "".join(f", {name} = {named[name]!r}" for name in statistics.plan.curve)
            cause = (
                "Are clicks there logged in another place, or not at all? Add them, or leave its rows out of the log."
            )
            if not above:
                cause = (
                    "Are clicks ranks, of which the topmost is 0 (--click-ranks 0), does the log count positions from "
                    "another number (--position-base), or are clicks at the top not logged? Then leave its rows out of "
                    "the log."
                )
            elif not below:
                cause = (
                    "Are clicks below logged in another place, or not at all? Leave these positions out: "
                    f"--max-position {above[0].position}."
                )
            beside = " and ".join(str(other.position) for other in (*above, *below))
            raise IdentifiabilityError(
                f"clicks at position {row.position}{where} are missing: it has {row.impressions:,.0f} impressions and "
                f"none, and by those at {'positions' if above and below else 'position'} {beside} it should have "
                f"{expected:,.0f} at least. {cause}"
            )


def _expected(table: CountTable, row: _Row, above: Sequence[_Row], below: Sequence[_Row]) -> float | None:
    """Return the expected clicks of a position without clicks; None if it may have none by chance.

    Args:
        table: counts per pair signature and cell.
        row: the position.
        above: the next position above with clicks, or empty.
        below: the next position below with clicks, or empty.
    """
    beside = [*above, *below]
    if not beside:
        return None
    expected = min(row.impressions * other.clicks / other.impressions for other in beside)
    if not below:
        falls = _FALLS_BY ** (row.position - above[0].position)
        if falls * expected < _SURELY:
            return None
        # Clicks that the documents of these cells would have there at the click rates that they have elsewhere
        within = row.cells[table.cell]
        here, elsewhere = np.where(within, table.impressions, 0.0), np.where(within, 0.0, table.impressions)
        shown = table.sum_by_unit(elsewhere)
        clicked = table.sum_by_unit(np.where(within, 0.0, table.clicks))
        rate = np.divide(clicked, shown, out=np.zeros_like(shown), where=shown > 0)
        expected = falls * min(expected, float((table.multiplicity * table.sum_by_unit(here) * rate).sum()))
        return expected if expected >= _SURELY else None
    pairs, _ = _pairs(table, row.cells)
    surely = expected
    for other in beside:
        pairs_shown, pairs_clicked = _pairs(table, other.cells)
        without = 1 - (pairs_clicked + 0.5) / (pairs_shown + 1)
        thinner = min(1.0, row.impressions / pairs / (other.impressions / pairs_shown))
        surely = min(surely, -thinner * pairs * math.log(without))
    return expected if surely >= _SURELY else None


def _pairs(table: CountTable, cells: Flags) -> tuple[float, float]:
    """Return the numbers of pairs shown in these cells, and of pairs clicked there."""
    within = cells[table.cell]
    unit, clicked = table.unit_of_entry[within], table.clicks[within] > 0
    return tuple(float(table.multiplicity[np.unique(units)].sum()) for units in (unit, unit[clicked]))  # pyright: ignore[reportReturnType] - two numbers


WITHOUT = "rows_without_click"
_ROWS, _FEWEST_EXPECTED, _TIMES_FEWER, _HALVINGS = "rows", 20, 10, 50
_HARDLY = 1e-3  # probability of a row without clicks below which such rows can be ignored


@dataclass(frozen=True)
class RowsLeftOut:
    """Rows without clicks that are missing in a table of sums."""

    rows: int  # number of rows of several impressions
    without_click: int  # number of these without clicks
    expected: float  # expected number of these without clicks, a lower bound
    enough: int  # impressions from which rows without clicks are rare (0.1 %)


def rows_left_out(rows: pl.DataFrame) -> RowsLeftOut | None:
    """Test whether rows without clicks are missing in a table of sums, from its rows with clicks.

    A row of n impressions at position k has C ~ Binomial(n, p_k) clicks, and E(C | C > 0) = n p / (1 - (1 - p)^n).
    p_k is estimated from the clicks of rows with clicks, plus two standard errors. For each row with clicks, at least
    (1 - p_k)^n / (1 - (1 - p_k)^n) rows without are then expected (more, as pairs differ in attractiveness). Rows of
    one impression have no information.

    Args:
        rows: by `position` and `impressions` of a row, the numbers of `rows`, `clicks` and rows without clicks
            (`WITHOUT`).

    Returns:
        None unless at least 20 rows without clicks are expected, and less than a tenth of these are in the table.
    """
    several = rows.filter(pl.col(IMPRESSIONS) > 1)
    expected, least = 0.0, 1.0
    for (_,), at in several.group_by(POSITION):
        n, clicked = at[IMPRESSIONS].to_numpy().astype(np.float64), (at[_ROWS] - at[WITHOUT]).to_numpy()
        clicks = float(at[CLICKS].sum())
        low, high = 0.0, 1.0
        for _ in range(_HALVINGS if clicks else 0):
            p = (low + high) / 2
            is_low = float((clicked * n * p / -np.expm1(n * np.log1p(-p))).sum()) < clicks + 2 * math.sqrt(clicks)
            low, high = (p, high) if is_low else (low, p)
        none = np.exp(n * np.log1p(-low))
        expected += float((clicked * none / (1 - none)).sum()) if clicks else 0.0
        least = min(least, high)
    without = int(several[WITHOUT].sum())
    if expected < _FEWEST_EXPECTED or _TIMES_FEWER * without >= expected:
        return None
    return RowsLeftOut(int(several[_ROWS].sum()), without, expected, math.ceil(math.log(_HARDLY) / math.log1p(-least)))


STATE = "posbias_state"


class ClicksAbove(IntEnum):
    """State of an impression: the clicks above it on its page."""

    NONE = 0
    ONE_DIRECTLY_ABOVE = 1
    ONE_FURTHER_UP = 2
    TWO = 3
    MORE = 4


NUMBER_ABOVE = np.array([0, 1, 1, 2, 3])
"""Number of clicks above by state; 3 means three or more."""


@dataclass(frozen=True)
class CountedPages:
    """Impressions of whole pages with their states."""

    plan: StatisticsPlan  # defines units and cells
    rows: pl.DataFrame  # the plan's keys, the state and `click` of each impression that has a cell
    impressions: int  # number of impressions, with or without a cell

    def strata(self, period: Length = "none") -> Strata:
        """Count impressions and clicks by state; a unit is a (stratum, cell), and the clusters are queries.

        Args:
            period: length of the periods of strata.
        """
        unit = tuple(dict.fromkeys((*self.plan.stratum_columns(period), *self.plan.cell_columns)))
        counts = pl.len().cast(pl.Int64).alias(IMPRESSIONS), pl.col(CLICK).cast(pl.Int64).sum().alias(CLICKS)
        rows = with_periods(self.rows, unit).group_by(*unit, STATE).agg(*counts).sort(*unit, STATE)
        table = to_count_table(rows.rename({STATE: CELL}), unit, len(ClicksAbove))
        query = rows.select(pl.col(QUERY).rle_id().cast(pl.Int64)).to_series().to_numpy()[table.start[:-1]]
        return Strata(table, Members(np.arange(table.n_units), query))

    def largest_mean(self, value_of_state: Floats) -> float:
        """Average a value by state, shape (5,), over the impressions of each cell, and return the largest mean."""
        value = pl.Series(value_of_state).gather(self.rows[STATE])
        by_cell = self.rows.with_columns(value.alias(STATE)).group_by(self.plan.cell_columns)
        return float(by_cell.agg(pl.col(STATE).mean())[STATE].to_numpy().max())


def count_pages(impressions: pl.DataFrame, plan: StatisticsPlan) -> CountedPages:
    """Determine the state and the cell of each impression of whole pages.

    Args:
        impressions: canonical impressions of whole pages and whole queries, with their sessions.
        plan: defines the cells; not `weighted`.
    """
    in_cells = plan.with_cells(nw.from_native(with_state(impressions, plan.cell).lazy())).to_native()
    return CountedPages(plan, in_cells.select(*plan.keys, STATE, CLICK).collect(), impressions.height)


def with_state(impressions: pl.DataFrame, cell: Sequence[str] = ()) -> pl.DataFrame:
    """Add the state of each impression, and sort by page from top to bottom.

    E.g. clicks [0, 1, 0, 0, 1, 0] of a page -> states [none, none, directly above, further up, further up, two].
    """
    shown = in_page_order(impressions, cell)
    row = np.arange(shown.height)
    starts = shown[SESSION].rle_id().to_numpy().astype(np.int64)
    first = np.flatnonzero(np.diff(starts, prepend=-1))[starts]
    click = shown[CLICK].to_numpy().astype(np.int64)
    before = np.cumsum(click) - click
    above = before - before[first]
    last = np.roll(np.maximum.accumulate(np.where(click == 1, row, -1)), 1)
    one = np.where(last == row - 1, ClicksAbove.ONE_DIRECTLY_ABOVE, ClicksAbove.ONE_FURTHER_UP)
    several = np.where(above > 2, ClicksAbove.MORE, ClicksAbove.TWO)  # noqa: PLR2004 - the last state but one
    state = np.where(above > 1, several, np.where(above == 1, one, ClicksAbove.NONE))
    return shown.with_columns(pl.Series(STATE, state.astype(np.int8)))
