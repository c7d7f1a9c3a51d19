"""How users click, given what stands where: the click models themselves, apart from any world."""

import numpy as np
from numpy.typing import NDArray

from posbias.core.arrays.count_table import Floats, Integers

Clicks = NDArray[np.int8]


def draw_clicks(
    attractiveness: Floats, examination: Floats, rng: np.random.Generator, context: Integers | None = None
) -> Clicks:
    """Draw the clicks on given results pages, from the top down: P(click) = min(examination * attractiveness, 1).

    Args:
        attractiveness: shape (S, K), >= 0: of the document at each position of each session.
        examination: in [0, 1]: shape (K,), by position (PBM), or (K, K), by position and by the position of
            the last click above it, 0 for none (UBM); with `context`, such a table for each of C contexts.
        rng: source of randomness.
        context: shape (S,), in 0 .. C - 1, the context of each session.

    Returns:
        Shape (S, K), 0 or 1.
    """
    n_sessions, n_positions = attractiveness.shape
    clicks = np.zeros((n_sessions, n_positions), dtype=np.int8)
    previous_click = np.zeros(n_sessions, dtype=np.int64)
    n_contexts = 1 if context is None else len(examination)
    by_previous = examination.reshape(n_contexts, n_positions, -1)
    theta = np.broadcast_to(by_previous, (n_contexts, n_positions, n_positions))
    for index in range(n_positions):
        examined: Floats = theta[0 if context is None else context, index, previous_click]
        clicks[:, index] = rng.random(n_sessions) < examined * attractiveness[:, index]
        previous_click[clicks[:, index] == 1] = index + 1
    return clicks


def graded_attractiveness(label: NDArray[np.integer], highest: int, noise: float) -> Floats:
    """Turn judged labels into click probabilities given examination.

    gamma = noise + (1 - noise) (2 ** y - 1) / (2 ** highest - 1)    (Chapelle et al. 2009; Ai et al. 2018)

    Args:
        label: any shape, the grades y in 0 .. highest.
        highest: the highest grade of the scale, >= 1.
        noise: in [0, 1], the probability of a click on a document of grade 0.

    Returns:
        Same shape, in [noise, 1].
    """
    return noise + (1 - noise) * (np.exp2(label) - 1) / (2.0**highest - 1)
