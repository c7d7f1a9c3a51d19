"""Checks of what is counted: models with cells, names of columns, positions without clicks; and clicks above.

What was clicked above each impression of a page is counted beside the statistics, for tests of the model.

State of an impression: nothing clicked above it; one click, on the result directly above; one click, further up; two
clicks; or three and more.
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

_SHOWN = 1000.0  # impressions from which a position without a click is looked at
_SURELY = math.log(1e6)  # what a Poisson number is expected to be that is 0 by chance once in a million
_FALLS_BY = 0.1  # from one position to the next, clicks fall by no more than this factor


def counted_model(name: str) -> FactorisedModel:
    """The model whose cells are counted.

    Raises:
        UsageError: there is none of that name, or it has no cells.
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
    """Check that columns which stand in results under their own names can do so.

    Args:
        model: whose cells are counted.
        named: options with the columns that they name.

    Raises:
        UsageError: a name means something else there.
    """
    for flag, names in named:
        for name in names:
            if name in NAMES_TAKEN[flag] or name in model.cell_columns:
                raise UsageError(f"{flag} {name}: this name means something else in the results. Rename the column.")


def check_curves(model: FactorisedModel, context: Sequence[str], cell: Sequence[str]) -> None:
    """Check that a model takes contexts and cells of several columns, where there are some.

    Raises:
        UsageError: it does not, or one column is named for both.
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
    """The counts of one position of one context."""

    cells: Flags  # which they are, shape (K,)
    position: int  # the position
    impressions: float  # on it
    clicks: float  # on it


def check_no_silent_position(statistics: SufficientStatistics) -> None:
    """Check that no position lacks clicks: none of thousands of impressions is clicked, where chance makes that 1e-6.

    A click is expected as often as on the next positions above and below that have some, whichever has fewer. Above
    all others, those below tell alone. Below all others, a tenth of the clicks is expected for each position further
    down, and of no more than the same documents have elsewhere: the end of a long page may have none. Between
    others, so many pairs must be without a click, too: clicks on one document are not by chance each.

    Raises:
        IdentifiabilityError: one does.
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
        row, above, below = row_at(int(at)), *([row_at(int(of)) for of in side] for side in (before, after))
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
    """The clicks that a silent position should have; None where it may have none. At most one row on each side."""
    beside = [*above, *below]
    if not beside:
        return None
    expected = min(row.impressions * other.clicks / other.impressions for other in beside)
    if not below:
        falls = _FALLS_BY ** (row.position - above[0].position)
        if falls * expected < _SURELY:
            return None
        # The clicks that the documents of these cells would have there at the click rate that each has elsewhere.
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
    """Pairs that are shown in some of these cells, and those that are clicked there."""
    within = cells[table.cell]
    unit, clicked = table.unit_of_entry[within], table.clicks[within] > 0
    return tuple(float(table.multiplicity[np.unique(which)].sum()) for which in (unit, unit[clicked]))  # pyright: ignore[reportReturnType] - two of them


WITHOUT = "rows_without_click"
_ROWS, _FEWEST_EXPECTED, _TIMES_FEWER, _HALVINGS = "rows", 20, 10, 50
_HARDLY = 1e-3  # probability that a row has no click, from which it hardly matters


@dataclass(frozen=True)
class RowsLeftOut:
    """Rows without a click that a table of sums lacks."""

    rows: int  # of several impressions
    without_click: int  # of them
    expected: float  # so many should be, at least
    enough: int  # impressions of a row that hardly ever has no click


def rows_left_out(rows: pl.DataFrame) -> RowsLeftOut | None:
    """The rows without clicks that a table of sums should have, by its rows with clicks.

    A row of n impressions at position k has clicks C ~ Binomial(n, p_k), of which E(C | C > 0) = n p / (1 - (1 - p)^n).
    So p_k is the rate by which rows with clicks have the clicks that they have, and two standard errors more; for each
    row with clicks there are then (1 - p_k)^n / (1 - (1 - p_k)^n) without. Pairs differ in attractiveness, which makes
    more. Rows of one impression say nothing.

    Args:
        rows: by `position` and `impressions` (of a row), the number of `rows`, `clicks` and `WITHOUT`.

    Returns:
        None unless 20 are expected, and less than a tenth of them are there.
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
    """The clicks above an impression."""

    NONE = 0
    ONE_DIRECTLY_ABOVE = 1
    ONE_FURTHER_UP = 2
    TWO = 3
    MORE = 4


NUMBER_ABOVE = np.array([0, 1, 1, 2, 3])
"""Clicks above by state; 3 stands for three and more."""


@dataclass(frozen=True)
class CountedPages:
    """Impressions of whole pages, with what was clicked above."""

    plan: StatisticsPlan  # what tells units and cells apart
    rows: pl.DataFrame  # by impression that has a cell: the plan's keys, the state, `click`
    impressions: int  # how many there are

    def strata(self, period: Length = "none") -> Strata:
        """The counts by state, clustered by query; a unit is what shares one attractiveness, in one cell.

        Args:
            period: by which attractiveness may differ.
        """
        unit = tuple(dict.fromkeys((*self.plan.stratum_columns(period), *self.plan.cell_columns)))
        counts = pl.len().cast(pl.Int64).alias(IMPRESSIONS), pl.col(CLICK).cast(pl.Int64).sum().alias(CLICKS)
        rows = with_periods(self.rows, unit).group_by(*unit, STATE).agg(*counts).sort(*unit, STATE)
        table = to_count_table(rows.rename({STATE: CELL}), unit, len(ClicksAbove))
        query = rows.select(pl.col(QUERY).rle_id().cast(pl.Int64)).to_series().to_numpy()[table.start[:-1]]
        return Strata(table, Members(np.arange(table.n_units), query))

    def largest_mean(self, value_of_state: Floats) -> float:
        """The largest mean over the impressions of a cell of a value by state, shape (5,)."""
        value = pl.Series(value_of_state).gather(self.rows[STATE])
        of_cell = self.rows.with_columns(value.alias(STATE)).group_by(self.plan.cell_columns)
        return float(of_cell.agg(pl.col(STATE).mean())[STATE].to_numpy().max())


def count_pages(impressions: pl.DataFrame, plan: StatisticsPlan) -> CountedPages:
    """What was clicked above each impression of whole pages, in the cells of a plan.

    Args:
        impressions: canonical impressions of whole pages and whole queries, with their sessions.
        plan: of a model without weights.
    """
    in_cells = plan.with_cells(nw.from_native(with_state(impressions, plan.cell).lazy())).to_native()
    return CountedPages(plan, in_cells.select(*plan.keys, STATE, CLICK).collect(), impressions.height)


def with_state(impressions: pl.DataFrame, cell: Sequence[str] = ()) -> pl.DataFrame:
    """Impressions with their state, page by page from top to bottom.

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
