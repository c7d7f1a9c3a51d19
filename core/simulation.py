"""Click logs with known truth: what tests and sample logs are drawn from.

A world is one attractiveness gamma per (query, document) and one examination probability theta per cell e;
every click is Bernoulli with

    P(click) = theta_e * gamma_qd

    PBM: e = position r                          theta_e = r ** -eta
    UBM: e = (position r, previous click r')     theta_e = (r - r') ** -eta, r' = 0 where there is none

unless theta is given as a table. Queries arrive with Zipfian frequency, and a Plackett-Luce ranker orders the
documents of a query anew in every session, following attractiveness as closely as asked: documents change
places, and better ones stand higher, as in a real log.

Sessions are drawn in blocks, each from its own stream of random numbers, so that a log that is streamed to a
disk block by block has the same rows as the one that is held in memory.

Sources: Richardson et al. 2007 and Craswell et al. 2008 (position-based model); Dupret & Piwowarski 2008
(user browsing model); Plackett 1975 (ranker); Joachims, Swaminathan & Schnabel 2017 (theta = r ** -eta).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from posbias.core.errors import UsageError

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Clicks = NDArray[np.int8]

WORLD_STREAM, SESSION_STREAM = 0, 1
SCORES_PER_BLOCK = 2**21  # (session, document) scores that are held at once: 16 MiB an array


@dataclass(frozen=True)
class SimulationOptions:
    """What to simulate.

    Attributes:
        model: what examination depends on: `pbm`, the position; `ubm`, also the last clicked position above.
        n_sessions: number of results pages, >= 1.
        n_queries: number of queries Q, >= 1; some may never be drawn.
        docs_per_query: number of documents D that compete for a query, >= n_positions.
        n_positions: number of positions K of a results page, >= 1.
        query_exponent: Zipf exponent s >= 0 of the queries' frequency, P(query q) ~ q ** -s; 0 is uniform.
        eta: severity of the position bias, >= 0; 0 is none. Not used where `theta` is given.
        theta: examination probabilities in (0, 1] in the order of the cells (position, then previous click):
            K of them for PBM, K (K + 1) / 2 for UBM.
        ranker_strength: how closely the ranker follows attractiveness, >= 0, in log odds per standard
            deviation of attractiveness: 0 is random order, infinity always the same, perfect order.
        attractiveness_shape: (a, b), both > 0, of the Beta distribution of attractiveness.
        attractiveness_scale: the factor in (0, 1] on that Beta draw; it scales all click rates alike.
        seed: seed of everything random, >= 0.
    """

    model: Literal["pbm", "ubm"] = "pbm"
    n_sessions: int = 10_000
    n_queries: int = 100
    docs_per_query: int = 20
    n_positions: int = 10
    query_exponent: float = 1.0
    eta: float = 1.0
    theta: tuple[float, ...] | None = None
    ranker_strength: float = 1.0
    attractiveness_shape: tuple[float, float] = (1.0, 2.0)
    attractiveness_scale: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse a world that cannot exist.

        Raises:
            UsageError: if an option lies outside its range.
        """
        counts = (self.n_sessions, self.n_queries, self.n_positions)
        slopes = (self.query_exponent, self.eta, self.ranker_strength)
        theta = (1.0,) * len(self.cells) if self.theta is None else self.theta
        demands = {
            "model is pbm or ubm": self.model in {"pbm", "ubm"},
            "n_sessions, n_queries and n_positions are at least 1": min(counts) >= 1,
            "docs_per_query is at least n_positions": self.docs_per_query >= self.n_positions,
            "query_exponent, eta and ranker_strength are at least 0": min(slopes) >= 0,
            f"theta has {len(self.cells)} values": len(theta) == len(self.cells),
            "theta lies in (0, 1]": all(0 < value <= 1 for value in theta),
            "attractiveness_shape is above 0": min(self.attractiveness_shape) > 0,
            "attractiveness_scale lies in (0, 1]": 0 < self.attractiveness_scale <= 1,
            "seed is at least 0": self.seed >= 0,
        }
        broken = [demand for demand, holds in demands.items() if not holds]
        if broken:
            raise UsageError(f"cannot simulate {self}: it takes that {'; '.join(broken)}")

    @property
    def cells(self) -> list[tuple[int, int]]:
        """The cells (position r, previous click r') in their order; in PBM, r' is 0 throughout."""
        return [
            (position, previous)
            for position in range(1, self.n_positions + 1)
            for previous in range(position if self.model == "ubm" else 1)
        ]


@dataclass(frozen=True)
class Simulation:
    """A log, and the truth behind it.

    Attributes:
        log: session, query, doc, position (Int32, 1-based), click (Int8, 0 or 1), in the order of session and
            position. A document's number is its own within its query only.
        propensities: see `true_propensities`.
        attractiveness: see `true_attractiveness`.
    """

    log: pl.DataFrame
    propensities: pl.DataFrame
    attractiveness: pl.DataFrame


def simulate(options: SimulationOptions) -> Simulation:
    """Draw a whole log into memory, with its truth: about 20 bytes per impression."""
    return Simulation(
        log=pl.concat(simulate_blocks(options), rechunk=True),
        propensities=true_propensities(options),
        attractiveness=true_attractiveness(options),
    )


def simulate_blocks(options: SimulationOptions) -> Iterator[pl.DataFrame]:
    """Draw a log block by block, in bounded memory; end to end the blocks are `simulate(options).log`."""
    attractiveness = _attractiveness(options)
    frequency = np.arange(1.0, options.n_queries + 1) ** -options.query_exponent
    examination = _examination(options)
    sessions_per_block = max(SCORES_PER_BLOCK // options.docs_per_query, 1)
    for block, first in enumerate(range(0, options.n_sessions, sessions_per_block)):
        rng = _stream(options, SESSION_STREAM, block)
        n_sessions = min(sessions_per_block, options.n_sessions - first)
        query = rng.choice(options.n_queries, n_sessions, p=frequency / frequency.sum())
        doc = _rank(attractiveness[query], options, rng)
        click = draw_clicks(attractiveness[query[:, None], doc], examination, rng)
        yield _log_frame(np.arange(first, first + n_sessions), query, doc, click)


def draw_clicks(attractiveness: Floats, examination: Floats, rng: np.random.Generator) -> Clicks:
    """Draw the clicks on given results pages, from the top down: P(click) = examination * attractiveness.

    Args:
        attractiveness: shape (S, K), in [0, 1]: of the document at each position of each session.
        examination: in [0, 1]: shape (K,), by position (PBM), or (K, K), by position and by the position of
            the last click above it, 0 for none (UBM).
        rng: source of randomness.

    Returns:
        Shape (S, K), 0 or 1.
    """
    n_sessions, n_positions = attractiveness.shape
    clicks = np.zeros((n_sessions, n_positions), dtype=np.int8)
    previous_click = np.zeros(n_sessions, dtype=np.int64)
    theta = np.broadcast_to(examination.reshape(n_positions, -1), (n_positions, n_positions))
    for index in range(n_positions):
        examined: Floats = theta[index, previous_click]
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


def true_propensities(options: SimulationOptions) -> pl.DataFrame:
    """Return the truth per cell.

    Columns: position, previous_click (UBM only), propensity (theta relative to the first cell, position 1),
    examination (theta itself).
    """
    position, previous = np.array(options.cells, dtype=np.int32).T
    theta = _theta(options)
    frame = pl.DataFrame(
        {
            "position": position,
            "previous_click": previous,
            "propensity": theta / theta[0],
            "examination": theta,
        }
    )
    return frame if options.model == "ubm" else frame.drop("previous_click")


def true_attractiveness(options: SimulationOptions) -> pl.DataFrame:
    """Return the truth per (query, document), shown or not: query, doc, attractiveness."""
    attractiveness = _attractiveness(options)
    query, doc = np.indices(attractiveness.shape, dtype=np.int32)
    return pl.DataFrame({"query": query.ravel(), "doc": doc.ravel(), "attractiveness": attractiveness.ravel()})


def _stream(options: SimulationOptions, *key: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(options.seed, spawn_key=key))


def _attractiveness(options: SimulationOptions) -> Floats:
    """Draw gamma, shape (Q, D)."""
    size = (options.n_queries, options.docs_per_query)
    draw = _stream(options, WORLD_STREAM).beta(*options.attractiveness_shape, size=size)
    return options.attractiveness_scale * draw


def _theta(options: SimulationOptions) -> Floats:
    """Return theta by cell, shape (number of cells,)."""
    if options.theta is not None:
        return np.array(options.theta)
    position, previous = np.array(options.cells, dtype=np.float64).T
    return (position - previous) ** -options.eta


def _examination(options: SimulationOptions) -> Floats:
    """Return theta as `draw_clicks` takes it: shape (K,) for PBM, (K, K) for UBM."""
    theta = _theta(options)
    if options.model == "pbm":
        return theta
    position, previous = np.array(options.cells).T
    table = np.zeros((options.n_positions, options.n_positions))
    table[position - 1, previous] = theta
    return table


def _rank(attractiveness: Floats, options: SimulationOptions, rng: np.random.Generator) -> Indices:
    """Draw rankings from the Plackett-Luce model, as the arrivals of exponential races.

    P(d first) = exp(strength * gamma_d / sd) / sum over d', and so on among those that are left.

    Args:
        attractiveness: shape (S, D), of all documents of each session's query.
        options: the ranker's strength and the number of positions K.
        rng: source of randomness.

    Returns:
        Shape (S, K), the document at each position.
    """
    a, b = options.attractiveness_shape
    deviation = options.attractiveness_scale * np.sqrt(a * b / ((a + b) ** 2 * (a + b + 1)))
    if np.isinf(options.ranker_strength):
        arrival = -attractiveness
    else:
        arrival = np.log(rng.standard_exponential(attractiveness.shape))
        arrival -= options.ranker_strength / deviation * attractiveness
    first = np.argpartition(arrival, options.n_positions - 1, axis=1)[:, : options.n_positions]
    order = np.argsort(np.take_along_axis(arrival, first, axis=1), axis=1)
    return np.take_along_axis(first, order, axis=1)


def _log_frame(session: Indices, query: Indices, doc: Indices, click: Clicks) -> pl.DataFrame:
    """Lay out sessions, shape (S,), and what they show, shape (S, K), as one row per impression."""
    n_sessions, n_positions = doc.shape
    return pl.DataFrame(
        {
            "session": np.repeat(session, n_positions),
            "query": np.repeat(query.astype(np.int32), n_positions),
            "doc": doc.astype(np.int32).ravel(),
            "position": np.tile(np.arange(1, n_positions + 1, dtype=np.int32), n_sessions),
            "click": click.ravel(),
        }
    )
