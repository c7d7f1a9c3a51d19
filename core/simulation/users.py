"""Users: what they click on the pages that they are shown, model by model.

With cells (PBM, UBM), P(click) = theta_cell * gamma_qd * readiness * shock. Users of all other models are those of
`ClickModel.sample`; what documents differ in is

    attractiveness, relevance     gamma_qd, that of the world, as is the click rate of DCTR
    satisfaction                  s_qd ~ Beta(a, b)
    click rate by rank            rho_qdk = theta_k (gamma_qd + scale * u_qdk) / 2, u_qdk ~ U[0, 1]

with scale the world's attractiveness_scale: without u, the last one would be PBM.
"""

from collections.abc import Callable, Mapping

import numpy as np

from posbias.core.arrays.count_table import Floats, Integers
from posbias.core.browsing.batch import PageBatch
from posbias.core.errors import UsageError
from posbias.core.models import get_click_model
from posbias.core.simulation.clicks import Clicks, draw_clicks
from posbias.core.simulation.options import MOST_RATES, SimulationOptions
from posbias.core.simulation.parameters import CELL_MODELS, has_rates_by_position, parameters_by_pair
from posbias.core.simulation.rankers import Sessions
from posbias.core.simulation.worlds import RATES, SATISFACTION, World, random_stream, theta_shocks

Users = Callable[[Sessions, Integers, np.random.Generator], Clicks]
"""The clicks on the pages of sessions, shape (S, K), which show these documents; below a session's depth, any value."""


def make_users(options: SimulationOptions, world: World) -> Users:
    """The users that the options ask for."""
    return _users_by_cell(options, world) if options.model in CELL_MODELS else _users_of_pages(options, world)


def _users_by_cell(options: SimulationOptions, world: World) -> Users:
    """Users whose examination depends on a cell, in each context on its own."""
    shocks = theta_shocks(options, len(world.query_ids))
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
        return draw_clicks(attraction, theta, rng, sessions.context)

    return click


def _users_of_pages(options: SimulationOptions, world: World) -> Users:
    """Users of any click model, page by page; each impression is a unit with the parameters of what it shows."""
    model, by_pair = get_click_model(options.model), values_by_pair(options, world)

    def click(sessions: Sessions, doc: Integers, rng: np.random.Generator) -> Clicks:
        position = np.arange(1, doc.shape[1] + 1, dtype=np.int64)
        values = {name: _of_impressions(table, sessions, doc) for name, table in by_pair.items()}
        pages = PageBatch(
            unit=np.arange(doc.size).reshape(doc.shape),
            position=np.broadcast_to(position, doc.shape),
            click=np.zeros(doc.shape, dtype=np.bool_),
            shown=position <= sessions.depth[:, None],
            weight=np.ones(len(doc)),
        )
        return model.sample({**options.model_parameters, **values}, pages, rng).astype(np.int8)

    return click


def _of_impressions(table: Floats, sessions: Sessions, doc: Integers) -> Floats:
    """Values of what is shown, row by row, and one for units that nobody has seen."""
    pair = (sessions.segment[:, None], sessions.query[:, None], doc)
    values = table[pair] if table.ndim == len(pair) else table[(*pair, np.arange(doc.shape[1]))]
    return np.append(values.ravel(), 0.0)


def values_by_pair(options: SimulationOptions, world: World) -> Mapping[str, Floats]:
    """What documents differ in, by parameter.

    Returns:
        Shape (G, Q, D), or (G, Q, D, K) for the click rate of RDCTR.

    Raises:
        UsageError: RDCTR has more of them than fit into memory.
    """
    names = parameters_by_pair(options.model)
    if has_rates_by_position(options.model):
        return {name: _rates(options, world) for name in names}
    values = dict.fromkeys(names, world.attractiveness)
    if "satisfaction" in names:  # the same in all segments
        shape = world.attractiveness.shape
        drawn = random_stream(options, SATISFACTION).beta(*options.satisfaction_shape, size=shape[1:])
        values["satisfaction"] = np.broadcast_to(drawn, shape)
    return values


def _rates(options: SimulationOptions, world: World) -> Floats:
    """Click rates by document and position, shape (G, Q, D, K)."""
    size = world.attractiveness.size * options.n_positions
    if size > MOST_RATES:
        raise UsageError(
            f"{options.model} has a click rate for each (segment, query, document, position): there would be {size:,} "
            f"of them, and there may be {MOST_RATES:,}. Ask for fewer queries, documents or positions."
        )
    shape = (*world.attractiveness.shape[1:], options.n_positions)
    own = options.attractiveness_scale * random_stream(options, RATES).random(shape)
    return options.theta_by_position * (world.attractiveness[..., None] + own) / 2
