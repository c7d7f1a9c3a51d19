"""Pages as matrices, one row per page, and signatures of equal impressions.

Where a click depends only on its unit, its position and, in some models, the last click above it, the multiset
{(cell, n, c)} of impressions and clicks is sufficient for a unit: its *signature*. Sums over units count each signature
by its multiplicity; parameters by unit are estimated once per signature.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from typing import Literal

import numpy as np
import polars as pl
import scipy

from posbias.core.arrays.count_table import CountTable, Flags, Floats, Integers, compress, concatenate
from posbias.core.arrays.optimize import Derivatives, minimize_within
from posbias.core.choices import BetaPrior
from posbias.core.errors import SchemaError
from posbias.core.log.pages import in_page_order
from posbias.core.schema import CLICK, CLICKS, IMPRESSIONS, POSITION, PREVIOUS_CLICK, SESSION, WEIGHT


@dataclass(frozen=True)
class PageBatch:
    """N distinct pages of at most L impressions with their weights; shorter pages are padded below.

    A unit has its own parameters: a (query, document), or other `unit_columns` of the model. Its number is from 0 to
    J - 1, and J if it was not seen when the model was fitted. All arrays but `weight` have the shape (N, L).
    """

    unit: Integers  # 0 where padded
    position: Integers  # from 1, increasing along a page, possibly with gaps; 1 where padded
    click: Flags  # False where padded
    shown: Flags  # False where padded
    weight: Floats  # shape (N,), number of such pages, or the sum of their weights
    clicked_above: Integers | None = None  # `previous_click`, for single impressions (see `Signatures`)

    @property
    def n_pages(self) -> int:
        """Number of pages N."""
        return len(self.weight)

    @property
    def n_ranks(self) -> int:
        """Number of ranks L."""
        return self.unit.shape[1]

    @property
    def row_weight(self) -> Floats:
        """The weight of each impression, 0 where padded, shape (N, L)."""
        return self.shown * self.weight[:, np.newaxis]

    @property
    def previous_click(self) -> Integers:
        """Position of the last click above each impression, 0 without a click above, shape (N, L).

        E.g.: position [1, 2, 4, 5], click [0, 1, 1, 0] -> [0, 0, 2, 4].
        """
        if self.clicked_above is not None:
            return self.clicked_above
        clicked = np.maximum.accumulate(np.where(self.click, self.position, 0), axis=1)
        return np.concatenate([np.zeros((self.n_pages, 1), dtype=np.int64), clicked[:, :-1]], axis=1)

    def with_clicks(self, click: Flags) -> "PageBatch":
        """The same pages with other clicks."""
        return replace(self, click=click & self.shown)

    def take(self, pages: slice | Integers) -> "PageBatch":
        """Select pages."""
        above = None if self.clicked_above is None else self.clicked_above[pages]
        unit, position, click, shown = self.unit[pages], self.position[pages], self.click[pages], self.shown[pages]
        return PageBatch(unit, position, click, shown, self.weight[pages], above)


UNIT = "posbias_unit"
"""The column of unit numbers."""

MOST_RANKS = 1_000
"""Largest number of results of a page for click models: each pass goes down the pages rank by rank."""

_IMPRESSIONS = 1 << 16  # per batch


def page_batches(impressions: pl.DataFrame) -> list[PageBatch]:
    """Distinct pages as matrices, in batches of pages of equal length, so that nothing is padded.

    Args:
        impressions: `session`, `position`, `click` and UNIT, in any order; optionally `weight`.
    """
    return [batch for (pages,) in distinct_pages(impressions, (UNIT,)) for batch in small_batches(pages)]


def page_bounds(session: pl.Series) -> tuple[Integers, Integers]:
    """First row and number of rows of each page, from the sessions of impressions in page order."""
    starts = np.flatnonzero((session != session.shift(1)).fill_null(value=True).to_numpy())
    return starts, np.diff(np.append(starts, len(session)))


def distinct_pages(impressions: pl.DataFrame, units: Sequence[str]) -> list[tuple[pl.DataFrame, ...]]:
    """Distinct pages by length, one row per page: `shown r` (2 unit + click), `position r` by rank, and `weight`.

    One frame for each column of units, with the same pages in the same order. Pages are distinct where any of the
    columns distinguishes them. (Units that a model has not learnt share a number, so that pages may be equal in one
    column of units and distinct in another.)

    Args:
        impressions: as for `page_batches`, with `units` in place of UNIT.
        units: columns of unit numbers.

    Raises:
        SchemaError: the weights of a page differ, or a page has more than `MOST_RANKS` results.
    """
    in_order = in_page_order(impressions)
    session = in_order[SESSION]
    starts, length = page_bounds(session)
    longest = int(length.max(initial=0))
    if longest > MOST_RANKS:
        raise SchemaError(
            f"the page of session {session[int(starts[np.argmax(length)])]} shows {longest:,} results, and click "
            f"models are fitted rank by rank, to pages of up to {MOST_RANKS:,}. Leave out what stands further down "
            f"(fit --max-position {MOST_RANKS}), or use `posbias fit --model pbm`, which takes longer pages."
        )
    weight = None
    if WEIGHT in in_order.columns:
        by_row = in_order[WEIGHT].cast(pl.Float64).to_numpy()
        weight = by_row[starts]
        first = np.repeat(weight, length)
        differs = np.flatnonzero(by_row != first)
        if len(differs):
            row = int(differs[0])
            raise SchemaError(
                f"--weight-column: the impressions of session {session[row]} weigh {first[row]:g} and {by_row[row]:g}. "
                "A click model counts whole pages: give all impressions of a page one weight, or leave the option out."
            )
    click = (in_order[CLICK] > 0).cast(pl.Int64).to_numpy()
    shown = {unit: 2 * in_order[unit].cast(pl.Int64).to_numpy() + click for unit in units}
    position = in_order[POSITION].cast(pl.Int32).to_numpy()
    tables: list[tuple[pl.DataFrame, ...]] = []
    for n_ranks in np.unique(length).tolist():
        pages = np.flatnonzero(length == n_ranks)
        rows = starts[pages, np.newaxis] + np.arange(n_ranks, dtype=np.int64)
        frame = pl.DataFrame(
            {f"{unit} {rank}": shown[unit][rows[:, rank]] for unit in units for rank in range(n_ranks)}
            | {f"position {rank}": position[rows[:, rank]] for rank in range(n_ranks)}
            | {WEIGHT: np.ones(len(pages)) if weight is None else weight[pages]}
        )
        distinct = frame.group_by(pl.exclude(WEIGHT), maintain_order=True).sum()
        positions = [f"position {rank}" for rank in range(n_ranks)]
        shown_in = ([pl.col(f"{unit} {rank}").alias(f"shown {rank}") for rank in range(n_ranks)] for unit in units)
        tables.append(tuple(distinct.select(*columns, *positions, WEIGHT) for columns in shown_in))
    return tables


def to_batch(pages: pl.DataFrame) -> PageBatch:
    """Convert a frame of `distinct_pages` to matrices, in column-major order, as models go down them rank by rank."""
    ranks = range(_n_ranks(pages))
    # In NumPy: for few rows, joining the columns in Polars would take longer than their use
    shown, position = (np.empty((pages.height, len(ranks)), dtype=np.int64, order="F") for _ in range(2))
    for rank in ranks:
        shown[:, rank] = pages[f"shown {rank}"].to_numpy()
        position[:, rank] = pages[f"position {rank}"].to_numpy()
    above = pages[PREVIOUS_CLICK].cast(pl.Int64).to_numpy()[:, np.newaxis] if PREVIOUS_CLICK in pages.columns else None
    unpadded = np.ones(shown.shape, dtype=np.bool_, order="F")
    return PageBatch(shown >> 1, position, (shown & 1) == 1, unpadded, pages[WEIGHT].to_numpy(), above)


def small_batches(pages: pl.DataFrame) -> Iterator[PageBatch]:
    """Split a frame of `distinct_pages` into batches whose arrays fit into the processor's cache."""
    n_pages = max(_IMPRESSIONS // _n_ranks(pages), 1)
    return (to_batch(rows) for rows in pages.iter_slices(n_pages))


def _n_ranks(pages: pl.DataFrame) -> int:
    return sum(name.startswith("shown ") for name in pages.columns)


Certain = Callable[[PageBatch], Flags]
"""Mark certain impressions, shape (N, L): the first of a page, none or all; see `ClickModel.certain`."""


def uncertain_pages(batches: Iterable[PageBatch], certain: Certain) -> list[pl.DataFrame]:
    """The pages without their certain impressions, as frames of `distinct_pages`."""
    by_length: dict[int, list[pl.DataFrame]] = {}
    for batch in batches:
        first, end = (certain(batch) & batch.shown).sum(axis=1), batch.shown.sum(axis=1)
        spans = first * (batch.n_ranks + 1) + end
        shown = 2 * batch.unit + batch.click
        for span in np.unique(spans[first < end]).tolist():
            pages, (top, bottom) = np.flatnonzero(spans == span), divmod(span, batch.n_ranks + 1)
            ranks = range(top, bottom)
            remaining = pl.DataFrame(
                {f"shown {rank - top}": shown[pages, rank] for rank in ranks}
                | {f"position {rank - top}": batch.position[pages, rank].astype(np.int32) for rank in ranks}
                | {WEIGHT: batch.weight[pages]}
            )
            by_length.setdefault(len(ranks), []).append(remaining)
    return [
        pl.concat(pages).group_by(pl.exclude(WEIGHT), maintain_order=True).sum().sort("shown 0", maintain_order=True)
        for _, pages in sorted(by_length.items())
    ]


def uncertain_rows(batches: Iterable[PageBatch], certain: Certain) -> Iterator[PageBatch]:
    """The uncertain pages of a single impression each, in their order."""
    for batch in batches:
        uncertain = ~certain(batch)[:, 0]
        if uncertain.all():
            yield batch
        elif uncertain.any():
            yield batch.take(np.flatnonzero(uncertain))


_FINEST, _STEP = 0.05, 0.05
"""Bins of log(f + finest) and log(a + finest), within which units are averaged. Counts up to about twenty stay
distinct, and the error of the digamma function at the means of a bin is about a ten-thousandth; any log gives at most
about ten thousand bins."""

_UNITS = 1 << 20  # per block
STRENGTHS = (0.05, 5000.0)
MEANS = (1e-4, 1 - 1e-4)
_LOG_STRENGTH_SD = 2.0  # of the prior of the log strength, around log 2


def estimate_beta_prior(successes: Floats, trials: Floats, multiplicity: Floats | None) -> BetaPrior:
    """Estimate a Beta prior by its mode: the marginal likelihood of the counts with a weak prior on mean and strength.

    Args:
        successes: f, shape (J,).
        trials: f + a >= f, shape (J,).
        multiplicity: of each unit, shape (J,); None: 1.
    """
    times = np.broadcast_to(1.0, trials.shape) if multiplicity is None else multiplicity
    m, f, against = _bins(successes, np.maximum(trials - successes, 0.0), times)

    def derivatives(at: Floats) -> Derivatives:
        v, s = 1 / (1 + np.exp(-at[0])), np.exp(at[1])
        a, b = np.array([s * v]), np.array([s * (1 - v)])
        likelihood = m @ (scipy.special.betaln(a + f, b + against) - scipy.special.betaln(a, b))
        first, second = (
            (m @ (g(a + f) - g(a)), m @ (g(b + against) - g(b)), m @ (g(a + b + f + against) - g(a + b)))
            for g in (scipy.special.psi, partial(scipy.special.polygamma, 1))
        )
        jacobian = np.array([[s * v * (1 - v), -s * v * (1 - v)], [s * v, s * (1 - v)]])  # of a, b by logit v, log s
        slope = jacobian @ [first[0] - first[2], first[1] - first[2]]
        hessian = jacobian @ (np.diag(second[:2]) - second[2]) @ jacobian.T
        hessian += slope[0] * np.array([[1 - 2 * v, 1], [1, 0]])
        hessian += np.diag([-2 * v * (1 - v), slope[1] - 1 / _LOG_STRENGTH_SD**2])
        value = likelihood + np.log(v) + np.log(1 - v) - (np.log(s / 2) / _LOG_STRENGTH_SD) ** 2 / 2
        slope += [1 - 2 * v, -np.log(s / 2) / _LOG_STRENGTH_SD**2]
        return -float(value) / scale, -slope / scale, -hessian / scale

    scale = max(float(m.sum()), 1.0)
    rate = float(np.clip((m @ f + 0.5) / (m @ (f + against) + 1), *MEANS))
    means = np.array(MEANS)
    limits = np.array([np.log(means / (1 - means)), np.log(STRENGTHS)])
    optimum = minimize_within(derivatives, np.array([np.log(rate / (1 - rate)), np.log(2.0)]), limits)
    return BetaPrior(float(1 / (1 + np.exp(-optimum[0]))), float(np.exp(optimum[1])))


def _bins(successes: Floats, failures: Floats, multiplicity: Floats) -> tuple[Floats, Floats, Floats]:
    """Bin units by their counts: number of units, mean successes and mean failures by bin, shape (B,) each."""

    def bin_of(counts: Floats) -> Integers:
        return (np.log1p(counts / _FINEST) / _STEP).astype(np.int64)

    highest = int(bin_of(np.array([successes.max(initial=0), failures.max(initial=0)])).max())
    sums = np.zeros((3, (highest + 1) ** 2))
    for start in range(0, len(successes), _UNITS):
        block = slice(start, start + _UNITS)
        f, a, m = successes[block], failures[block], multiplicity[block] * (successes[block] + failures[block] > 0)
        number = bin_of(f) * (highest + 1) + bin_of(a)
        sums += np.stack([np.bincount(number, values, minlength=sums.shape[1]) for values in (m, m * f, m * a)])
    units, f, a = sums[:, sums[0] > 0]
    return units, f / units, a / units


Shape = Literal["unit", "one", "position", "position and previous click"]
"""The index of a parameter: units, none, the position k, or k and the position k' of the last click above (0: none)."""


@dataclass(frozen=True)
class Parameter:
    """A probability, or an array of probabilities, of a click model."""

    name: str  # as in the paper: attractiveness, satisfaction, examination, continuation
    shape: Shape
    start: float = 0.5  # where EM starts
    prior: BetaPrior | None = None  # of a parameter by unit whose prior is not identified by the log

    def dimensions(self, n_units: int, n_positions: int) -> tuple[int, ...]:
        """Shape of the array: (J + 1,), (), (K + 1,) or (K + 1, K + 1)."""
        by_position = n_positions + 1
        shapes = {"unit": (n_units + 1,), "one": (), "position": (by_position,)}
        return shapes.get(self.shape, (by_position, by_position))


Parameters = Mapping[str, Floats]
"""Values in [0, 1] by name of the parameter. By unit, shape (J + 1,): the last value is that of units never seen. By
position, shape (K + 1,), index k for position k; `at_position` uses the value of K for positions beyond K."""


@dataclass(frozen=True)
class Ratio:
    """Expected trials and successes of a parameter; its estimate is their ratio."""

    successes: Floats  # shape (N, L), or that of the parameter
    trials: Floats  # the same shape, >= successes

    def times(self, weight: Floats) -> "Ratio":
        """Multiply both by a weight of the same shape."""
        return Ratio(weight * self.successes, weight * self.trials)


def at_position(values: Floats, position: Integers) -> Floats:
    """Values by position, shape (K + 1,), at positions of any shape; the value of K beyond K."""
    return values[np.minimum(position, len(values) - 1)]


def effective_row_counts(ratio: Ratio, x: Floats) -> Ratio:
    """Contribution of each impression to the effective counts f and f + a of its unit, possibly negative.

    Args:
        ratio: expected successes and trials, shape (N, L).
        x: the parameter of each impression, in (0, 1), shape (N, L).
    """
    certain = np.floor(ratio.successes)
    hidden = ratio.successes - certain
    slope = hidden / x - (ratio.trials - ratio.successes) / (1 - x)
    successes = x**2 * slope * ((1 - x) * slope + 1) + certain
    failures = (1 - x) ** 2 * slope * (x * slope - 1)
    return Ratio(successes, successes + failures)


def effective_unit_counts(sums: Ratio, x: Floats) -> Ratio:
    """Effective counts f and f + a: non-negative, of the same slope f / x - a / (1 - x) of the log-likelihood at x.

    Args:
        sums: of `effective_row_counts`, by unit.
        x: the parameter by unit.
    """
    f, a = sums.successes, sums.trials - sums.successes
    slope = f / x - a / (1 - x)
    successes = np.where(f < 0, 0.0, np.where(a < 0, slope * x, f))
    failures = np.where(a < 0, 0.0, np.where(f < 0, -slope * (1 - x), a))
    return Ratio(successes, successes + failures)


SMALLEST_PROBABILITY = 1e-6
"""Least distance of parameters from 0 and 1, where EM divides by zero, and an observed click may be impossible."""

BOUNDS = SMALLEST_PROBABILITY, 1 - SMALLEST_PROBABILITY


def click_log_likelihood(given_clicks: Floats, pages: PageBatch) -> Floats:
    """Ln P(click, or no click) of each impression, shape (N, L), at least ln 1e-6.

    Args:
        given_clicks: the probability of a click, shape (N, L).
        pages: with clicks.
    """
    probability = np.clip(given_clicks, *BOUNDS)
    return np.log(np.where(pages.click, probability, 1 - probability))


def bernoulli_log_likelihood(ratio: Ratio, x: Floats) -> Floats:
    """F ln x + (n - f) ln(1 - x) of f successes in n trials, 0 < x < 1, in the shape of the parameter."""
    return ratio.successes * np.log(x) + (ratio.trials - ratio.successes) * np.log1p(-x)


_ENTRIES = 1 << 20
"""Entries of signatures that are compared with each other, approximately at most; about 100 bytes each."""

Keep = Callable[[pl.DataFrame, int], Iterable[PageBatch]]
"""Store rows under a number, on disk if memory is short, and return an iterable that reads them again each time."""


@dataclass(frozen=True)
class Signatures:
    """Pages of a single impression each, whose units are signatures."""

    rows: Sequence[Iterable[PageBatch]]  # groups of batches; `weight` is that of one unit of the signature
    of_unit: Integers  # shape (J + 1,), signature of each unit, from 0; S for units without rows, and for the last unit
    n_units: int  # S, the number of signatures
    n_positions: int  # K, the largest position
    certain: Certain | None = None  # marks rows to skip

    def __iter__(self) -> Iterator[PageBatch]:
        """Iterate over the batches, always in the same order."""
        batches = chain.from_iterable(self.rows)
        return batches if self.certain is None else uncertain_rows(batches, self.certain)

    @cached_property
    def multiplicity(self) -> Floats:
        """Number of units with each signature, shape (S + 1,)."""
        return np.bincount(self.of_unit, minlength=self.n_units + 1).astype(np.float64)

    def without(self, left_out: Flags) -> "Signatures":
        """Remove the rows of units, marked in an array of shape (J + 1,).

        Removed units of signature s get signature S + s, so that EM can start from their values.
        """
        of_unit = np.where(left_out | (self.of_unit == self.n_units), self.n_units, 0) + self.of_unit
        return replace(self, of_unit=of_unit, n_units=2 * self.n_units)

    def uncertain(self, certain: Certain) -> "Signatures":
        """The signatures without their certain rows."""
        rows = [tuple(uncertain_rows(group, certain)) if isinstance(group, tuple) else group for group in self.rows]
        return replace(self, rows=rows, certain=certain)


def find_signatures(
    parts: Iterable[Iterable[PageBatch]], columns: Sequence[str], n_units: int, n_positions: int, keep: Keep
) -> Signatures:
    """Group the units of a log by signature; equal signatures are not merged across groups that memory separates.

    Args:
        parts: pages by part; all pages of a unit are in one part.
        columns: on which a click depends besides its unit: `position`, and for some models `previous_click`.
        n_units: J.
        n_positions: K.
        keep: stores the rows of a group of signatures.
    """
    n_above = n_positions + 1 if PREVIOUS_CLICK in columns else 1  # number of values of the last click above
    n_cells = (n_positions + 1) * n_above
    no_number, no_sum = np.empty(0, np.int64), np.empty(0)
    of_unit, rows, n_stored = np.full(n_units + 1, -1), list[Iterable[PageBatch]](), 0
    empty = CountTable(n_cells, np.zeros(1, np.int64), no_number, no_sum, no_sum, no_sum)
    units, signature, table = no_number, no_number, empty  # of the current group

    def store(keep: Keep) -> None:
        """Store the rows of the table, two per entry, without and with a click, if their weight is not 0."""
        nonlocal n_stored, units, signature, table
        of_unit[units] = n_stored + signature
        position, above = np.divmod(table.cell, n_above)
        place = {"position 0": np.repeat(position, 2)}
        if PREVIOUS_CLICK in columns:
            place[PREVIOUS_CLICK] = np.repeat(above, 2)
        shown = 2 * np.repeat(n_stored + table.unit_of_entry, 2) + np.tile([0, 1], table.n_entries)
        weight = np.column_stack([table.impressions - table.clicks, table.clicks]).ravel()
        frame = pl.DataFrame({"shown 0": shown, **place, WEIGHT: weight}).filter(pl.col(WEIGHT) > 0)
        rows.append(keep(frame, len(rows)))
        n_stored += table.n_units
        units, signature, table = no_number, no_number, empty

    for batches in parts:
        counts = count_rows(batches, columns)
        unit, cell = counts[UNIT].to_numpy(), counts[POSITION].to_numpy() * n_above
        if PREVIOUS_CLICK in columns:
            cell += counts[PREVIOUS_CLICK].to_numpy()
        first = np.flatnonzero(np.diff(unit, prepend=-1))
        sums = counts[IMPRESSIONS].to_numpy(), counts[CLICKS].to_numpy()
        counted = CountTable(n_cells, np.append(first, len(unit)), cell, *sums, np.ones(len(first)))
        numbers = np.concatenate([signature, table.n_units + np.arange(counted.n_units)])
        units, tables = np.concatenate([units, unit[first]]), [table, counted]
        del table, counted, counts, sums, unit, cell  # frees memory
        table, number = compress(concatenate(tables))
        signature = number[numbers]
        if table.n_entries > _ENTRIES:
            store(keep)
    store(lambda last, _: tuple(small_batches(last)))
    return Signatures(tuple(rows), np.where(of_unit < 0, n_stored, of_unit), n_stored, n_positions)


def count_rows(batches: Iterable[PageBatch], columns: Sequence[str]) -> pl.DataFrame:
    """Sum the weights of impressions and clicks (`impressions`, `clicks`) by UNIT and columns, sorted by these.

    Args:
        batches: pages.
        columns: `position`, and optionally `previous_click`.
    """
    keys = (UNIT, *columns)
    frames: list[pl.DataFrame] = []
    for batch in batches:
        shown, weight = batch.shown, batch.row_weight
        rows = {
            UNIT: batch.unit[shown],
            POSITION: batch.position[shown],
            **({PREVIOUS_CLICK: batch.previous_click[shown]} if PREVIOUS_CLICK in columns else {}),
            IMPRESSIONS: weight[shown],
            CLICKS: (weight * batch.click)[shown],
        }
        frames.append(pl.DataFrame(rows).group_by(keys, maintain_order=True).sum())
    return pl.concat(frames).group_by(keys, maintain_order=True).sum().sort(keys)


@dataclass(frozen=True)
class PagesInMemory:
    """Pages to learn from, held in memory."""

    batches: tuple[PageBatch, ...]
    n_units: int  # J
    n_positions: int  # K

    def __iter__(self) -> Iterator[PageBatch]:
        """Iterate over the batches."""
        return iter(self.batches)

    def uncertain(self, certain: Certain) -> "PagesInMemory":
        """The pages without their certain impressions."""
        uncertain = uncertain_pages(self.batches, certain)
        return replace(self, batches=tuple(batch for pages in uncertain for batch in small_batches(pages)))

    def signatures(self, columns: Sequence[str]) -> Signatures:
        """Group units by signature."""
        return find_signatures(
            [self.batches], columns, self.n_units, self.n_positions, lambda rows, _: tuple(small_batches(rows))
        )
