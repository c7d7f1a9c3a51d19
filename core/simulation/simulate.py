"""Click logs with known truth: what tests and sample logs are drawn from.

A world is one attractiveness gamma per (query, document) and one examination probability theta per cell e;
every click is Bernoulli with

    P(click) = theta_e * gamma_qd

    PBM: e = position r                          theta_e = r ** -eta
    UBM: e = (position r, previous click r')     theta_e = (r - r') ** -eta, r' = 0 where there is none

unless theta is given as a table. Users of all other click models go down the page as their model says, see
`posbias.core.simulation.users`. Queries arrive with Zipfian frequency, and a Plackett-Luce ranker orders the
documents of a query anew in every session, following its scores as closely as asked: documents change places, and
better ones stand higher, as in a real log. What real logs have beyond that is asked for by options: rankers that
learn from clicks or know the user, contexts, sessions that end early or click more readily, experiments.

Sessions are drawn in blocks, each from its own stream of random numbers, so that a log that is streamed to a
disk block by block has the same rows as the one that is held in memory.

Sources: Richardson et al. 2007 and Craswell et al. 2008 (position-based model); Dupret & Piwowarski 2008
(user browsing model); Plackett 1975 (ranker); Joachims, Swaminathan & Schnabel 2017 (theta = r ** -eta).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Integers
from posbias.core.simulation.clicks import Clicks, draw_clicks, graded_attractiveness
from posbias.core.simulation.options import SimulationOptions
from posbias.core.simulation.rankers import (
    FIRST_SWAP,
    NO_EXPERIMENT,
    RANDOM,
    Sessions,
    draw_sessions,
    intervene,
    make_ranker,
)
from posbias.core.simulation.truth import true_attractiveness, true_parameters, true_propensities
from posbias.core.simulation.users import make_users
from posbias.core.simulation.worlds import (
    EXPERIMENT,
    SESSION,
    World,
    random_stream,
    random_world,
)

__all__ = [
    "Simulation",
    "SimulationOptions",
    "draw_clicks",
    "graded_attractiveness",
    "random_world",
    "simulate",
    "simulate_blocks",
    "true_attractiveness",
    "true_parameters",
    "true_propensities",
]


SCORES_PER_BLOCK = 2**21  # (session, document) scores that are held at once: 16 MiB an array
FIRST_SECOND = 1_767_571_200  # 2026-01-05 00:00 UTC, a Monday, in seconds since 1970
_SECONDS_PER_DAY = 86_400


@dataclass(frozen=True)
class Simulation:
    """A log, and the truth behind it."""

    log: pl.DataFrame  # see `simulate_blocks`
    propensities: pl.DataFrame  # see `true_propensities`
    attractiveness: pl.DataFrame  # see `true_attractiveness`
    parameters: pl.DataFrame  # see `true_parameters`


def simulate(options: SimulationOptions, world: World | None = None) -> Simulation:
    """Draw a whole log into memory, with its truth: about 20 bytes per impression."""
    world = world or random_world(options)
    return Simulation(
        log=pl.concat(simulate_blocks(options, world), rechunk=True),
        propensities=true_propensities(options),
        attractiveness=true_attractiveness(options, world),
        parameters=true_parameters(options),
    )


def simulate_blocks(options: SimulationOptions, world: World | None = None) -> Iterator[pl.DataFrame]:
    """Draw a log block by block, in bounded memory; end to end the blocks are `simulate(options, world).log`.

    Columns: session, query, doc, position (Int32, 1-based), click (Int8, 0 or 1), in the order of session and
    position. A document's number is its own within its query only. Where the options ask for it, also timestamp
    (rising with the session), segment and device (Int32, from 0), policy ("random" where the page was shuffled, else
    "ranker") and experiment ("swap 1-5" where the session takes part in one, swapped or not, else null).

    Args:
        options: what to simulate.
        world: the documents and the truth about them; by default one from nothing.
    """
    world = world or random_world(options)
    ranker = make_ranker(options, world)
    users = make_users(options, world)
    popularity = np.arange(1.0, len(world.query_ids) + 1) ** -options.query_exponent
    popularity /= popularity.sum()
    for block, (update, number) in enumerate(_blocks(options, round(popularity @ world.n_docs))):
        ranker.update(update)
        rng = random_stream(options, SESSION, block)
        query = rng.choice(len(popularity), len(number), p=popularity)
        sessions = draw_sessions(options, number, query, block)
        doc = ranker.rank(sessions, rng)
        if (sessions.experiment != NO_EXPERIMENT).any():
            rearranging = random_stream(options, EXPERIMENT, block, 1)
            doc = intervene(doc, sessions.experiment, options.swaps, rearranging)
        click = users(sessions, doc, rng)
        ranker.observe(sessions, doc, click)
        yield _log_frame(options, sessions, doc, click, world)


def _blocks(options: SimulationOptions, scores_per_session: int) -> Iterator[tuple[int, Integers]]:
    """Split the sessions into blocks, (update, their numbers): before a ranker learns, a block ends."""
    size = max(SCORES_PER_BLOCK // scores_per_session, 1)
    n_updates = options.n_updates if options.feedback_strength > 0 else 1
    for update in range(n_updates):
        first, end = (-(-at * options.n_sessions // n_updates) for at in (update, update + 1))
        for start in range(first, end, size):
            yield update, np.arange(start, min(start + size, end))


def _log_frame(
    options: SimulationOptions, sessions: Sessions, doc: Integers, click: Clicks, world: World
) -> pl.DataFrame:
    """Lay out sessions, shape (S,), and what they show, shape (S, K), as one row per impression."""
    n_positions = doc.shape[1]
    page = np.repeat(np.arange(len(doc)), n_positions)
    position = np.tile(np.arange(1, n_positions + 1, dtype=np.int32), len(doc))
    columns: dict[str, object] = {
        "session": sessions.number[page],
        "query": world.query_ids.gather(sessions.query).gather(page),
        "doc": world.doc_ids.gather((world.start[sessions.query][:, None] + doc).ravel()),
        "position": position,
        "click": click.ravel(),
    }
    columns |= {name: values.gather(page) for name, values in _traits(options, sessions).items()}
    log = pl.DataFrame(columns)
    return log if options.depth is None else log.filter(position <= sessions.depth[page])


def _traits(options: SimulationOptions, sessions: Sessions) -> dict[str, pl.Series]:
    """What the log says about sessions beyond their number and query, length S each."""
    traits: dict[str, pl.Series] = {}
    if options.days:  # to the second, evenly over the days
        day, rest = np.divmod(sessions.number * options.days, options.n_sessions)
        second = FIRST_SECOND + day * _SECONDS_PER_DAY + rest * _SECONDS_PER_DAY // options.n_sessions
        traits["timestamp"] = pl.Series(second * 1_000_000).cast(pl.Datetime("us"))
    if options.segments > 1:
        traits["segment"] = pl.Series(sessions.segment.astype(np.int32))
    if options.contexts:
        traits["device"] = pl.Series(sessions.context.astype(np.int32))
    if options.randomized_share > 0:
        traits["policy"] = pl.Series(["ranker", "random"]).gather((sessions.experiment == RANDOM).astype(np.int64))
    if options.swaps:
        names = pl.Series([None] * FIRST_SWAP + [f"swap {one}-{other}" for one, other in options.swaps])
        traits["experiment"] = names.gather(sessions.experiment)
    return traits
