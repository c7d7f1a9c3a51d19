"""Values of options that are more than a word or a number: bins, a reference cell, a prior, a size."""

import re
from itertools import pairwise

from posbias.core.errors import UsageError
from posbias.core.priors import BetaPrior

_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}
LARGEST_POSITION = 2**31 - 1
_SMALLEST_MEMORY = 256 << 20
_FEWEST_BINS = 2


def parse_reference(text: str | None) -> tuple[int, ...]:
    """Read `1`, or with UBM `1,0`.

    Raises:
        UsageError: not whole numbers.
    """
    try:
        return tuple(int(number) for number in text.split(",")) if text else ()
    except ValueError:
        raise UsageError(f"--reference {text}: give a position such as 1; with --model ubm also 1,0.") from None


def parse_prior(flag: str, text: str) -> BetaPrior:
    """Read `0.5:2`, mean and strength.

    Raises:
        UsageError: not a prior; the option is named.
    """
    try:
        return BetaPrior.parse(text)
    except UsageError as error:
        raise UsageError(f"{flag} {text}: {error}") from error


def parse_bins(text: str | None) -> tuple[int, ...]:
    """Read `1,2,3,5,10`.

    Raises:
        UsageError: not ascending positions that start at 1.
    """
    if text is None:
        return ()
    try:
        bins = tuple(int(number) for number in text.split(","))
    except ValueError:
        bins = tuple[int, ...]()
    ascending = len(bins) >= _FEWEST_BINS and bins[0] == 1 and all(a < b for a, b in pairwise(bins))
    if not ascending or bins[-1] > LARGEST_POSITION:
        raise UsageError(
            f"--position-bins {text}: give the first position of each bin, ascending from 1, e.g. 1,2,3,5,10,20."
        )
    return bins


def parse_memory(text: str) -> int:
    """Read `2GiB`, `500M`, `1073741824` as bytes.

    Raises:
        UsageError: not a size, or too small to work with.
    """
    match = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,15})?)\s*([kmgt]i?)?b?\s*", text.lower())
    if match is None:
        raise UsageError(f"--memory {text}: give a size such as 2GiB or 500MB.")
    size = int(float(match[1]) * _UNITS[match[2] or ""])
    if size < _SMALLEST_MEMORY:
        raise UsageError(f"--memory {text}: at least 256MiB is needed.")
    return size
