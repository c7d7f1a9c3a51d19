"""Runs in which results differ in last bits: what is rounded moves, and what is exact does not."""

from importlib.util import module_from_spec

import numpy as np
from last_bits import Finder, moved

from posbias import core
from posbias.core import attractiveness

SEED = np.uint64(7)


def test_what_is_rounded_moves_to_the_next_number_or_not_at_all_and_what_is_exact_stays() -> None:
    rounded, exact = np.log(np.arange(3.0, 1000.0)), np.array([0.0, 1.0, -12.0, 0.75, 1e20, np.inf, -np.inf])
    steps = (moved(SEED, rounded) - rounded) / np.spacing(rounded)

    assert set(steps.tolist()) == {-1.0, 0.0, 1.0}
    assert moved(SEED, exact).tolist() == exact.tolist()
    assert moved(SEED, np.array(rounded[7])).tolist() == moved(SEED, rounded)[7]
    assert moved(SEED, rounded).tolist() == moved(SEED, rounded).tolist() != moved(np.uint64(8), rounded).tolist()


def test_modules_of_posbias_compute_the_same_but_for_last_bits() -> None:
    spec = Finder(7).find_spec("posbias.core.attractiveness", core.__path__)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    probability = np.linspace(0.01, 0.99, 99)
    found, expected = module._logit(probability), attractiveness._logit(probability)  # pyright: ignore[reportPrivateUsage]

    assert (found != expected).any()
    np.testing.assert_allclose(found, expected, rtol=1e-14, atol=1e-14)
