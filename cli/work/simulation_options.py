"""From the options of a simulation to what is simulated."""

import re
from dataclasses import replace

from posbias.cli.options.simulation import ExperimentOptions, LabelOptions, RankerOptions, UserOptions, WorldOptions
from posbias.core.errors import UsageError
from posbias.core.models import get_click_model
from posbias.core.simulation.judgements import JudgementOptions
from posbias.core.simulation.options import SimulationOptions
from posbias.core.simulation.parameters import shared_parameters

_LONG_NAMES = (
    *("docs_per_query", "query_exponent", "ranker_strength", "attractiveness_scale", "score_weight", "theta_shock"),
    *("segment_difference", "feedback_strength", "updates_per_day", "randomized_share", "swap_share"),
    *("readiness", "parameters"),
)
_QUERIES, _DOCS_PER_QUERY, _ATTRACTIVENESS, _SATISFACTION = 1000, 20, "1:2", "1:1"


def simulation_options(
    drawn: WorldOptions, ranking: RankerOptions, users: UserOptions, experiments: ExperimentOptions
) -> SimulationOptions:
    """What the options ask for.

    Raises:
        UsageError: an option cannot be read, or asks for what cannot be.
    """
    get_click_model(drawn.model)
    try:
        return _options(drawn, ranking, users, experiments)
    except UsageError as error:
        raise UsageError(_with_flags(str(error))) from error


def _options(
    drawn: WorldOptions, ranking: RankerOptions, users: UserOptions, experiments: ExperimentOptions
) -> SimulationOptions:
    """The same, with the names of core in what is refused."""
    return SimulationOptions(
        model=drawn.model,
        n_sessions=drawn.sessions,
        n_queries=drawn.queries or _QUERIES,
        docs_per_query=drawn.docs_per_query or max(_DOCS_PER_QUERY, drawn.positions),
        n_positions=drawn.positions,
        query_exponent=drawn.query_exponent,
        eta=drawn.eta,
        theta=_numbers("--theta", drawn.theta) if drawn.theta else None,
        ranker_strength=_number("--ranker-strength", ranking.ranker_strength),
        attractiveness_shape=_shape("--attractiveness", drawn.attractiveness or _ATTRACTIVENESS),
        attractiveness_scale=drawn.attractiveness_scale,
        seed=drawn.seed,
        score_weight=ranking.score_weight,
        theta_shock=users.theta_shock,
        contexts=tuple(_number_or_numbers("--device", text) for text in users.device or ()),
        readiness=_numbers("--readiness", users.readiness) if users.readiness else (1.0,),
        depth=_number_or_numbers("--depth", users.depth) if users.depth else None,
        segments=users.segments,
        segment_difference=users.segment_difference,
        days=ranking.days,
        feedback_strength=ranking.feedback_strength,
        updates_per_day=ranking.updates_per_day,
        randomized_share=experiments.randomized_share,
        swap_share=experiments.swap_share if experiments.swap else 0.0,
        swaps=tuple(map(_swap, experiments.swap or ())),
        satisfaction_shape=_shape("--satisfaction", drawn.satisfaction or _SATISFACTION),
        parameters=_parameters(drawn),
    )


def judgement_options(labels: LabelOptions) -> JudgementOptions:
    """How labels are used.

    Raises:
        UsageError: an option asks for what cannot be.
    """
    asked = {"click_noise": labels.click_noise, "ranker": labels.ranker, "ranker_queries": labels.ranker_queries}
    return replace(JudgementOptions(), **{name: value for name, value in asked.items() if value is not None})


def _with_flags(message: str) -> str:
    """A message about the simulation with the command line's names, e.g. `n_sessions` -> `--sessions`."""
    names = {
        "n_sessions": "--sessions",
        "n_queries": "--queries",
        "n_positions": "--positions",
        "attractiveness_shape": "--attractiveness",
        "satisfaction_shape": "--satisfaction",
        "contexts": "--device",
        **{name: f"--{name.replace('_', '-')}" for name in _LONG_NAMES},
    }
    return re.sub("|".join(rf"(?<![\w-]){name}\b" for name in names), lambda match: names[match[0]], message)


def _number(flag: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{flag} {text}: {text.strip()!r} is not a number.") from None


def _numbers(flag: str, text: str) -> tuple[float, ...]:
    return tuple(_number(flag, part) for part in text.split(","))


def _number_or_numbers(flag: str, text: str) -> float | tuple[float, ...]:
    return _numbers(flag, text) if "," in text else _number(flag, text)


def _shape(flag: str, text: str) -> tuple[float, float]:
    first, separator, second = text.partition(":")
    if not separator:
        raise UsageError(f"{flag} {text}: write A:B, such as {_ATTRACTIVENESS}.")
    return _number(flag, first), _number(flag, second)


def _parameters(drawn: WorldOptions) -> tuple[tuple[str, tuple[float, ...]], ...]:
    """Values by name; those of a configuration file that serves other models, too, are left aside."""
    given = drawn.parameters if shared_parameters(drawn.model) else None
    return tuple(map(_parameter, given or ()))


def _parameter(text: str) -> tuple[str, tuple[float, ...]]:
    name, separator, values = text.partition("=")
    if not (separator and name.strip()):
        raise UsageError(f"--parameters {text}: write NAME=VALUE, such as continuation=.9.")
    return name.strip(), _numbers("--parameters", values)


def _swap(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,9})-(\d{1,9})", text)
    if match is None:
        raise UsageError(f"--swap {text}: write two positions, such as 1-5.")
    return int(match[1]), int(match[2])
