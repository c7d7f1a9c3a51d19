"""How sure each number is: what every estimate says of its K cells beside the number itself."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from posbias.core.arrays.count_table import Floats


def upper_end(log_theta: Floats) -> Floats:
    """The upper end of an interval from its logarithm; NaN where it is beyond all numbers."""
    with np.errstate(over="ignore"):
        high = np.exp(log_theta)
    return np.where(np.isinf(high), np.nan, high)


@dataclass(frozen=True)
class Intervals:
    """Standard errors and 95 % intervals, each array of shape (K,)."""

    std_error: Floats  # of log theta; 0 at a reference, NaN where there is none
    low: Floats  # lower end of the 95 % interval of theta; 1 at a reference, NaN where there is none
    high: Floats  # its upper end; the upper limit alone where a cell has no clicks
    effective_clusters: Floats  # G*, how many equal clusters the data are worth; NaN at a reference and without error
    reason: tuple[str | None, ...]  # why a cell has no number or no interval, or on what its number rests

    @classmethod
    def unknown(cls, reason: tuple[str | None, ...]) -> Self:
        """No interval anywhere, as of a method that has none."""
        nothing = np.full(len(reason), np.nan)
        return cls(nothing, nothing, nothing, nothing, reason)

    def reach(self, log_theta: Floats) -> Floats:
        """How far the interval of log theta reaches from it, at the further end, shape (K,).

        That is half the interval, unless it was moved towards what others say.

        Args:
            log_theta: shape (K,), the estimate.
        """
        with np.errstate(divide="ignore", invalid="ignore"):  # an interval from 0 has no end
            return np.maximum(np.log(self.high) - log_theta, log_theta - np.log(self.low))

    def or_else(self, other: "Intervals") -> "Intervals":
        """These where there is an error, the other ones where there is none."""
        has = np.isfinite(self.std_error)
        return Intervals(
            std_error=np.where(has, self.std_error, other.std_error),
            low=np.where(has, self.low, other.low),
            high=np.where(has, self.high, other.high),
            effective_clusters=np.where(has, self.effective_clusters, other.effective_clusters),
            reason=tuple(np.where(has, np.array(self.reason, object), np.array(other.reason, object)).tolist()),
        )
