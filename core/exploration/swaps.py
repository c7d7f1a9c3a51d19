"""Which positions to swap: each pair by itself, and a plan of several that share the pages.

The plan is greedy: the pages are dealt out in `PORTIONS` equal portions, each to the swap that, with what was dealt
out before, leaves the intervals narrowest: first as few cells without an interval as possible, then the smallest sum
of the widths to the power `SHARPNESS`, in which the widest counts most and is not the only one that counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from posbias.core.arrays.count_table import Floats
from posbias.core.errors import IdentifiabilityError
from posbias.core.exploration.curve import Curve, Swap

PORTIONS = 20
SHARPNESS = 8.0
MOST_POSITIONS = 40
"""Positions up to which every pair is tried; beyond, those with one of the widest or of the first."""

_WIDEST = 8
_MOST_IN_PLAN = 60


@dataclass(frozen=True)
class Outcome:
    """What further pages make of the intervals, cell by cell, one context after the other."""

    std_error: Floats  # of log propensity, shape (cells,); infinite where there is none
    width: Floats  # of its 95 % interval, likewise

    @property
    def largest(self) -> float:
        """The widest interval."""
        return float(self.width.max(initial=0.0))

    @property
    def badness(self) -> tuple[int, float]:
        """How many cells have no interval, and how wide those of the others are."""
        known = np.isfinite(self.width)
        return int((~known).sum()), float((self.width[known] ** SHARPNESS).sum())


@dataclass(frozen=True)
class Plan:
    """How further pages are best shown."""

    pages: int  # N
    now: Outcome  # the intervals as they are
    unswapped: Outcome  # after N pages as ever
    alone: Mapping[Swap, Outcome]  # after N pages with one swap on all of them, the best first
    shares: Mapping[Swap, float]  # the share of the pages that each swap of the plan has
    planned: Outcome  # after N pages by the plan

    @property
    def best(self) -> Swap:
        """The swap that is best by itself."""
        return next(iter(self.alone))


def make_plan(curves: Sequence[Curve], pages: int) -> Plan:
    """The swaps that shrink the widest intervals most.

    Args:
        curves: the contexts, each with its share of the pages.
        pages: N, how many more there will be.

    Raises:
        IdentifiabilityError: there is only one position.
    """
    possible = candidates(curves)
    if not possible:
        raise IdentifiabilityError("the fit has one position, so that there is nothing to swap.")
    growth = pages / sum(curve.pages for curve in curves)
    now = Outcome(*map(np.concatenate, ([c.std_error for c in curves], [c.width for c in curves])))
    tried = {swap: predict(curves, growth, {swap: 1.0}) for swap in possible}
    alone = dict(sorted(tried.items(), key=lambda entry: (entry[1].badness, entry[0])))
    shares = _deal_out(curves, growth, list(alone)[:_MOST_IN_PLAN])
    return Plan(pages, now, predict(curves, growth, {}), alone, shares, predict(curves, growth, shares))


def predict(curves: Sequence[Curve], growth: float, swaps: Mapping[Swap, float]) -> Outcome:
    """The intervals after further pages with swaps, each on its share of them."""
    errors = [curve.std_errors_after(growth, swaps) for curve in curves]
    widths = [curve.widths(error) for curve, error in zip(curves, errors, strict=True)]
    return Outcome(np.concatenate(errors), np.concatenate(widths))


def candidates(curves: Sequence[Curve]) -> list[Swap]:
    """The pairs of positions that are tried."""
    positions = sorted({position for curve in curves for position in curve.position.tolist()})
    pairs = list(combinations(positions, 2))
    if len(positions) <= MOST_POSITIONS:
        return pairs
    widest: dict[int, float] = {}
    for curve in curves:
        for position, width in zip(curve.position.tolist(), curve.width.tolist(), strict=True):
            widest[position] = max(width, widest.get(position, 0.0))
    wanted = {*sorted(positions, key=lambda position: -widest[position])[:_WIDEST], *positions[:2]}
    return [pair for pair in pairs if not wanted.isdisjoint(pair)]


def _deal_out(curves: Sequence[Curve], growth: float, tried: Sequence[Swap]) -> dict[Swap, float]:
    portions: dict[Swap, int] = {}

    def with_one_more(swap: Swap) -> tuple[int, float]:
        dealt = {**portions, swap: portions.get(swap, 0) + 1}
        return predict(curves, growth, {one: number / PORTIONS for one, number in dealt.items()}).badness

    for _ in range(PORTIONS):
        best = min(tried, key=with_one_more)
        portions[best] = portions.get(best, 0) + 1
    return {swap: portions[swap] / PORTIONS for swap in sorted(portions, key=lambda swap: (-portions[swap], swap))}
