"""Beta priors, written the way they are given on the command line: a mean and a strength."""

from dataclasses import dataclass
from typing import Self

from posbias.core.errors import UsageError

LARGEST_STRENGTH = 1e9
"""More than that outweighs any pair of any log."""

SMALLEST_PSEUDO_COUNT = 1e-6
"""Less than that is not told from nothing; and quadrature, whose nodes crowd at 0 or 1 then, loses its digits."""


@dataclass(frozen=True)
class BetaPrior:
    """A Beta(s v, s (1 - v)) prior of a probability: what s earlier impressions with mean v would have said.

    Raises:
        UsageError: the mean or the strength is out of range.
    """

    mean: float  # v, 0 < v < 1
    strength: float  # s from 0 to 1e9, in impressions; 0 says nothing

    def __post_init__(self) -> None:
        if not 0 < self.mean < 1:
            raise UsageError(f"A prior's mean must lie between 0 and 1, both excluded: found {self.mean:g}.")
        if not 0 <= self.strength <= LARGEST_STRENGTH:
            raise UsageError(
                f"A prior's strength must be a number of impressions from 0 to {LARGEST_STRENGTH:g}: "
                f"found {self.strength:g}."
            )

        if self.strength > 0 and self.strength * min(self.mean, 1 - self.mean) < SMALLEST_PSEUDO_COUNT:
            raise UsageError(
                f"A prior worth {self.strength:g} impressions of mean {self.mean:g} is worth less than "
                f"{SMALLEST_PSEUDO_COUNT:g} clicks or skips: give it strength 0 instead."
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `MEAN:STRENGTH`, e.g. `0.5:2`.

        Raises:
            UsageError: the text has another form, or a value is out of range.
        """
        mean, _, strength = text.partition(":")
        try:
            return cls(float(mean), float(strength))
        except ValueError:
            raise UsageError(
                f"A prior is written MEAN:STRENGTH, for example 0.5:2 (mean 0.5, worth 2 impressions): found {text!r}."
            ) from None

    @property
    def pseudo_clicks(self) -> float:
        """Clicks that the prior is worth, s v."""
        return self.strength * self.mean

    @property
    def pseudo_skips(self) -> float:
        """Impressions without a click that the prior is worth, s (1 - v)."""
        return self.strength * (1 - self.mean)
