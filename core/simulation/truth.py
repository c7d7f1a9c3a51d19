"""The truth behind a simulated log, as tables."""

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Floats
from posbias.core.simulation.options import SimulationOptions
from posbias.core.simulation.parameters import (
    CELL_MODELS,
    has_rates_by_position,
    shared_parameters,
    values_by_position,
)
from posbias.core.simulation.users import values_by_pair
from posbias.core.simulation.worlds import World, random_world

NONE = pl.DataFrame()


def true_propensities(options: SimulationOptions) -> pl.DataFrame:
    """The truth per cell; an empty table without columns where the model has no propensity by cell.

    Columns: position, previous_click (UBM only), device (only where there are contexts), propensity (theta relative
    to the first cell, position 1, of the same context), examination (theta itself).
    """
    if options.model not in CELL_MODELS:
        return NONE
    theta = options.examination
    context, cell = np.indices(theta.shape)
    position, previous = np.array(options.cells, dtype=np.int32)[cell.ravel()].T
    frame = pl.DataFrame(
        {
            "position": position,
            "previous_click": previous,
            "device": context.ravel().astype(np.int32),
            "propensity": (theta / theta[:, :1]).ravel(),
            "examination": theta.ravel(),
        }
    )
    needless = {"previous_click": options.model == "pbm", "device": not options.contexts}
    return frame.drop(name for name, drop in needless.items() if drop)


def true_parameters(options: SimulationOptions) -> pl.DataFrame:
    """What all documents share in models without cells: parameter, position (null where it is the same), value.

    Beside the model's own parameters there are those that they were made from. An empty table without columns where
    there are none.
    """
    values = dict[str, Floats | float]()
    theta = options.theta_by_position
    for parameter in shared_parameters(options.model):
        given = values_by_position(parameter, dict(options.parameters), options.n_positions)
        if parameter.makes is not None:
            values |= {"examination": theta, parameter.name: given}
        own = given * theta if parameter.times_theta else given
        values[parameter.of_model] = own if parameter.by_position or parameter.times_theta else float(own[0])
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
    """The truth per (query, document), shown or not: query, doc, segment (if there are several), attractiveness.

    Where sessions differ in readiness, it is the mean over them. Models have columns of their own instead, or beside
    it: satisfaction (DBN, SDBN), relevance (trust bias), click_rate (DCTR; RDCTR also has a column position). An empty
    table without columns where documents do not differ.
    """
    world = world or random_world(options)
    tables = values_by_pair(options, world)
    if not tables:
        return NONE
    pair = query, doc = np.nonzero(world.present)
    by_position = has_rates_by_position(options.model)
    n_rows = options.n_positions if by_position else 1
    row = np.repeat(np.arange(len(query)), n_rows)  # per pair, or per pair and position
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
