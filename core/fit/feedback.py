"""The test of feedback: do documents stand higher after they were clicked, within one stratum?

With the sums A, W of each query (`core/counts/order.py`),

    a = sum A / sum W                                by how much a surplus click moves what follows, in -log(position)
    sd = sqrt((G - 1) / G sum (A_g / (1 - h_g))^2) / sum W,       h_g = the query's share of the variance

and a / sd is judged by Student's t with min(1 / sum h^2, G - 1) degrees of freedom. What four of five logs would show
is a_80 = (t_.9875 + t_.8) sd; it would leave eta, theta = position ** -eta, off by a_80 sum C / 2 / sum C Var_p(m).

Where the ranker is known to learn, as feedback showed in longer periods, "not rejected" is too little: the upper limit
(80 %) of what feedback may do to eta,

    2 (max(a, 0) + t_.8 sd) sum C / 2 / sum C Var_p(m)

must be no larger than what the interval leaves open. The 2 is measured, on the seeds from 1000 of the benchmark: the
test rests on documents that are shown often, and those that are not, which say as much about eta, are moved further.
"""

from dataclasses import dataclass

import numpy as np

from posbias.core.arrays.linalg import student_quantile, student_tail
from posbias.core.counts.order import OrderSums
from posbias.core.standard_errors.contrasts import LEVEL, POWER, detectable

LEVEL_OF_EACH = LEVEL / 2
"""Level of this test, and of the comparison with halves: the two together make a false alarm in one log of twenty."""

LARGEST_MISSED_BIAS = 0.25
"""Bias of eta that feedback may cause and yet be missed by one test in five, up to which a test says enough."""

LEVEL_AFTER_FEEDBACK = 0.1
"""Level of the comparison with halves where feedback showed in longer periods."""

_MOVED_FURTHER = 2.0
"""How far documents that are shown little are moved, to those that the test rests on."""

_MOST = 0.9  # of the variance, that one query can have without making the others count for nothing


@dataclass(frozen=True)
class FeedbackTest:
    """Whether clicks move documents within strata."""

    move: float  # a, in -log(position) of later impressions, per surplus click; above 0 where a click lifts a document
    std_error: float  # its standard error
    degrees: float  # its degrees of freedom
    p_value: float  # of a = 0, two-sided
    found: float  # a_80, the move that four of five logs like this one would show
    missed_bias: float  # what that does to eta
    largest_bias: float  # what feedback may do to eta: the upper limit

    @property
    def rejected(self) -> bool:
        """Whether clicks move documents."""
        return self.p_value < LEVEL_OF_EACH

    @property
    def enough(self) -> bool:
        """Whether feedback that matters would have been found."""
        return self.missed_bias <= LARGEST_MISSED_BIAS


def feedback_test(sums: OrderSums) -> FeedbackTest | None:
    """Test that clicks do not move documents; None where fewer than two queries show several positions in order."""
    telling = np.flatnonzero(sums.variance > 0)
    weight = float(sums.weight[telling].sum())
    if len(telling) < 2 or not weight > 0:  # noqa: PLR2004 - one query has no error
        return None
    area, variance = sums.area[telling], sums.variance[telling]
    share = variance / variance.sum()
    n_queries = len(telling)
    left_out = area / (1 - np.minimum(share, _MOST))
    std_error = float(np.sqrt((n_queries - 1) / n_queries * (left_out**2).sum())) / weight
    if not std_error > 0:
        return None
    degrees = float(max(min(1 / (share**2).sum(), n_queries - 1), 1.0))
    move = float(area.sum()) / weight
    t, level = np.array([abs(move) / std_error]), np.array([degrees])
    found = detectable(std_error, degrees, LEVEL_OF_EACH)
    largest = _MOVED_FURTHER * (max(move, 0.0) + float(student_quantile(POWER, level)[0]) * std_error)
    information = float(sums.information.sum())
    bias_of_move = float(sums.clicks.sum()) / 2 / information if information > 0 else np.inf
    return FeedbackTest(
        move=move,
        std_error=std_error,
        degrees=degrees,
        p_value=min(2 * float(student_tail(t, level)[0]), 1.0),
        found=found,
        missed_bias=found * bias_of_move,
        largest_bias=largest * bias_of_move,
    )
