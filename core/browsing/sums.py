"""What a pass over pages adds up: for each parameter, how often it was decided, and how often in its favour.

What batches say is added impression by impression, in their order, so that sums by unit do not depend on what is a
batch. One batch is in memory at a time: threads would gain little, as most steps are short, and hold several.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from posbias.core.browsing.batch import Floats, PageBatch
from posbias.core.browsing.parameters import Parameter, Ratio


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
    for found in map(of_batch, pages):
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
