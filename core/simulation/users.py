"""Users: what they click on the pages that they are shown, model by model.

With cells (PBM, UBM), P(click) = theta_cell * gamma_qd * readiness * shock. Users of all other models are those of
`ClickModel.sample`; what documents differ in is

    attractiveness, relevance     gamma_qd, that of the world, as is the click rate of DCTR
    satisfaction                  s_qd ~ Beta(a, b)
    click rate by rank            rho_qdk = theta_k (gamma_qd + scale * u_qdk) / 2, u_qdk ~ U[0, 1]

with scale the world's attractiveness_scale: without u, the last one would be PBM.
"""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from posbias.core.browsing.batch import PageBatch
from posbias.core.errors import UsageError
from posbias.core.models import get_click_model
from posbias.core.simulation.clicks import Clicks, draw_clicks
from posbias.core.simulation.options import MOST_RATES, SimulationOptions
from posbias.core.simulation.parameters import CELL_MODELS, has_rates_by_position, parameters_by_pair
from posbias.core.simulation.rankers import Sessions
from posbias.core.simulation.worlds import RATES, SATISFACTION, World, random_stream, theta_shocks

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class Users(Protocol):
    """Who clicks."""

    def click(self, sessions: Sessions, doc: Integers, rng: np.random.Generator) -> Clicks:
        """The clicks on pages, shape (S, K), which show these documents; below a session's depth, any value."""
        ...


def make_users(options: SimulationOptions, world: World) -> Users:
    """The users that the options ask for."""
    return CellUsers(options, world) if options.model in CELL_MODELS else PageUsers(options, world)


class CellUsers:
    """Users whose examination depends on a cell, in each context on its own."""

    def __init__(self, options: SimulationOptions, world: World) -> None:
        self._attractiveness = world.attractiveness
        self._shocks = theta_shocks(options, len(world.query_ids))
        self._examination = _examination(options)

    def click(self, sessions: Sessions, doc: Integers, rng: np.random.Generator) -> Clicks:
        """P(click) = examination * gamma * readiness * shock."""
        query = sessions.query
        attraction = self._attractiveness[sessions.segment[:, None], query[:, None], doc]
        attraction *= sessions.readiness[:, None]
        if self._shocks is not None:
            attraction *= self._shocks[query]
        return draw_clicks(attraction, self._examination, rng, sessions.context)


def _examination(options: SimulationOptions) -> Floats:
    """Theta as `draw_clicks` takes it: shape (C, K) for PBM, (C, K, K) for UBM."""
    if options.model == "pbm":
        return options.examination
    position, previous = np.array(options.cells).T
    n_contexts, n_positions = len(options.examination), options.n_positions
    table = np.zeros((n_contexts, n_positions, n_positions))
    table[:, position - 1, previous] = options.examination
    return table


class PageUsers:
    """Users of any click model, page by page."""

    def __init__(self, options: SimulationOptions, world: World) -> None:
        self._model = get_click_model(options.model)
        self._shared = options.model_parameters
        self._by_pair = values_by_pair(options, world)

    def click(self, sessions: Sessions, doc: Integers, rng: np.random.Generator) -> Clicks:
        """Drawn by the model; each impression is a unit of its own, with the parameters of what it shows."""
        position = np.arange(1, doc.shape[1] + 1, dtype=np.int64)
        values = {name: _of_impressions(table, sessions, doc) for name, table in self._by_pair.items()}
        pages = PageBatch(
            unit=np.arange(doc.size).reshape(doc.shape),
            position=np.broadcast_to(position, doc.shape),
            click=np.zeros(doc.shape, dtype=np.bool_),
            shown=position <= sessions.depth[:, None],
            weight=np.ones(len(doc)),
        )
        return self._model.sample({**self._shared, **values}, pages, rng).astype(np.int8)


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
    if has_rates_by_position(options.model):
        return {name: _rates(options, world) for name in parameters_by_pair(options.model)}
    drawn = {"satisfaction": _satisfaction}
    return {
        name: drawn[name](options, world) if name in drawn else world.attractiveness
        for name in parameters_by_pair(options.model)
    }


def _satisfaction(options: SimulationOptions, world: World) -> Floats:
    """The same in all segments, shape (G, Q, D)."""
    shape = world.attractiveness.shape
    drawn = random_stream(options, SATISFACTION).beta(*options.satisfaction_shape, size=shape[1:])
    return np.broadcast_to(drawn, shape)


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
