"""Simulate click logs with known truth, for tests and sample logs.

A world is one attractiveness gamma per (query, document) and one examination probability theta per cell e;
every click is Bernoulli with

    P(click) = theta_e * gamma_qd

    PBM: e = position r                          theta_e = r ** -eta
    UBM: e = (position r, previous click r')     theta_e = (r - r') ** -eta, r' = 0 where there is none

unless theta is given as a table. Users of all other click models are drawn from these models, see below. Queries have
Zipfian frequency, and a Plackett-Luce ranker orders the documents of a query anew in every session, as random as an
option says: documents change places, and better ones are higher, as in a real log. Options add what real logs have
beyond that: rankers that learn from clicks or know the user, contexts, sessions that end early or click more readily,
experiments.

Sessions are drawn in blocks, each from its own stream of random numbers, so that a log that is written block by block
has the same rows as a log in memory.

Sources: Richardson et al. 2007 and Craswell et al. 2008 (position-based model); Dupret & Piwowarski 2008
(user browsing model); Plackett 1975 (ranker); Joachims, Swaminathan & Schnabel 2017 (theta = r ** -eta).

Rankers: a Plackett-Luce ranker orders the documents of a query anew in every session,

    P(d first) = exp(l_d) / sum over d' of exp(l_d'), and so on for each next position,
    l_d        = strength * score_d / sd + feedback_strength * rate_d / sd,
    rate_d     = (clicks_d + s * v) / (impressions_d + s) over all sessions before the last update,

where v is the click rate of all impressions and s = FEEDBACK_PRIOR. Without clicks so far, as at the start, rate_d is
the same for all documents, and only the score matters.

Sources: Plackett 1975; Joachims, Swaminathan & Schnabel 2017 (swap experiments); Radlinski, Kurup & Joachims 2008
(team draft).

Users: with cells (PBM, UBM), P(click) = theta_cell * gamma_qd * readiness * shock. Users of all other models are drawn
by `ClickModel.sample`; the parameters of documents are

    attractiveness, relevance     gamma_qd of the world; also the click rate of DCTR
    satisfaction                  s_qd ~ Beta(a, b)
    click rate by rank            rho_qdk = theta_k (gamma_qd + scale * u_qdk) / 2, u_qdk ~ U[0, 1]

with scale the world's attractiveness_scale: without u, the last one is PBM, up to the factor 1 / 2.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Flags, Floats, Integers
from posbias.core.errors import UsageError
from posbias.core.models import get_click_model
from posbias.core.models.page_matrices import PageBatch
from posbias.core.simulation import worlds
from posbias.core.simulation.options import (
    CELL_MODELS,
    MOST_RATES,
    SimulationOptions,
    has_rates_by_position,
    parameters_by_pair,
    shared_parameters,
    values_by_position,
)
from posbias.core.simulation.worlds import SESSION, Clicks, World

FEEDBACK_PRIOR = 10.0  # prior impressions at the overall click rate: a single click has little effect
NO_EXPERIMENT, RANDOM, FIRST_SWAP = 0, 1, 2


@dataclass(frozen=True)
class Sessions:
    """Traits of the S sessions of a block, shape (S,) unless stated otherwise."""

    number: Integers  # number of the session in the log
    query: Integers  # number of the query
    segment: Integers  # segment of the user
    context: Integers
    readiness: Floats  # factor on click probabilities
    depth: Integers  # number of positions shown, in 1 .. K (slots of all lists)
    blocks: Flags  # shape (S, B), whether each block is shown
    experiment: Integers  # NO_EXPERIMENT, RANDOM, or FIRST_SWAP + number of the pair of positions
    user: Integers  # in 0 .. users - 1; 0 without users


def draw_sessions(
    options: SimulationOptions, number: Integers, query: Integers, block: int, shares: Floats
) -> Sessions:
    """Draw the traits of sessions, each from its own stream.

    Args:
        options: options of the simulation.
        number: numbers of the sessions, shape (S,).
        query: queries of the sessions, shape (S,).
        block: number of the block.
        shares: shape (Q, B), see `block_shares`.
    """
    size, n_positions, depth = len(number), options.n_slots, np.full(len(number), options.n_slots)
    blocks = worlds.random_stream(options, worlds.BLOCKS, block).random((size, shares.shape[1])) < shares[query]

    user = worlds.random_stream(options, worlds.USERS, block).integers(max(options.users, 1), size=size)

    def choice(stream: int, n_values: int) -> Integers:
        if options.users:  # a trait of the user
            return worlds.random_stream(options, stream, 0, 1).integers(n_values, size=options.users)[user]
        return worlds.random_stream(options, stream, block).integers(n_values, size=size)

    if options.depth is not None:
        rng = worlds.random_stream(options, worlds.DEPTH, block)
        if isinstance(options.depth, tuple):
            weights = np.array(options.depth)
            depth = rng.choice(np.arange(1, n_positions + 1), size, p=weights / weights.sum())
        elif options.depth < 1:
            depth = np.minimum(rng.geometric(1 - options.depth, size), n_positions)
    experiment = np.full(size, NO_EXPERIMENT)
    if options.randomized_share + options.swap_share > 0:
        rng = worlds.random_stream(options, worlds.EXPERIMENT, block)
        lot, pair = rng.random(size), rng.integers(max(len(options.swaps), 1), size=size)
        experiment[lot < options.randomized_share] = RANDOM
        swaps = (lot >= options.randomized_share) & (lot < options.randomized_share + options.swap_share)
        experiment[swaps] = FIRST_SWAP + pair[swaps]
    return Sessions(
        number=number,
        query=query,
        segment=choice(worlds.SEGMENT, options.segments),
        context=choice(worlds.CONTEXT, max(len(options.contexts), 1)),
        readiness=np.array(options.readiness)[choice(worlds.READINESS, len(options.readiness))],
        depth=depth,
        experiment=experiment,
        blocks=blocks,
        user=user,
    )


class Ranker:
    """A Plackett-Luce ranker with a score for each segment, query and document; see the equations of the module.

    Orders are the arrivals of exponential races with rates exp(l_d); of infinite strength, they are sorted by score.
    With feedback, each update includes the click rates so far.
    """

    def __init__(self, options: SimulationOptions, world: World) -> None:
        """Compute logits; for interleaving, all D documents are ranked, else K."""
        self._n_positions, self._update = world.score.shape[2] if options.interleave else options.n_slots, 0
        self._feedback = options.feedback_strength / world.deviation
        self._order: Integers | None = None
        if np.isinf(options.ranker_strength):  # ties by the number of the document
            self._order = np.argsort(-world.score, axis=2, kind="stable")[:, :, : self._n_positions]
            return
        score = np.where(world.present, world.score, 0.0)  # 0 * -inf is NaN
        logits = options.ranker_strength / world.deviation * score
        self._by_score = self._logits = np.where(world.present, logits, -np.inf)
        # Queries are grouped by size, so that a few large ones do not pad all others.
        powers_of_two = 2 ** np.ceil(np.log2(world.n_docs)).astype(np.int64)
        self._width = np.minimum(powers_of_two, world.score.shape[2])
        if self._feedback:
            self._impressions, self._clicks = np.zeros(world.score.shape), np.zeros(world.score.shape)

    def rank(self, sessions: Sessions, rng: np.random.Generator) -> Integers:
        """Return the documents by position, shape (S, K), or (S, D) for interleaving."""
        if self._order is not None:
            return self._order[sessions.segment, sessions.query]
        doc = np.tile(np.arange(self._n_positions), (len(sessions.query), 1))  # padding comes last
        width = self._width[sessions.query]
        for columns in np.unique(width):
            rows = np.flatnonzero(width == columns)
            logits = self._logits[:, :, :columns][sessions.segment[rows], sessions.query[rows]]
            arrival = np.log(rng.standard_exponential(logits.shape))
            arrival -= logits
            n_ranked = min(self._n_positions, columns)
            first = np.argpartition(arrival, n_ranked - 1, axis=1)[:, :n_ranked]
            order = np.argsort(np.take_along_axis(arrival, first, axis=1), axis=1)
            doc[rows, :n_ranked] = np.take_along_axis(first, order, axis=1)
        return doc

    def update(self, number: int) -> None:
        """Update the logits by the click rates so far, if the ranker has feedback and the update's number is new."""
        if not self._feedback or number == self._update:
            return
        self._update = number
        overall = self._clicks.sum() / max(self._impressions.sum(), 1.0)
        rate = (self._clicks + FEEDBACK_PRIOR * overall) / (self._impressions + FEEDBACK_PRIOR)
        self._logits = self._by_score + self._feedback * rate

    def observe(self, sessions: Sessions, doc: Integers, click: Clicks) -> None:
        """Count impressions and clicks, both of shape (S, K), if the ranker has feedback."""
        if not self._feedback:
            return
        shown: Flags = np.arange(self._n_positions) < sessions.depth[:, None]
        place = np.ravel_multi_index((sessions.segment[:, None], sessions.query[:, None], doc), self._clicks.shape)
        np.add.at(self._impressions.reshape(-1), place[shown], 1.0)
        np.add.at(self._clicks.reshape(-1), place[shown & (click == 1)], 1.0)


def intervene(
    doc: Integers, experiment: Integers, swaps: Sequence[tuple[int, int]], rng: np.random.Generator
) -> Integers:
    """Rearrange the pages of sessions in an experiment.

    Args:
        doc: documents in the ranker's order, shape (S, K); not changed.
        experiment: shape (S,): RANDOM shuffles the K documents uniformly, FIRST_SWAP + i swaps the documents of the
            i-th pair of positions with probability 1/2.
        swaps: pairs of positions, from 1.
        rng: random generator.

    Returns:
        The documents by position, shape (S, K).
    """
    shown = doc.copy()
    random = experiment == RANDOM
    shown[random] = rng.permuted(doc[random], axis=1)
    chosen = rng.random(len(doc)) < 0.5  # noqa: PLR2004 - a fair coin
    for number, pair in enumerate(swaps):
        swapped, at = np.flatnonzero(chosen & (experiment == FIRST_SWAP + number))[:, None], np.array(pair) - 1
        shown[swapped, at] = doc[swapped, at[::-1]]
    return shown


def team_draft(ranks: Integers, b_first: Integers) -> tuple[Integers, Integers]:
    """Interleave two rankings: in each round both pick their best remaining document, in random order.

    Args:
        ranks: rank of each document by rankers A and B, from 0, shape (2, S, D).
        b_first: 0 or 1, shape (S, K): whether B picks first in the round that begins at an odd position (from 1).

    Returns:
        The documents, and the ranker that picked each (0 A, 1 B), both of shape (S, K). Source: Radlinski, Kurup &
        Joachims 2008.
    """
    left, page = ranks.copy(), np.arange(len(b_first))
    team, doc = np.empty_like(b_first), np.empty_like(b_first)
    for place in range(b_first.shape[1]):
        team[:, place] = 1 - team[:, place - 1] if place % 2 else b_first[:, place]
        doc[:, place] = left[team[:, place], page].argmin(axis=1)
        left[:, page, doc[:, place]] = ranks.shape[2]
    return doc, team


Users = Callable[[Sessions, Integers, np.random.Generator], Clicks]
"""Function from sessions and documents, shape (S, K), to clicks, shape (S, K), undefined below a session's depth."""


def _users_by_cell(options: SimulationOptions, world: World) -> Users:
    """Return users of PBM or UBM, with theta by context, shown blocks and cell."""
    shocks = worlds.theta_shocks(options, len(world.query_ids))
    theta = options.examination
    if options.model == "ubm":
        position, previous = np.array(options.cells).T
        theta = np.zeros((len(theta), options.n_positions, options.n_positions))
        theta[:, position - 1, previous] = options.examination

    def click(sessions: Sessions, doc: Integers, rng: np.random.Generator) -> Clicks:
        attraction = world.attractiveness[sessions.segment[:, None], sessions.query[:, None], doc]
        attraction *= sessions.readiness[:, None]
        if shocks is not None:
            attraction *= shocks[sessions.query]
        curve = sessions.context
        for shown in sessions.blocks.T:
            curve = 2 * curve + shown
        return worlds.draw_clicks(attraction, theta, rng, curve)

    return click


def _users_of_pages(options: SimulationOptions, world: World) -> Users:
    """Return users of a click model without cells; each impression is a unit with the parameters of its document."""
    model, by_pair = get_click_model(options.model), values_by_pair(options, world)

    def click(sessions: Sessions, doc: Integers, rng: np.random.Generator) -> Clicks:
        position = np.arange(1, doc.shape[1] + 1, dtype=np.int64)
        pair, values = (sessions.segment[:, None], sessions.query[:, None], doc), dict[str, Floats]()
        for name, table in by_pair.items():  # by impression, and a last entry that no impression uses
            shown = table[pair] if table.ndim == len(pair) else table[(*pair, position - 1)]
            values[name] = np.append(shown.ravel(), 0.0)
        pages = PageBatch(
            unit=np.arange(doc.size).reshape(doc.shape),
            position=np.broadcast_to(position, doc.shape),
            click=np.zeros(doc.shape, dtype=np.bool_),
            shown=position <= sessions.depth[:, None],
            weight=np.ones(len(doc)),
        )
        return model.sample({**options.model_parameters, **values}, pages, rng).astype(np.int8)

    return click


def values_by_pair(options: SimulationOptions, world: World) -> Mapping[str, Floats]:
    """Return the parameters of (segment, query, document) by name.

    Returns:
        Arrays of shape (G, Q, D), or (G, Q, D, K) for the click rate of RDCTR.

    Raises:
        UsageError: RDCTR has more click rates than fit into memory.
    """
    names = parameters_by_pair(options.model)
    if has_rates_by_position(options.model):
        size = world.attractiveness.size * options.n_positions
        if size > MOST_RATES:
            raise UsageError(
                f"{options.model} has a click rate for each (segment, query, document, position): there would be "
                f"{size:,} of them, and there may be {MOST_RATES:,}. Ask for fewer queries, documents or positions."
            )
        shape = (*world.attractiveness.shape[1:], options.n_positions)
        deviation = options.attractiveness_scale * worlds.random_stream(options, worlds.RATES).random(shape)
        rates = options.theta_by_position * (world.attractiveness[..., None] + deviation) / 2
        return dict.fromkeys(names, rates)
    values = dict.fromkeys(names, world.attractiveness)
    if "satisfaction" in names:  # the same in all segments
        shape = world.attractiveness.shape
        drawn = worlds.random_stream(options, worlds.SATISFACTION).beta(*options.satisfaction_shape, size=shape[1:])
        values["satisfaction"] = np.broadcast_to(drawn, shape)
    return values


NONE = pl.DataFrame()


def count_simulated_cells(options: SimulationOptions, log: pl.DataFrame) -> pl.DataFrame:
    """Count impressions and clicks of a log, or of a block of it, by position, cell columns and device."""
    cell = ["position", *(column.name for column in options.cell_columns), *(["device"] if options.contexts else [])]
    return log.group_by(cell).agg(impressions=pl.len().cast(pl.Int64), clicks=pl.col("click").cast(pl.Int64).sum())


def true_propensities(options: SimulationOptions, counts: pl.DataFrame | None = None) -> pl.DataFrame:
    """Return the true propensity per cell; an empty table without columns for models without cells.

    Columns: position, those of `cell_columns`, previous_click (UBM only), device (with contexts only), propensity
    (theta relative to position 1 of the same context, on the most frequent pages if there are blocks), examination
    (theta).

    Args:
        options: options of the simulation.
        counts: counts of the log, see `count_cells`; by default pages without blocks are taken as the most frequent.
    """
    if options.model not in CELL_MODELS:
        return NONE
    theta = options.examination
    curve, cell = (index.ravel() for index in np.indices(theta.shape))
    position, previous = np.array(options.cells, dtype=np.int32)[cell].T
    context, n_blocks = curve >> len(options.blocks), len(options.blocks)
    shown = {column.name: (curve >> n_blocks - 1 - at) % 2 == 1 for at, column in enumerate(options.blocks)}
    slots = {column.name: options.slots[column.name][cell].astype(np.int32) for column in options.lists}
    frame = pl.DataFrame(
        {
            "position": position,
            **slots,
            **shown,
            **({} if options.model == "pbm" else {"previous_click": previous}),
            **({"device": context.astype(np.int32)} if options.contexts else {}),
            "propensity": theta.ravel(),
            "examination": theta.ravel(),
        }
    )
    pages = [*(["device"] if options.contexts else []), *shown]
    order = [pl.col("position")]
    if counts is not None and shown:
        counts = counts.group_by(pages).agg(pl.sum("impressions"))
        frame = frame.join(counts, on=pages, how="left", maintain_order="left")
        order.append(-pl.col("impressions").fill_null(0))
    reference = pl.col("examination").sort_by(order, maintain_order=True).first()
    reference = reference.over("device") if options.contexts else reference
    return frame.with_columns(propensity=pl.col("examination") / reference).drop("impressions", strict=False)


def true_parameters(options: SimulationOptions) -> pl.DataFrame:
    """Return the shared parameters of models without cells: parameter, position (null if it has no effect), value.

    Parameters from which the model's own are computed are included. An empty table without columns if there are none.
    """
    values = dict[str, Floats | float]()
    for parameter in shared_parameters(options.model):
        if parameter.makes is not None:
            given = values_by_position(parameter, dict(options.parameters), options.n_positions)
            values |= {"examination": options.theta_by_position, parameter.name: given}
        own = options.model_parameters[parameter.of_model]
        values[parameter.of_model] = own[1:] if own.ndim == 1 else float(own.flat[0])
    if not values:
        return NONE
    frames = [
        pl.DataFrame(
            {
                "parameter": name,
                "position": pl.Series([None] if np.ndim(value) == 0 else range(1, np.size(value) + 1), dtype=pl.Int32),
                "value": np.atleast_1d(value),
            }
        )
        for name, value in values.items()
    ]
    return pl.concat(frames, rechunk=True)


def true_attractiveness(options: SimulationOptions, world: World | None = None) -> pl.DataFrame:
    """Return the truth per (query, document), shown or not: query, doc, segment (if several), attractiveness.

    Attractiveness is the mean over readiness. Some models have other columns instead, or beside it: satisfaction (DBN,
    SDBN), relevance (trust bias), click_rate (DCTR; RDCTR also has a column position). An empty table without columns
    if documents do not differ.
    """
    world = world or worlds.random_world(options)
    tables = values_by_pair(options, world)
    if not tables:
        return NONE
    pair = query, doc = np.nonzero(world.present)
    by_position = has_rates_by_position(options.model)
    n_rows = options.n_positions if by_position else 1
    row = np.repeat(np.arange(len(query)), n_rows)  # one row per pair, or per pair and position
    columns = {
        "query": world.query_ids.gather(query).gather(row),
        "doc": world.doc_ids.gather(world.start[query] + doc).gather(row),
        "position": pl.Series(np.tile(np.arange(1, n_rows + 1, dtype=np.int32), len(query))),
    }
    segments = [
        pl.DataFrame(
            columns
            | {"segment": pl.repeat(segment, len(row), dtype=pl.Int32, eager=True)}
            | {name: pl.Series(table[segment][pair].ravel()) for name, table in tables.items()}
        )
        for segment in range(options.segments)
    ]
    keys = ["query", "doc", *(["segment"] if options.segments > 1 else []), *(["position"] if by_position else [])]
    return pl.concat(segments, rechunk=True).select(*keys, *tables)


SCORES_PER_BLOCK = 2**21  # (session, document) scores of a block: 16 MiB per array
FIRST_SECOND = 1_767_571_200  # 2026-01-05 00:00 UTC, a Monday, in seconds since 1970
_SECONDS_PER_DAY = 86_400


@dataclass(frozen=True)
class Simulation:
    """A simulated log with its truth."""

    log: pl.DataFrame  # see `simulate_blocks`
    propensities: pl.DataFrame  # see `true_propensities`
    attractiveness: pl.DataFrame  # see `true_attractiveness`
    parameters: pl.DataFrame  # see `true_parameters`


def simulate(options: SimulationOptions, world: World | None = None) -> Simulation:
    """Draw a whole log into memory, with its truth: about 20 bytes per impression."""
    world = world or worlds.random_world(options)
    log = pl.concat(simulate_blocks(options, world), rechunk=True)
    return Simulation(
        log=log,
        propensities=true_propensities(options, count_simulated_cells(options, log)),
        attractiveness=true_attractiveness(options, world),
        parameters=true_parameters(options),
    )


def simulate_blocks(options: SimulationOptions, world: World | None = None) -> Iterator[pl.DataFrame]:
    """Draw a log block by block, in bounded memory; concatenated, the blocks are `simulate(options, world).log`.

    Columns: session, query, doc, position (Int32, 1-based), click (Int8, 0 or 1), sorted by session, list and position.
    A document's number is unique within its query only. Depending on the options, also cell columns (Int32, from 1, for
    lists; Boolean for blocks), timestamp (rising with the session), segment and device (Int32, from 0), policy
    ("random" for shuffled pages, else "ranker"), experiment ("swap 1-5" in the experiment, swapped or not, else null),
    user (Int32, from 0), team ("A" or "B", the ranker that picked the document), rank_a and rank_b (Int32, from 1, the
    document's rank by each ranker).

    Args:
        options: options of the simulation.
        world: documents and their truth; by default `random_world`.
    """
    world = world or worlds.random_world(options)
    ranker = Ranker(options, world)
    ranker_b = ranker if world.score_b is None else Ranker(options, replace(world, score=world.score_b))
    users = (_users_by_cell if options.model in CELL_MODELS else _users_of_pages)(options, world)
    popularity = np.arange(1.0, len(world.query_ids) + 1) ** -options.query_exponent
    popularity /= popularity.sum()
    shares = worlds.block_shares(options, len(world.query_ids))
    for block, (update, number) in enumerate(_blocks(options, round(popularity @ world.n_docs))):
        ranker.update(update)
        rng = worlds.random_stream(options, SESSION, block)
        query = rng.choice(len(popularity), len(number), p=popularity)
        sessions = draw_sessions(options, number, query, block, shares)
        draws_of_b, teams = deepcopy(rng), dict[str, Integers]()
        doc = ranker.rank(sessions, rng)
        if options.interleave:  # both rankers use the same random numbers: equal scores give equal rankings
            ranks = np.argsort([doc, ranker_b.rank(sessions, draws_of_b)], axis=2)
            coins = worlds.random_stream(options, worlds.TEAMS, block).integers(2, size=(len(doc), options.n_slots))
            doc, team = team_draft(ranks, coins)
            rank_a, rank_b = np.take_along_axis(ranks, doc[None], axis=2) + 1
            teams = {"team": team, "rank_a": rank_a, "rank_b": rank_b}
        if (sessions.experiment != NO_EXPERIMENT).any():
            rearranging = worlds.random_stream(options, worlds.EXPERIMENT, block, 1)
            doc = intervene(doc, sessions.experiment, options.swaps, rearranging)
        click = users(sessions, doc, rng)
        ranker.observe(sessions, doc, click)
        yield _log_frame(options, sessions, doc, click, world, teams)


def _blocks(options: SimulationOptions, scores_per_session: int) -> Iterator[tuple[int, Integers]]:
    """Yield (number of the update, numbers of the sessions) for each block; a block ends before an update."""
    size = max(SCORES_PER_BLOCK // scores_per_session, 1)
    n_updates = options.n_updates if options.feedback_strength > 0 else 1
    for update in range(n_updates):
        first, end = (-(-at * options.n_sessions // n_updates) for at in (update, update + 1))
        for start in range(first, end, size):
            yield update, np.arange(start, min(start + size, end))


def _log_frame(
    options: SimulationOptions,
    sessions: Sessions,
    doc: Integers,
    click: Clicks,
    world: World,
    teams: Mapping[str, Integers],
) -> pl.DataFrame:
    """Return one row per impression, from sessions, shape (S,), and their documents and clicks, shape (S, K)."""
    page, slot = (index.ravel() for index in np.indices(doc.shape))
    slots = {name: number.astype(np.int32)[slot] for name, number in options.slots.items()}
    columns: dict[str, object] = {
        "session": sessions.number[page],
        "query": world.query_ids.gather(sessions.query).gather(page),
        "doc": world.doc_ids.gather((world.start[sessions.query][:, None] + doc).ravel()),
        "position": slots.pop("position"),
        "click": click.ravel(),
        **slots,
    }
    traits: dict[str, pl.Series] = {}  # further columns of sessions, length S each
    traits |= {column.name: pl.Series(shown) for column, shown in zip(options.blocks, sessions.blocks.T, strict=True)}
    if options.days:  # evenly over the days, in whole seconds
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
    if options.users:
        traits["user"] = pl.Series(sessions.user.astype(np.int32))
    columns |= {name: values.gather(page) for name, values in traits.items()}
    columns |= {name: values.ravel().astype(np.int32) for name, values in teams.items()}
    if teams:
        columns["team"] = pl.Series(["A", "B"]).gather(teams["team"].ravel())
    log = pl.DataFrame(columns)
    return log if options.depth is None else log.filter(slot < sessions.depth[page])
