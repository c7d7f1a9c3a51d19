"""Pages as click models take them: matrices, one row a page, and signatures of equal impressions.

Where a click depends on nothing but its unit, its position and, in some models, the last click above it, all that EM
knows of a unit is the multiset {(cell, n, c)} of its impressions and clicks: its *signature*. What all units share adds
up over units, so that a signature counts as often as it occurs; what each unit has of its own is estimated once
for all of them.
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
    """N pages of at most L impressions; equal pages stand once, with their number. Shorter ones are padded below.

    A unit is what has parameters of its own: a (query, document), or what else the model's `unit_columns` say. Its
    number is J, one more than the last, where it was not seen when the model was fitted. All but `weight` have the
    shape (N, L).
    """

    unit: Integers  # 0 where padded
    position: Integers  # from 1, rising along a page, with gaps where the log has them; 1 where padded
    click: Flags  # False where padded
    shown: Flags  # False where padded
    weight: Floats  # shape (N,), how often the page occurred, or the sum of its weights
    clicked_above: Integers | None = None  # `previous_click` where rows stand by themselves (see `signatures`)

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
        """The position of the last click above each impression, 0 where there is none, shape (N, L).

        E.g.: position [1, 2, 4, 5], click [0, 1, 1, 0] -> [0, 0, 2, 4].
        """
        if self.clicked_above is not None:
            return self.clicked_above
        clicked = np.maximum.accumulate(np.where(self.click, self.position, 0), axis=1)
        return np.concatenate([np.zeros((self.n_pages, 1), dtype=np.int64), clicked[:, :-1]], axis=1)

    def with_clicks(self, click: Flags) -> "PageBatch":
        """The same pages with other clicks."""
        return replace(self, click=click & self.shown)

    def some(self, pages: slice | Integers) -> "PageBatch":
        """A selection of the pages."""
        above = None if self.clicked_above is None else self.clicked_above[pages]
        unit, position, click, shown = self.unit[pages], self.position[pages], self.click[pages], self.shown[pages]
        return PageBatch(unit, position, click, shown, self.weight[pages], above)


UNIT = "posbias_unit"
"""The column that numbers what is shown, from 0."""

MOST_RANKS = 1_000
"""Results of a page up to which click models are fitted: each pass over the pages goes down them one by one."""

_IMPRESSIONS_AT_ONCE = 1 << 16


def page_batches(impressions: pl.DataFrame) -> list[PageBatch]:
    """Pages as matrices, those of one length together, so that nothing is padded; equal pages once, with their number.

    Args:
        impressions: `session`, `position`, `click` and UNIT, in any order; `weight` where pages have one.
    """
    return [batch for (pages,) in pages_in_numberings(impressions, (UNIT,)) for batch in small_batches(pages)]


def starts_and_lengths(session: pl.Series) -> tuple[Integers, Integers]:
    """The first row of each page and its number of rows, of impressions in page order."""
    starts = np.flatnonzero((session != session.shift(1)).fill_null(value=True).to_numpy())
    return starts, np.diff(np.append(starts, len(session)))


def pages_in_numberings(impressions: pl.DataFrame, units: Sequence[str]) -> list[tuple[pl.DataFrame, ...]]:
    """The different pages of each length, one row a page: what it shows, at which positions, and how often it occurred.

    What is shown may have several numberings, each with a frame of its own: a row is one page in each of them.

    Pages are different where they are in one of the numberings. (What was not learnt has one number for all, so that
    pages may be equal in one numbering and not in another.)

    Args:
        impressions: as of `page_batches`, with a column of each numbering in place of UNIT.
        units: these columns.

    Raises:
        SchemaError: the weights of a page differ, or it is too long.
    """
    in_order = in_page_order(impressions)
    session = in_order[SESSION]
    starts, length = starts_and_lengths(session)
    longest = int(length.max(initial=0))
    if longest > MOST_RANKS:
        raise SchemaError(
            f"the page of session {session[int(starts[np.argmax(length)])]} shows {longest:,} results, and click "
            f"models are fitted rank by rank, to pages of up to {MOST_RANKS:,}. Leave out what stands further down "
            f"(fit --max-position {MOST_RANKS}), or use `posbias fit --model pbm`, which takes longer pages."
        )
    weight = None
    if WEIGHT in in_order.columns:
        of_row = in_order[WEIGHT].cast(pl.Float64).to_numpy()
        weight = of_row[starts]
        of_first = np.repeat(weight, length)
        differs = np.flatnonzero(of_row != of_first)
        if len(differs):
            row = int(differs[0])
            raise SchemaError(
                f"--weight-column: the impressions of session {session[row]} weigh {of_first[row]:g} and "
                f"{of_row[row]:g}. A click model counts whole pages: give all impressions of a page one weight, or "
                "leave the option out."
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
        once = frame.group_by(pl.exclude(WEIGHT), maintain_order=True).sum()
        positions = [f"position {rank}" for rank in range(n_ranks)]
        shown_in = ([pl.col(f"{unit} {rank}").alias(f"shown {rank}") for rank in range(n_ranks)] for unit in units)
        tables.append(tuple(once.select(*columns, *positions, WEIGHT) for columns in shown_in))
    return tables


def as_batch(pages: pl.DataFrame) -> PageBatch:
    """The matrices of `pages_in_numberings`, their columns each in one piece, as models go down them rank by rank."""
    ranks = range(_n_ranks(pages))
    # In NumPy: for few rows Polars would take longer to put columns side by side than what is done with them
    shown, position = (np.empty((pages.height, len(ranks)), dtype=np.int64, order="F") for _ in range(2))
    for rank in ranks:
        shown[:, rank] = pages[f"shown {rank}"].to_numpy()
        position[:, rank] = pages[f"position {rank}"].to_numpy()
    above = pages[PREVIOUS_CLICK].cast(pl.Int64).to_numpy()[:, np.newaxis] if PREVIOUS_CLICK in pages.columns else None
    everywhere = np.ones(shown.shape, dtype=np.bool_, order="F")
    return PageBatch(shown >> 1, position, (shown & 1) == 1, everywhere, pages[WEIGHT].to_numpy(), above)


def small_batches(pages: pl.DataFrame) -> Iterator[PageBatch]:
    """The matrices of pages, so few at a time that what is computed of them stays in the processor's cache."""
    n_pages = max(_IMPRESSIONS_AT_ONCE // _n_ranks(pages), 1)
    return (as_batch(some) for some in pages.iter_slices(n_pages))


def _n_ranks(pages: pl.DataFrame) -> int:
    return sum(name.startswith("shown ") for name in pages.columns)


Certain = Callable[[PageBatch], Flags]
"""Marks impressions that are certain, shape (N, L): on each page the top, nothing or all; see `ClickModel`."""


def uncertain_pages(batches: Iterable[PageBatch], certain: Certain) -> list[pl.DataFrame]:
    """The uncertain part of the pages, as of `pages_in_numberings`: those of one length together, equal ones once.

    Args:
        batches: whole pages.
        certain: which of their impressions are left out.
    """
    by_length: dict[int, list[pl.DataFrame]] = {}
    for batch in batches:
        first, end = (certain(batch) & batch.shown).sum(axis=1), batch.shown.sum(axis=1)
        spans = first * (batch.n_ranks + 1) + end
        shown = 2 * batch.unit + batch.click
        for span in np.unique(spans[first < end]).tolist():  # those that begin and end alike together
            pages, (top, bottom) = np.flatnonzero(spans == span), divmod(span, batch.n_ranks + 1)
            ranks = range(top, bottom)
            left = pl.DataFrame(
                {f"shown {rank - top}": shown[pages, rank] for rank in ranks}
                | {f"position {rank - top}": batch.position[pages, rank].astype(np.int32) for rank in ranks}
                | {WEIGHT: batch.weight[pages]}
            )
            by_length.setdefault(len(ranks), []).append(left)
    return [
        pl.concat(pages).group_by(pl.exclude(WEIGHT), maintain_order=True).sum().sort("shown 0", maintain_order=True)
        for _, pages in sorted(by_length.items())
    ]


def uncertain_rows(batches: Iterable[PageBatch], certain: Certain) -> Iterator[PageBatch]:
    """The uncertain part of pages of one impression each, in their order."""
    for batch in batches:
        left = ~certain(batch)[:, 0]
        if left.all():
            yield batch
        elif left.any():
            yield batch.some(np.flatnonzero(left))


_FINEST, _STEP = 0.05, 0.05
"""Units whose log(f + finest) and log(a + finest) are as near as a step stand for each other. Counts of some twenty are
still distinct, and each cell has the mean of its counts, so that the digamma function is off by a ten-thousandth; a
log gives some ten thousand cells at most, however large it is."""

_UNITS_AT_ONCE = 1 << 20
STRENGTHS = (0.05, 5000.0)
MEANS = (1e-4, 1 - 1e-4)
_SPREAD_OF_LOG_STRENGTH = 2.0


def estimate_prior(favourable: Floats, decided: Floats, multiplicity: Floats | None) -> BetaPrior:
    """The Beta prior by marginal likelihood. Neither the order of units nor how they are numbered changes it.

    Args:
        favourable: f, shape (J,).
        decided: d >= f, shape (J,).
        multiplicity: how many units each stands for, shape (J,); None: one.
    """
    times = np.broadcast_to(1.0, decided.shape) if multiplicity is None else multiplicity
    m, f, against = _cells(favourable, np.maximum(decided - favourable, 0.0), times)

    def derivatives(at: Floats) -> Derivatives:
        v, s = 1 / (1 + np.exp(-at[0])), np.exp(at[1])
        a, b = np.array([s * v]), np.array([s * (1 - v)])
        likelihood = m @ (scipy.special.betaln(a + f, b + against) - scipy.special.betaln(a, b))
        slopes, bends = (
            (m @ (of(a + f) - of(a)), m @ (of(b + against) - of(b)), m @ (of(a + b + f + against) - of(a + b)))
            for of in (scipy.special.psi, partial(scipy.special.polygamma, 1))
        )
        by_a, by_b = slopes[0] - slopes[2], slopes[1] - slopes[2]
        of_a_and_b = np.array([[s * v * (1 - v), -s * v * (1 - v)], [s * v, s * (1 - v)]])  # by logit v and log s
        slope = of_a_and_b @ [by_a, by_b]
        bend = of_a_and_b @ (np.diag(bends[:2]) - bends[2]) @ of_a_and_b.T
        bend += slope[0] * np.array([[1 - 2 * v, 1], [1, 0]])
        bend += np.diag([-2 * v * (1 - v), slope[1] - 1 / _SPREAD_OF_LOG_STRENGTH**2])
        value = likelihood + np.log(v) + np.log(1 - v) - (np.log(s / 2) / _SPREAD_OF_LOG_STRENGTH) ** 2 / 2
        slope += [1 - 2 * v, -np.log(s / 2) / _SPREAD_OF_LOG_STRENGTH**2]
        return -float(value) / scale, -slope / scale, -bend / scale

    scale = max(float(m.sum()), 1.0)
    rate = float(np.clip((m @ f + 0.5) / (m @ (f + against) + 1), *MEANS))
    means = np.array(MEANS)
    limits = np.array([np.log(means / (1 - means)), np.log(STRENGTHS)])
    optimum = minimize_within(derivatives, np.array([np.log(rate / (1 - rate)), np.log(2.0)]), limits)
    return BetaPrior(float(1 / (1 + np.exp(-optimum[0]))), float(np.exp(optimum[1])))


def _cells(favourable: Floats, against: Floats, multiplicity: Floats) -> tuple[Floats, Floats, Floats]:
    """Units of about the same counts, shape (cells,) each: how many they are, and the means of their counts."""

    def place_of(counts: Floats) -> Integers:
        return (np.log1p(counts / _FINEST) / _STEP).astype(np.int64)

    highest = int(place_of(np.array([favourable.max(initial=0), against.max(initial=0)])).max())
    sums = np.zeros((3, (highest + 1) ** 2))
    for start in range(0, len(favourable), _UNITS_AT_ONCE):
        some = slice(start, start + _UNITS_AT_ONCE)
        f, a, m = favourable[some], against[some], multiplicity[some] * (favourable[some] + against[some] > 0)
        place = place_of(f) * (highest + 1) + place_of(a)
        sums += np.stack([np.bincount(place, of_unit, minlength=sums.shape[1]) for of_unit in (m, m * f, m * a)])
    units, f, a = sums[:, sums[0] > 0]
    return units, f / units, a / units


Shape = Literal["unit", "one", "position", "position and previous click"]
"""The index of a parameter: units, nothing, the position k (at index k), or k and the last click above (k, k')."""


@dataclass(frozen=True)
class Parameter:
    """One probability of a click model."""

    name: str  # in the paper's words: attractiveness, satisfaction, examination, continuation
    shape: Shape  # what it differs by
    start: float = 0.5  # where EM starts
    prior: BetaPrior | None = None  # of a parameter by unit that the log cannot tell unless others are given

    def dimensions(self, n_units: int, n_positions: int) -> tuple[int, ...]:
        """The shape of its array: (J + 1,), (), (K + 1,) or (K + 1, K + 1)."""
        by_position = n_positions + 1
        shapes = {"unit": (n_units + 1,), "one": (), "position": (by_position,)}
        return shapes.get(self.shape, (by_position, by_position))


Parameters = Mapping[str, Floats]
"""Values in [0, 1] by the name of a parameter. By unit, shape (J + 1,): the last is that of units never seen. By
position, shape (K + 1,), index k for position k; whoever asks for one below K gets that of K."""


@dataclass(frozen=True)
class Ratio:
    """Sums of one parameter over a batch: how often it is expected to be decided, and how often in its favour."""

    favourable: Floats  # shape (N, L)
    decided: Floats  # shape (N, L), >= favourable

    def times(self, weight: Floats) -> "Ratio":
        """Both as often as a weight says, shape (N, L)."""
        return Ratio(weight * self.favourable, weight * self.decided)


def at_position(values: Floats, position: Integers) -> Floats:
    """Values by position, shape (K + 1,), at positions of any shape; those beyond K get the value of K."""
    return values[np.minimum(position, len(values) - 1)]


def of_rows(ratio: Ratio, x: Floats) -> Ratio:
    """The contribution of each row to f and to f + a, which may be negative.

    Args:
        ratio: f_i and d_i, shape (N, L).
        x: the parameter of each row, in (0, 1), shape (N, L).
    """
    certain = np.floor(ratio.favourable)
    hidden = ratio.favourable - certain
    slope = hidden / x - (ratio.decided - ratio.favourable) / (1 - x)
    favourable = x**2 * slope * ((1 - x) * slope + 1) + certain
    against = (1 - x) ** 2 * slope * (x * slope - 1)
    return Ratio(favourable, favourable + against)


def of_units(sums: Ratio, x: Floats) -> Ratio:
    """The effective counts f and f + a.

    Args:
        sums: of `of_rows`, by unit.
        x: the parameter by unit.
    """
    f, a = sums.favourable, sums.decided - sums.favourable
    slope = f / x - a / (1 - x)
    favourable = np.where(f < 0, 0.0, np.where(a < 0, slope * x, f))
    against = np.where(a < 0, 0.0, np.where(f < 0, -slope * (1 - x), a))
    return Ratio(favourable, favourable + against)


SMALLEST_PROBABILITY = 1e-6
"""Parameters keep this far from 0 and 1: at the ends, EM divides by zero, and a single click would be impossible."""

BOUNDS = SMALLEST_PROBABILITY, 1 - SMALLEST_PROBABILITY


def log_of_clicks(given_clicks: Floats, pages: PageBatch) -> Floats:
    """The logarithm of the probability of what happened, click or none, shape (N, L), bounded away from minus infinity.

    Args:
        given_clicks: the probability of a click, shape (N, L).
        pages: with clicks.
    """
    probability = np.clip(given_clicks, *BOUNDS)
    return np.log(np.where(pages.click, probability, 1 - probability))


def log_of_decisions(decisions: Ratio, values: Floats) -> Floats:
    """The logarithm of x^f (1 - x)^(d - f), in the shape of the parameter.

    Args:
        decisions: d and those in favour, f.
        values: x, strictly between 0 and 1.
    """
    against = decisions.decided - decisions.favourable
    return decisions.favourable * np.log(values) + against * np.log1p(-values)


_ENTRIES_AT_ONCE = 1 << 20
"""About the most entries of signatures that are compared with each other: in memory, some 100 bytes each."""

Keep = Callable[[pl.DataFrame, int], Iterable[PageBatch]]
"""Puts rows aside, under a number, where memory is short, and gives them back for each pass."""


@dataclass(frozen=True)
class Signatures:
    """Pages of one impression each, whose units are signatures."""

    rows: Sequence[Iterable[PageBatch]]  # batches of them, in groups; `weight` is that of one unit of the signature
    of_unit: Integers  # shape (J + 1,), the signature of each unit, from 0; S of units without any row, as the last one
    n_units: int  # S, the number of signatures
    n_positions: int  # K, the largest position
    certain: Certain | None = None  # marks rows that are left out

    def __iter__(self) -> Iterator[PageBatch]:
        """The batches, always in the same order."""
        batches = chain.from_iterable(self.rows)
        return batches if self.certain is None else uncertain_rows(batches, self.certain)

    @cached_property
    def multiplicity(self) -> Floats:
        """Number of units with each signature, shape (S + 1,)."""
        return np.bincount(self.of_unit, minlength=self.n_units + 1).astype(np.float64)

    def without(self, left_out: Flags) -> "Signatures":
        """The signatures of a log without the pages of some units, shape (J + 1,), which are left without any row.

        Those of one signature still have one in common, 2 S in all, so that EM may begin from values that they had.
        """
        of_unit = np.where(left_out | (self.of_unit == self.n_units), self.n_units, 0) + self.of_unit
        return replace(self, of_unit=of_unit, n_units=2 * self.n_units)

    def uncertain(self, certain: Certain) -> "Signatures":
        """The signatures without the rows that say the same whatever the parameters."""
        rows = [tuple(uncertain_rows(group, certain)) if isinstance(group, tuple) else group for group in self.rows]
        return replace(self, rows=rows, certain=certain)


def find_signatures(
    parts: Iterable[Iterable[PageBatch]], columns: Sequence[str], n_units: int, n_positions: int, keep: Keep
) -> Signatures:
    """The signatures of the units of a log, those of equal rows once, as far as they are in memory at the same time.

    Args:
        parts: pages, part by part; all pages of a unit are in one of them.
        columns: what a click depends on beside its unit: `position`, and `previous_click` where it matters.
        n_units: J.
        n_positions: K.
        keep: puts signatures aside that are too many to be held.
    """
    n_above = n_positions + 1 if PREVIOUS_CLICK in columns else 1  # last clicks above that are distinguished
    n_cells = (n_positions + 1) * n_above
    no_number, no_sum = np.empty(0, np.int64), np.empty(0)
    of_unit, rows, n_aside = np.full(n_units + 1, -1), list[Iterable[PageBatch]](), 0
    empty = CountTable(n_cells, np.zeros(1, np.int64), no_number, no_sum, no_sum, no_sum)
    units, signature, table = no_number, no_number, empty  # of signatures that others may still equal

    def put_aside(keep: Keep) -> None:
        """Keep the rows of the table: of each entry one without a click and one with, where there are any."""
        nonlocal n_aside, units, signature, table
        of_unit[units] = n_aside + signature
        position, above = np.divmod(table.cell, n_above)
        place = {"position 0": np.repeat(position, 2)}
        if PREVIOUS_CLICK in columns:
            place[PREVIOUS_CLICK] = np.repeat(above, 2)
        shown = 2 * np.repeat(n_aside + table.unit_of_entry, 2) + np.tile([0, 1], table.n_entries)
        weight = np.column_stack([table.impressions - table.clicks, table.clicks]).ravel()
        kept = pl.DataFrame({"shown 0": shown, **place, WEIGHT: weight}).filter(pl.col(WEIGHT) > 0)
        rows.append(keep(kept, len(rows)))
        n_aside += table.n_units
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
        del table, counted, counts, sums, unit, cell  # large: no array need be held twice
        table, number = compress(concatenate(tables))
        signature = number[numbers]
        if table.n_entries > _ENTRIES_AT_ONCE:
            put_aside(keep)
    put_aside(lambda last, _: tuple(small_batches(last)))
    return Signatures(tuple(rows), np.where(of_unit < 0, n_aside, of_unit), n_aside, n_positions)


def count_rows(batches: Iterable[PageBatch], columns: Sequence[str]) -> pl.DataFrame:
    """`impressions` and `clicks`, or sums of their weights, by UNIT and the columns, sorted by these.

    Args:
        batches: pages.
        columns: `position`, and `previous_click` where rows differ by it.
    """
    keys = (UNIT, *columns)
    frames: list[pl.DataFrame] = []
    for batch in batches:
        shown, weight = batch.shown, batch.row_weight
        of_rows = {
            UNIT: batch.unit[shown],
            POSITION: batch.position[shown],
            **({PREVIOUS_CLICK: batch.previous_click[shown]} if PREVIOUS_CLICK in columns else {}),
            IMPRESSIONS: weight[shown],
            CLICKS: (weight * batch.click)[shown],
        }
        frames.append(pl.DataFrame(of_rows).group_by(keys, maintain_order=True).sum())
    return pl.concat(frames).group_by(keys, maintain_order=True).sum().sort(keys)


@dataclass(frozen=True)
class PagesInMemory:
    """Pages to learn from, held in memory."""

    batches: tuple[PageBatch, ...]
    n_units: int  # J
    n_positions: int  # K

    def __iter__(self) -> Iterator[PageBatch]:
        """The batches."""
        return iter(self.batches)

    def uncertain(self, certain: Certain) -> "PagesInMemory":
        """The pages without the impressions that say the same whatever the parameters."""
        left = uncertain_pages(self.batches, certain)
        return replace(self, batches=tuple(batch for pages in left for batch in small_batches(pages)))

    def signatures(self, columns: Sequence[str]) -> Signatures:
        """Units with equal rows once; see `posbias.core.models.page_matrices`."""
        return find_signatures(
            [self.batches], columns, self.n_units, self.n_positions, lambda rows, _: tuple(small_batches(rows))
        )
