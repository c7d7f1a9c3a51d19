"""What a pass over pages adds up: for each parameter, how often it was decided, and how often in its favour.

Batches are worked on at once, and their sums are added in the order of the batches, so that the result does not depend
on the number of threads.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from posbias.core.arrays.count_table import sum_by_number
from posbias.core.arrays.threads import at_once, n_threads
from posbias.core.browsing.batch import Floats, Integers, PageBatch
from posbias.core.browsing.parameters import Parameter, Ratio

_BATCHES_AT_ONCE = 8  # each takes some 10 MB while it is worked on


@dataclass(frozen=True)
class Run:
    """What a batch adds to the sums of a parameter: to a run of them, as pages lie in the order of their units.

    Attributes:
        at: of the sums in one row.
        favourable: in this run.
        decided: likewise.
    """

    at: slice
    favourable: Floats
    decided: Floats

    def add_to(self, total: Ratio) -> None:
        """Add it to the sums, in place."""
        total.favourable.reshape(-1)[self.at] += self.favourable
        total.decided.reshape(-1)[self.at] += self.decided


@dataclass(frozen=True)
class BatchSums:
    """What a batch adds.

    Attributes:
        runs: by parameter.
        impressions: with their weights.
        log_likelihood: of its clicks; 0 where nobody asked.
    """

    runs: Mapping[str, Run]
    impressions: float
    log_likelihood: float = 0.0


@dataclass(frozen=True)
class Sums:
    """Of all batches.

    Attributes:
        ratios: by parameter, in its shape.
        impressions: with their weights.
        log_likelihood: of all clicks; 0 where nobody asked.
    """

    ratios: Mapping[str, Ratio]
    impressions: float
    log_likelihood: float


def add_up(
    of_batch: Callable[[PageBatch], BatchSums], pages: Iterable[PageBatch], shapes: Mapping[str, tuple[int, ...]]
) -> Sums:
    """The sums of all batches.

    Args:
        of_batch: what a batch adds.
        pages: the batches.
        shapes: of the parameters, by name.
    """
    ratios = {name: Ratio(np.zeros(shape), np.zeros(shape)) for name, shape in shapes.items()}
    impressions = log_likelihood = 0.0
    for found in at_once(of_batch, pages, min(n_threads(), _BATCHES_AT_ONCE)):
        for name, run in found.runs.items():
            run.add_to(ratios[name])
        impressions += found.impressions
        log_likelihood += found.log_likelihood
    return Sums(ratios, impressions, log_likelihood)


def run_of(parameter: Parameter, n_positions: int, pages: PageBatch, weight: Floats, found: Ratio) -> Run:
    """What a batch adds to the sums of a parameter.

    Args:
        parameter: it.
        n_positions: K.
        pages: the batch.
        weight: of each impression, shape (N, L).
        found: what they say of the parameter, shape (N, L).
    """
    index = _index(parameter, n_positions, pages).ravel(order="F")
    first, last = int(index.min()), int(index.max())
    favourable, decided = (
        sum_by_number(index - first, (weight * rows).ravel(order="F"), last - first + 1)
        for rows in (found.favourable, found.decided)
    )
    return Run(slice(first, last + 1), favourable, decided)


def _index(parameter: Parameter, n_positions: int, pages: PageBatch) -> Integers:
    """To which of its sums each impression adds, in one row, shape (N, L)."""
    if parameter.shape == "one":
        return np.zeros_like(pages.unit)
    if parameter.shape == "unit":
        return pages.unit
    if parameter.shape == "position":
        return pages.position
    return pages.position * (n_positions + 1) + pages.previous_click
