"""The options of simulating, and what they ask for."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from posbias.cli.options.option import option
from posbias.cli.options.shared import MODEL_HELP
from posbias.core.errors import UsageError
from posbias.core.models import click_model_names
from posbias.core.simulation.judgements import JudgementOptions
from posbias.core.simulation.options import SimulationOptions
from posbias.core.simulation.parameters import shared_parameters

_WORLD, _LABELS, _RANKER, _USERS, _EXPERIMENTS = "World", "Labels", "Ranker", "Users", "Experiments"
_LONG_NAMES = (
    *("docs_per_query", "query_exponent", "ranker_strength", "attractiveness_scale", "score_weight", "theta_shock"),
    *("segment_difference", "feedback_strength", "updates_per_day", "randomized_share", "swap_share"),
    *("readiness", "parameters"),
)
_QUERIES, _DOCS_PER_QUERY, _ATTRACTIVENESS, _SATISFACTION = 1000, 20, "1:2", "1:1"


@dataclass(frozen=True)
class WorldOptions:
    """What there is to click, and how position matters."""

    model: Annotated[
        str,
        option(
            "--model",
            MODEL_HELP,
            _WORLD,
            metavar=f"[{'|'.join(click_model_names())}]",
        ),
    ] = "pbm"
    sessions: Annotated[
        int, option("--sessions", "Number of results pages.", _WORLD, min=1, max=10**9, metavar="N")
    ] = 50_000
    positions: Annotated[int, option("--positions", "Positions per page.", _WORLD, min=1, metavar="N")] = 10
    queries: Annotated[
        int | None, option("--queries", "Number of queries; 1000 by default.", _WORLD, min=1, metavar="N")
    ] = None
    docs_per_query: Annotated[
        int | None,
        option("--docs-per-query", "Candidate documents per query; 20 by default.", _WORLD, min=1, metavar="N"),
    ] = None
    query_exponent: Annotated[
        float,
        option("--query-exponent", "Zipf exponent of query frequencies; 0: all equally frequent.", _WORLD, metavar="S"),
    ] = 0.7
    eta: Annotated[
        float, option("--eta", "Examination is position^-eta; 0: no position bias.", _WORLD, min=0, metavar="X")
    ] = 1.0
    theta: Annotated[
        str | None,
        option("--theta", "Or examination cell by cell, e.g. 1,.7,.5 for 3 positions.", _WORLD, metavar="T,T,..."),
    ] = None
    attractiveness: Annotated[
        str | None,
        option("--attractiveness", "Beta distribution of attractiveness; 1:2 by default.", _WORLD, metavar="A:B"),
    ] = None
    attractiveness_scale: Annotated[
        float,
        option("--attractiveness-scale", "Scale all attractiveness by this factor, up to 1.", _WORLD, metavar="X"),
    ] = 1.0
    satisfaction: Annotated[
        str | None,
        option(
            "--satisfaction", "Beta distribution of satisfaction (dbn, sdbn); 1:1 by default.", _WORLD, metavar="A:B"
        ),
    ] = None
    parameters: Annotated[
        list[str] | None,
        option(
            "--parameters",
            "What all documents share, one value or one by position, e.g. continuation=.9. Once per name.",
            _WORLD,
            metavar="NAME=P[,P,...]",
        ),
    ] = None
    seed: Annotated[int, option("--seed", "Random seed.", _WORLD, min=0, metavar="N")] = 0


@dataclass(frozen=True)
class LabelOptions:
    """Real queries, documents and graded labels in place of drawn ones."""

    labels: Annotated[
        Path | None,
        option("--labels", "Judged documents: query, doc, label (a grade) and features.", _LABELS, metavar="FILE"),
    ] = None
    click_noise: Annotated[
        float | None,
        option("--click-noise", "P(click | examined) at grade 0; 0.1 by default.", _LABELS, metavar="P"),
    ] = None
    ranker: Annotated[
        Literal["label", "weak"] | None,
        option("--ranker", "Where its scores come from: the labels, or a ranker trained on a few of them.", _LABELS),
    ] = None
    ranker_queries: Annotated[
        int | None,
        option("--ranker-queries", "Queries to train the weak ranker on; 20 by default.", _LABELS, min=1, metavar="N"),
    ] = None


@dataclass(frozen=True)
class RankerOptions:
    """How documents come to their positions."""

    ranker_strength: Annotated[
        str,
        option(
            "--ranker-strength",
            "How closely pages follow the scores. 0: random order; inf: always the same order.",
            _RANKER,
            metavar="X|inf",
        ),
    ] = "1"
    score_weight: Annotated[
        float,
        option(
            "--score-weight",
            "Share of a score that is quality; the rest is noise, drawn once per document.",
            _RANKER,
            metavar="W",
        ),
    ] = 1.0
    days: Annotated[
        int, option("--days", "Days to spread the sessions over; 0: no timestamp.", _RANKER, min=0, metavar="N")
    ] = 7
    feedback_strength: Annotated[
        float,
        option("--feedback-strength", "How strongly each update re-ranks by the clicks so far.", _RANKER, metavar="X"),
    ] = 0.0
    updates_per_day: Annotated[
        int,
        option(
            "--updates-per-day",
            "How often a day a ranker with --feedback-strength takes note of the clicks.",
            _RANKER,
            min=1,
            metavar="N",
        ),
    ] = 1


@dataclass(frozen=True)
class UserOptions:
    """How sessions differ."""

    segments: Annotated[
        int, option("--segments", "Number of user segments, known to the ranker.", _USERS, min=1, metavar="N")
    ] = 1
    segment_difference: Annotated[
        float,
        option(
            "--segment-difference", "Share of documents whose attractiveness differs by segment.", _USERS, metavar="P"
        ),
    ] = 0.5
    device: Annotated[
        list[str] | None,
        option(
            "--device", "A device's own eta, or theta cell by cell. Once per device.", _USERS, metavar="ETA|T,T,..."
        ),
    ] = None
    depth: Annotated[
        str | None,
        option(
            "--depth",
            "P(one more position is shown), or weights of page lengths 1, 2, ...",
            _USERS,
            metavar="P|W,W,...",
        ),
    ] = None
    readiness: Annotated[
        str | None,
        option("--readiness", "Factors on P(click), one drawn per session, e.g. .3,1.7.", _USERS, metavar="X,X,..."),
    ] = None
    theta_shock: Annotated[
        float,
        option("--theta-shock", "Standard deviation of log theta, shared by a query's sessions.", _USERS, metavar="SD"),
    ] = 0.0


@dataclass(frozen=True)
class ExperimentOptions:
    """What is shown at random, and marked in the log."""

    randomized_share: Annotated[
        float,
        option("--randomized-share", "Share of sessions in random order; column `policy`.", _EXPERIMENTS, metavar="P"),
    ] = 0.0
    swap: Annotated[
        list[str] | None,
        option("--swap", "Swap two positions half of the time; column `experiment`.", _EXPERIMENTS, metavar="1-5"),
    ] = None
    swap_share: Annotated[
        float, option("--swap-share", "Share of sessions in swap experiments, if any.", _EXPERIMENTS, metavar="P")
    ] = 0.1


def simulation_options(
    drawn: WorldOptions, ranking: RankerOptions, users: UserOptions, experiments: ExperimentOptions
) -> SimulationOptions:
    """What the options ask for.

    Raises:
        UsageError: an option cannot be read, or asks for what cannot be.
    """
    if drawn.model not in click_model_names():
        raise UsageError(f"--model {drawn.model}: unknown name; choose from {', '.join(click_model_names())}.")
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
