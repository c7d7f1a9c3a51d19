"""Options of a simulation, and their validation.

Shared parameters of click models without cells, the same for all documents, are given or have a default:

    rank CTR                    rho_k = rho theta_k
    trust bias                  P(click) = theta_k (eps+_k gamma + eps-_k (1 - gamma))
    DCM, DBN and click chain    probabilities to continue, see the models

Sources: Agarwal, Wang, Li, Bendersky & Najork 2019 (trust bias); Vardasbi, de Rijke & Markov 2021 (its values);
Chapelle & Zhang 2009 (users of the DBN go on nine times out of ten).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import numpy as np

from posbias.core.arrays.count_table import Floats, Integers
from posbias.core.errors import UsageError
from posbias.core.models import click_model_names, get_click_model
from posbias.core.models.page_matrices import Parameters

CELL_MODELS = ("pbm", "ubm")
"""Models with examination by cell; theta is their only shared parameter."""


@dataclass(frozen=True)
class SharedParameter:
    """A probability that users of the simulation can set."""

    name: str
    default: Callable[[Floats], Floats] | float  # function of positions from 1, or constant
    by_position: bool = False  # whether it depends on the position
    times_theta: bool = False  # whether the model's own parameter is this one times theta, by position
    makes: str | None = None  # name of the model's own parameter, if it is another

    @property
    def of_model(self) -> str:
        """Name of the model's own parameter."""
        return self.makes or self.name


_CLICK_RATE = SharedParameter("click_rate", 1 / 3)  # as many clicks as on the mean document of Beta(1, 2)
_PERCEIVED = SharedParameter(
    "perceived_if_relevant",
    lambda position: 1 - (np.minimum(position, 20) + 1) / 100,
    by_position=True,
    times_theta=True,
    makes="click_if_relevant",
)
_PERCEIVED_IF_NOT = SharedParameter(
    "perceived_if_not_relevant",
    lambda position: 0.65 / np.minimum(position, 10),
    by_position=True,
    times_theta=True,
    makes="click_if_not_relevant",
)
_SHARED: Mapping[str, tuple[SharedParameter, ...]] = {
    **dict.fromkeys(CELL_MODELS, ()),
    "gctr": (_CLICK_RATE,),
    "rctr": (replace(_CLICK_RATE, times_theta=True),),
    "tpbm": (_PERCEIVED, _PERCEIVED_IF_NOT),
    "dcm": (SharedParameter("continuation", lambda position: 0.75 * position**-0.3, by_position=True),),
}


def shared_parameters(model: str) -> tuple[SharedParameter, ...]:
    """Return the shared parameters of a model: those of `_SHARED`, or its own, with the start of EM as default."""
    if model in _SHARED:
        return _SHARED[model]
    return tuple(
        SharedParameter(parameter.name, parameter.start, parameter.shape == "position")
        for parameter in get_click_model(model).parameters
        if parameter.shape != "unit"
    )


def parameters_by_pair(model: str) -> tuple[str, ...]:
    """Return the names of the parameters by (query, document)."""
    return tuple(parameter.name for parameter in get_click_model(model).parameters if parameter.shape == "unit")


def uses_theta(model: str) -> bool:
    """Return whether clicks depend on theta, given by cell or by an exponent eta."""
    by_rank = any(parameter.times_theta for parameter in shared_parameters(model))
    return by_rank or model in CELL_MODELS or has_rates_by_position(model)


def has_rates_by_position(model: str) -> bool:
    """Return whether each (query, document, position) has a click rate."""
    return "position" in get_click_model(model).unit_columns


def values_by_position(parameter: SharedParameter, given: Mapping[str, tuple[float, ...]], n_positions: int) -> Floats:
    """Return the values of a shared parameter by position, shape (K,); a single given value holds for all positions."""
    if parameter.name in given:
        return np.broadcast_to(np.array(given[parameter.name], dtype=np.float64), n_positions)
    default = parameter.default
    return default(np.arange(1.0, n_positions + 1)) if callable(default) else np.full(n_positions, default)


Theta = float | tuple[float, ...]
"""An exponent eta, or examination probabilities in the order of the cells."""


@dataclass(frozen=True)
class CellColumn:
    """A cell column with factors on theta: the lists of a page, or a block above the results.

    Lists (no share): a page has n lists of K positions, numbered 1 .. n in the column; theta in list l is multiplied by
    the l-th of n factors. In a grid, lists are rows. Several such columns are nested, the first one outermost.

    A block (with a share): the column is true on pages with a block above the results, on which theta is multiplied by
    the factors. The share of such pages is drawn for each query from a Beta distribution.
    """

    name: str
    # Factors above 0 on theta: one for each list; for a block one, one by position, or one for each slot of the page
    factors: tuple[float, ...]
    # Mean in (0, 1) over queries of the share of pages with the block, and its standard deviation, 0 by default, below
    # sqrt(mean (1 - mean)); empty for lists
    share: tuple[float, ...] = ()


MOST_PAIRS = 10**8
"""Most (query, document, segment) of a world, which is in memory, at 24 bytes each or more."""

MOST_RATES = 10**7
"""Most (segment, query, document, position) with click rates, which are in memory, too, and are written."""

MOST_RANKERS = 2
MOST_USERS = 10**7
MOST_DAYS = 36_500
MOST_UPDATES = 86_400
"""Most updates of a ranker per day: one per second, the resolution of timestamps."""

MOST_POSITIONS = 1000
"""Most positions of a page; the user browsing model has about half their square as cells."""

MOST_CELL_COLUMNS = 8

RESERVED = (
    *("session", "query", "doc", "position", "click", "timestamp", "segment", "device", "policy", "experiment"),
    *("previous_click", "propensity", "examination", "impressions", "clicks"),
    *("team", "rank_a", "rank_b", "user"),
)
"""Columns of a simulated log and of its truth, whose names cell columns cannot have."""

SMALLEST_SHAPE, LARGEST_SHAPE = 1e-6, 1e6
"""Limits of the parameters of a Beta distribution: beyond, all draws are 0 or 1, or all are equal."""

SMALLEST_SCALE = 1e-12
"""Least attractiveness: below it, a log would have no clicks."""

LARGEST_STRENGTH = 1e9
"""Largest strength of a ranker, short of infinity: beyond, its order never changes."""

LARGEST_SHOCK = 10.0
"""Largest spread of log theta: beyond, one query in millions has all the clicks."""

SMALLEST_THETA = 1e-12
"""Least theta: below it, a position would have no clicks."""

_ROUNDING = 1e-9


@dataclass(frozen=True)
class SimulationOptions:
    """Options of a simulation."""

    # Click model of the users, e.g. `pbm`: examination depends on the position; `ubm`: also on the last clicked
    # position above
    model: str = "pbm"
    n_sessions: int = 10_000  # number of results pages, >= 1
    n_queries: int = 100  # number of queries Q, >= 1; some may never be drawn
    docs_per_query: int = 20  # number of documents D that compete for a query, >= n_positions
    n_positions: int = 10  # number of positions K of a results page, >= 1
    query_exponent: float = 1.0  # Zipf exponent s >= 0 of the queries' frequency, P(query q) ~ q ** -s; 0 is uniform
    eta: float = 1.0  # severity of position bias, >= 0; 0 for none. Not used with `theta` or `contexts`
    # Examination probabilities in (0, 1] in the order of the cells (position, then previous click): K of them for PBM,
    # K (K + 1) / 2 for UBM. Not used with `contexts`
    theta: tuple[float, ...] | None = None
    # Log odds of the Plackett-Luce ranker per standard deviation of the score, >= 0: 0 for random order, infinity for
    # the order of the scores
    ranker_strength: float = 1.0
    # (a, b), both > 0, of the Beta distribution of attractiveness
    attractiveness_shape: tuple[float, float] = (1.0, 2.0)
    attractiveness_scale: float = 1.0  # factor in (0, 1] on all attractiveness, and so on all click rates
    seed: int = 0  # seed of all random numbers, >= 0
    # w in [0, 1] of score = w * quality + (1 - w) * noise, with noise drawn once per (query, document): the ranker's
    # permanent errors. Quality is attractiveness, or derived from labels
    score_weight: float = 1.0
    # Standard deviation sigma >= 0 of log-normal shocks on theta by query and position, theta_qk = theta_k exp(sigma
    # z_qk - sigma^2 / 2). Their mean is 1, except for the cap at P(click) = 1, so choose a small attractiveness_scale
    theta_shock: float = 0.0
    # One eta, or table like `theta`, per context, e.g. per device; contexts are equally frequent
    contexts: tuple[Theta, ...] = ()
    # Factors >= 0 on P(click | examined), of mean 1; each session draws one of them
    readiness: tuple[float, ...] = (1.0,)
    # Length of pages: probability in (0, 1] that the next position is shown if this one is, or K weights of pages that
    # end at position 1 .. K. None shows all positions
    depth: float | tuple[float, ...] | None = None
    # Number of segments of users, >= 1, equally frequent; they differ in attractiveness, which the ranker knows
    segments: int = 1
    # Share in [0, 1] of the (query, document) whose attractiveness is drawn anew in each further segment
    segment_difference: float = 0.5
    days: int = 0  # number of days over which sessions are spread evenly; 0 for no timestamps
    # Log odds of the ranker per standard deviation of the score, >= 0, from click rates up to its last update. Needs
    # two updates at least
    feedback_strength: float = 0.0
    # Number of updates per day of such a ranker, evenly spaced, the first one at the beginning of the day
    updates_per_day: int = 1
    randomized_share: float = 0.0  # share of the sessions that show the top K in uniformly random order
    swap_share: float = 0.0  # share of the sessions in a swap experiment
    # Pairs of positions whose documents are swapped with probability 1/2; a session in the experiment draws one pair
    swaps: tuple[tuple[int, int], ...] = ()
    # (a, b), both > 0, of the Beta distribution of satisfaction; not used by other models
    satisfaction_shape: tuple[float, float] = (1.0, 1.0)
    # Shared parameters by name, in [0, 1]: one value, or K by position. See `shared_parameters` for the defaults
    parameters: tuple[tuple[str, tuple[float, ...]], ...] = ()
    # Cell columns other than the position, PBM only. `theta` then has K values, or one for each slot of a page, list by
    # list; depth and swaps count slots in that order
    cell_columns: tuple[CellColumn, ...] = ()
    # Score weights of rankers A and B with independent noise, whose team drafts are shown. One weight: the same ranker
    # twice. Empty: one ranker, with `score_weight`
    interleave: tuple[float, ...] = ()
    # Number of users, equally frequent, who have a segment, context and readiness. 0: each session has its own user
    users: int = 0

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            UsageError: an option is out of range, or options contradict each other.
        """
        names, page = click_model_names(), "n_positions times lists" if self.lists else "n_positions"
        counts = (self.n_sessions, self.n_queries, self.n_positions, self.segments)
        pairs = self.n_queries * self.docs_per_query * self.segments
        demands = {
            f"model is one of {', '.join(names)}": self.model in names,
            "n_sessions, n_queries, n_positions and segments are at least 1": min(counts) >= 1,
            f"{page} is at most {MOST_POSITIONS:,}": self.n_slots <= MOST_POSITIONS,
            f"docs_per_query is at least {page}": self.docs_per_query >= self.n_slots,
            f"there are at most {MOST_PAIRS:,} (query, document, segment)": pairs <= MOST_PAIRS,
        }
        if all(demands.values()):  # other conditions need a known model of a possible size
            demands = self._demands()
        broken = [demand for demand, holds in demands.items() if not holds]
        if broken:
            raise UsageError(f"cannot simulate this: it requires that {'; '.join(broken)}.")

    def _demands(self) -> dict[str, bool]:
        """Return conditions on the options, for a known model of a possible size, and whether each holds."""

        def within(name: str, lowest: float, highest: float) -> dict[str, bool]:
            values: Floats = np.atleast_1d(getattr(self, name))
            inside = bool(((lowest <= values) & (values <= highest)).all())
            return {f"{name} lies in [{lowest:g}, {highest:g}]": inside}

        strength, feedback, n_positions = self.ranker_strength, self.feedback_strength, self.n_slots
        of_cells = self._demands_of_cells()
        demands = of_cells | {
            "query_exponent is finite and at least 0": 0 <= self.query_exponent < np.inf,
            f"ranker_strength lies in [0, {LARGEST_STRENGTH:g}] or is inf": 0 <= strength <= LARGEST_STRENGTH
            or strength == np.inf,
            **within("attractiveness_shape", SMALLEST_SHAPE, LARGEST_SHAPE),
            **within("satisfaction_shape", SMALLEST_SHAPE, LARGEST_SHAPE),
            **within("attractiveness_scale", SMALLEST_SCALE, 1),
            "seed is at least 0": self.seed >= 0,
            **within("score_weight", 0, 1),
            **within("segment_difference", 0, 1),
            **within("interleave", 0, 1),
            "interleave has one weight or two": len(self.interleave) in {0, 1, MOST_RANKERS},
            f"users is 0 to {MOST_USERS:,}": 0 <= self.users <= MOST_USERS,
        }
        if uses_theta(self.model):
            etas = [theta for theta in self._thetas if not isinstance(theta, tuple)]
            sizes = {len(theta) for theta in self._thetas if isinstance(theta, tuple)}
            by_position = f"{self.n_positions} values, one for each position, or " * bool(self.lists)
            of_theta = {
                "eta is at least 0": all(eta >= 0 for eta in etas),
                f"theta has {by_position}{len(self.cells)} values, one for each cell": sizes
                <= {len(self.cells), self.n_positions if self.lists else len(self.cells)},
            }
            if all((of_cells | of_theta).values()):
                lowest, highest = self.examination.min(), self.examination.max()
                times = " times the factors of cell_columns" * bool(self.cell_columns)
                in_range = bool(lowest >= SMALLEST_THETA and highest <= 1)
                of_theta[f"theta{times} lies in [{SMALLEST_THETA:g}, 1]"] = in_range
            demands |= of_theta

        depth = self.depth if isinstance(self.depth, tuple) else (1.0,) * n_positions
        continues = 1.0 if self.depth is None or isinstance(self.depth, tuple) else self.depth
        mean = sum(self.readiness) / max(len(self.readiness), 1)
        most_ready = max(self.readiness, default=1) * self.attractiveness_scale
        shares = (self.randomized_share, self.swap_share)
        demands |= {
            f"depth is in (0, 1] or {n_positions} weights": 0 < continues <= 1 and len(depth) == n_positions,
            "the weights of depth are at least 0, and not all 0": min(depth, default=0) >= 0
            and 0 < sum(depth) < np.inf,
            "readiness is at least 0 and 1 on average": min(self.readiness, default=0) >= 0
            and abs(mean - 1) < _ROUNDING,
            "readiness times attractiveness_scale is at most 1": most_ready <= 1 + _ROUNDING,
            f"days is 0 to {MOST_DAYS:,}": 0 <= self.days <= MOST_DAYS,
            **within("feedback_strength", 0, LARGEST_STRENGTH),
            f"updates_per_day is 1 to {MOST_UPDATES:,}": 1 <= self.updates_per_day <= MOST_UPDATES,
            **within("theta_shock", 0, LARGEST_SHOCK),
            "updates_per_day goes with feedback_strength": self.updates_per_day == 1 or feedback > 0,
            "feedback_strength has two days or updates or more and a finite ranker_strength": feedback == 0
            or (self.n_updates > 1 and strength < np.inf),
            "randomized_share and swap_share lie in [0, 1], also together": min(shares) >= 0 and sum(shares) <= 1,
            "interleave is left out with randomized_share, swaps, feedback_strength and lists of cell_columns": not (
                self.interleave and (self.randomized_share or self.swaps or feedback or self.lists)
            ),
            "swap_share and swaps come together": (self.swap_share > 0) == bool(self.swaps),
            f"swaps name two different positions from 1 to {n_positions}": all(
                one != other and min(one, other) >= 1 and max(one, other) <= n_positions for one, other in self.swaps
            ),
        }

        known = {parameter.name: parameter for parameter in shared_parameters(self.model)}
        unknown = [name for name, _ in self.parameters if name not in known]
        of_model = ", ".join(known) or "none"
        demands |= {
            "contexts, readiness and theta_shock are left out unless the model is pbm or ubm": self.model in CELL_MODELS
            or (not self.contexts and self.readiness == (1.0,) and self.theta_shock == 0),
            f"parameters are those that {self.model} has ({of_model}), not {', '.join(unknown)}": not unknown,
            "each of parameters is given once": len(dict(self.parameters)) == len(self.parameters),
        }
        for name, values in self.parameters:
            if name in known:
                expected = n_positions if known[name].by_position else 1
                many = f"one value, or {expected}, one for each position" if expected > 1 else "one value"
                demands[f"{name} of parameters has {many}"] = len(values) in {1, expected}
                demands[f"{name} of parameters lies in [0, 1]"] = all(0 <= value <= 1 for value in values)
        return demands

    def _demands_of_cells(self) -> dict[str, bool]:
        """Return conditions on cell columns, and whether each holds."""
        names = [column.name for column in self.cell_columns]
        demands = {
            "cell_columns are left out unless the model is pbm": self.model == "pbm" or not names,
            f"cell_columns have names of their own, not {', '.join(RESERVED)}": len({*names, *RESERVED})
            == len(names) + len(RESERVED),
            f"there are at most {MOST_CELL_COLUMNS} cell_columns": len(names) <= MOST_CELL_COLUMNS,
        }
        sizes = sorted({1, self.n_positions, self.n_slots})
        for column in self.cell_columns:
            of, (mean, deviation) = f"{column.name} of cell_columns", (*column.share, 0.0, 0.0)[:2]
            demands[f"{of} has factors above 0"] = 0 < min(column.factors, default=0) <= max(column.factors) < np.inf
            if column.share:
                demands |= {
                    f"{of} has {' or '.join(map(str, sizes))} factors": len(column.factors) in sizes,
                    f"{of} has a share between 0 and 1": 0 < mean < 1,
                    f"{of} has no more than a share and a deviation": len(column.share) <= len((mean, deviation)),
                    f"{of} has a deviation below sqrt(share (1 - share))": not 0 < mean < 1
                    or (deviation >= 0 and deviation**2 < mean * (1 - mean)),
                }
        return demands

    @property
    def score_weights(self) -> tuple[float, ...]:
        """Score weights of the rankers: one, or two different ones."""
        return self.interleave or (self.score_weight,)

    @property
    def blocks(self) -> tuple[CellColumn, ...]:
        """Cell columns that are true on a share of the pages, B of them."""
        return tuple(column for column in self.cell_columns if column.share)

    @property
    def lists(self) -> tuple[CellColumn, ...]:
        """Cell columns that number the lists of a page."""
        return tuple(column for column in self.cell_columns if not column.share)

    @property
    def n_slots(self) -> int:
        """Number of documents on a page: positions times lists."""
        return self.n_positions * prod(len(column.factors) for column in self.lists)

    @property
    def slots(self) -> dict[str, Integers]:
        """Number of the list by each column of `lists`, and `position`, of each slot, from 1, shape (n_slots,)."""
        sizes = {column.name: len(column.factors) for column in self.lists} | {"position": self.n_positions}
        return {name: number.ravel() + 1 for name, number in zip(sizes, np.indices(tuple(sizes.values())), strict=True)}

    @property
    def cells(self) -> list[tuple[int, int]]:
        """Cells (position r, previous click r') in their order, list by list; for PBM, r' is always 0."""
        return [
            (int(position), previous)
            for position in self.slots["position"]
            for previous in range(position if self.model == "ubm" else 1)
        ]

    @property
    def n_updates(self) -> int:
        """Number of updates of a ranker with feedback, including the beginning of the log."""
        return self.days * self.updates_per_day

    @cached_property
    def examination(self) -> Floats:
        """Theta by (context, shown blocks) and cell, shape (max(contexts, 1) * 2^B, number of cells)."""
        position, previous = np.array(self.cells, dtype=np.float64).T
        distance, size = position - previous, len(position)
        tables = (theta if isinstance(theta, tuple) else distance**-theta for theta in self._thetas)
        theta = np.array([np.resize(table, size) for table in tables])
        for column in self.lists:
            theta *= np.array(column.factors)[self.slots[column.name] - 1]
        for column in self.blocks:
            theta = np.stack([theta, theta * np.resize(column.factors, size)], axis=1).reshape(-1, size)
        return theta

    @property
    def theta_by_position(self) -> Floats:
        """Theta by position, shape (K,), for models without contexts; 1 if the model does not use it."""
        return self.examination[0] if uses_theta(self.model) else np.ones(self.n_positions)

    @cached_property
    def model_parameters(self) -> Parameters:
        """Shared parameters in the shapes of the click model; empty for PBM and UBM."""
        shapes = {parameter.name: parameter for parameter in get_click_model(self.model).parameters}
        parameters: dict[str, Floats] = {}
        for parameter in shared_parameters(self.model):
            values = values_by_position(parameter, dict(self.parameters), self.n_positions)
            values = values * self.theta_by_position if parameter.times_theta else values
            dimensions = shapes[parameter.of_model].dimensions(0, self.n_positions)
            by_position = np.concatenate([[0.0], values])  # positions count from 1
            parameters[parameter.of_model] = by_position if len(dimensions) == 1 else np.full(dimensions, values[0])
        return parameters

    @property
    def _thetas(self) -> tuple[Theta, ...]:
        return self.contexts or (self.eta if self.theta is None else self.theta,)
