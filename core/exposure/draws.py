"""Which fold a page belongs to, and whether it is in the sample: by a hash of its id, wherever it is read."""

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Flags, Hashes, Integers
from posbias.core.exposure.cross_fitting import FOLDS
from posbias.core.training.split import hashes

_STEP, _FIRST, _SECOND = (np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_LARGEST = float(2**64)


def draws_of(sessions: pl.Series, seed: int) -> Hashes:
    """A number for each session, all equally likely, shape (n,).

    The hash of the id and the seed are mixed by SplitMix64 (Steele, Lea & Flood 2014).
    """
    mixed = np.array(hashes(sessions), np.int64).view(np.uint64)
    with np.errstate(over="ignore"):
        mixed = mixed + _STEP * np.random.SeedSequence(seed).generate_state(1, np.uint64)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
        mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    return mixed ^ (mixed >> np.uint64(31))


def fold_of(draws: Hashes) -> Integers:
    """The fold of each, 0 .. `FOLDS` - 1."""
    return (draws % np.uint64(FOLDS)).astype(np.int64)


def in_sample(draws: Hashes, share: float) -> Flags:
    """Whether each is in a sample of that share of the pages; a larger sample holds all of a smaller one."""
    return draws.astype(np.float64) < share * _LARGEST
