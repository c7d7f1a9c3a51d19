"""What a pass over pages adds up: for each parameter, how often it was decided, and how often in its favour.

Batches are worked on at once, and what they say is added impression by impression, in the order of the batches, so that
the result depends neither on the number of threads nor, where it is by unit, on what is a batch.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from posbias.core.arrays.threads import at_once, n_threads
from posbias.core.browsing.batch import Floats, PageBatch
from posbias.core.browsing.parameters import Parameter, Ratio

_BATCHES_AT_ONCE = 8  # each takes some 10 MB while it is worked on


@dataclass(frozen=True)
class Decisions:
    """What a batch says.

    Attributes:
        pages: the batch.
        ratios: by parameter, weighted, shape (N, L).
        impressions: with their weights.
        log_likelihood: of its clicks; 0 where nobody asked.
    """

    pages: PageBatch
    ratios: Mapping[str, Ratio]
    impressions: float
    log_likelihood: float = 0.0


@dataclass(frozen=True)
class Sums:
    """What all batches say.

    Attributes:
        ratios: by parameter, in its shape.
        impressions: with their weights.
        log_likelihood: of all clicks; 0 where nobody asked.
    """

    ratios: Mapping[str, Ratio]
    impressions: float
    log_likelihood: float


def add_up(
    of_batch: Callable[[PageBatch], Decisions],
    pages: Iterable[PageBatch],
    parameters: Sequence[Parameter],
    known: Sums,
) -> Sums:
    """The sums of all batches, and what is known besides.

    Args:
        of_batch: what a batch says.
        pages: the batches.
        parameters: of which.
        known: sums of these, to which those of the pages are added.
    """
    ratios = {name: Ratio(ratio.favourable.copy(), ratio.decided.copy()) for name, ratio in known.ratios.items()}
    impressions, log_likelihood = known.impressions, known.log_likelihood
    for found in at_once(of_batch, pages, min(n_threads(), _BATCHES_AT_ONCE)):
        for parameter in parameters:
            ratio, total = found.ratios[parameter.name], ratios[parameter.name]
            _add(parameter, found.pages, ratio.favourable, total.favourable)
            _add(parameter, found.pages, ratio.decided, total.decided)
        impressions += found.impressions
        log_likelihood += found.log_likelihood
    return Sums(ratios, impressions, log_likelihood)


def _add(parameter: Parameter, pages: PageBatch, rows: Floats, total: Floats) -> None:
    """Add rows of pages, shape (N, L), to a total by what a parameter differs by."""
    if parameter.shape == "one":
        total += rows.sum()
        return
    if parameter.shape == "unit":
        index = pages.unit
    elif parameter.shape == "position":
        index = pages.position
    else:
        index = pages.position * total.shape[1] + pages.previous_click
    np.add.at(total.reshape(-1), index.ravel(order="F"), rows.ravel(order="F"))
