"""The prior of many probabilities, estimated from how often each was decided for and against.

    sum_j log [ B(s v + f_j, s (1 - v) + d_j - f_j) / B(s v, s (1 - v)) ] - (log(s / 2) / 2)^2 / 2 + log v + log(1 - v)

at its maximum. The last terms weigh as much as a handful of units and keep a log that says little at mean 0.5 and
strength 2; f_j and d_j need not be whole, as they are expectations.

Sources: Griffiths 1973; Efron & Morris 1973.
"""

import numpy as np

from posbias.core.arrays.linalg import Floats, Integers, digamma, log_beta, minimize_within
from posbias.core.priors import BetaPrior

LARGEST_SAMPLE = 20_000
"""Units at most from which it is estimated, evenly spread over their numbers."""

_STRENGTHS = (0.05, 5000.0)
_MEANS = (1e-4, 1 - 1e-4)
_SPREAD_OF_LOG_STRENGTH = 2.0


def estimate_prior(favourable: Floats, decided: Floats, signature: Integers | None = None) -> BetaPrior:
    """The Beta prior by marginal likelihood.

    Args:
        favourable: f, shape (J,), or of each signature.
        decided: d >= f, likewise.
        signature: of each unit, shape (J,), where f and d are theirs.
    """
    known = np.flatnonzero(decided > 0 if signature is None else (decided > 0)[signature])
    chosen = known[:: max(1, -(-len(known) // LARGEST_SAMPLE))]
    chosen = chosen if signature is None else signature[chosen]
    f = favourable[chosen]
    against = np.maximum(decided[chosen] - f, 0.0)

    def loss_and_slope(at: Floats) -> tuple[float, Floats]:
        v, s = 1 / (1 + np.exp(-at[0])), np.exp(at[1])
        a, b = np.array([s * v]), np.array([s * (1 - v)])
        likelihood = (log_beta(a + f, b + against) - log_beta(a, b)).sum()
        of_all = digamma(a + b + f + against) - digamma(a + b)
        by_a, by_b = (digamma(a + f) - digamma(a) - of_all).sum(), (digamma(b + against) - digamma(b) - of_all).sum()
        by_logit = s * v * (1 - v) * (by_a - by_b) + 1 - 2 * v
        by_log_strength = s * v * by_a + s * (1 - v) * by_b - np.log(s / 2) / _SPREAD_OF_LOG_STRENGTH**2
        value = likelihood + np.log(v) + np.log(1 - v) - (np.log(s / 2) / _SPREAD_OF_LOG_STRENGTH) ** 2 / 2
        return -float(value) / scale, -np.array([by_logit, by_log_strength]) / scale

    scale = max(len(chosen), 1)
    rate = float(np.clip((f.sum() + 0.5) / (f.sum() + against.sum() + 1), *_MEANS))
    means = np.array(_MEANS)
    limits = np.array([np.log(means / (1 - means)), np.log(_STRENGTHS)])
    found = minimize_within(loss_and_slope, np.array([np.log(rate / (1 - rate)), np.log(2.0)]), limits)
    return BetaPrior(float(1 / (1 + np.exp(-found[0]))), float(np.exp(found[1])))
