"""`simulate`: from options to a world, and its log on disk."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from shlex import quote

import polars as pl

from posbias.cli.options.estimating import ExperimentOptions, LabelOptions, RankerOptions, UserOptions, WorldOptions
from posbias.cli.options.output import OutputOptions
from posbias.cli.report.result import open_result
from posbias.core.errors import UsageError, counted
from posbias.core.models import get_click_model
from posbias.core.simulation.options import CELL_MODELS, SimulationOptions, shared_parameters
from posbias.core.simulation.simulate import simulate_blocks, true_attractiveness, true_parameters, true_propensities
from posbias.core.simulation.worlds import JudgementOptions, World, judged_world, random_world, usable_judgements
from posbias.io.jobs.tables import Column, Printed, PrintedTable, Result, first, more
from posbias.io.log.days import TRUTH, read_labels, write_log, write_truth
from posbias.io.log.sources import LOG_OF_SIMULATION
from posbias.io.places.locations import Location
from posbias.io.progress import Stage

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


def simulate(
    drawn: WorldOptions,
    labels: LabelOptions,
    ranking: RankerOptions,
    users: UserOptions,
    experiments: ExperimentOptions,
    output: OutputOptions,
) -> int:
    """Simulate a click log of which the truth is known, from scratch or from graded labels."""
    options = simulation_options(drawn, ranking, users, experiments)
    asked = {"click_noise": labels.click_noise, "ranker": labels.ranker, "ranker_queries": labels.ranker_queries}
    how = replace(JudgementOptions(), **{name: value for name, value in asked.items() if value is not None})
    inputs = [] if labels.labels is None else [labels.labels]
    with open_result("simulate", output, inputs, [drawn, labels, ranking, users, experiments]) as result:
        result.content["schema"] = "posbias.simulation"
        world = random_world(options) if labels.labels is None else _world_from(labels.labels, options, how, result)
        sessions, impressions, clicks = Counter[str](), Counter[int](), Counter[int]()
        with result.progress.stage("simulating", options.n_sessions, unit="sessions") as stage:
            write_log(_counting(simulate_blocks(options, world), stage, sessions, impressions, clicks), result.folder)
        propensities = true_propensities(options)
        write_truth(propensities, true_parameters(options), true_attractiveness(options, world), result.folder)
        totals = {"sessions": sessions.total(), "impressions": impressions.total(), "clicks": clicks.total()}
        result.content["simulated"] = totals
        result.printed.append(", ".join(counted(number, name) for name, number in totals.items()))
        result.printed += _rates_table(impressions, clicks, propensities)
        result.hints += _next_step(options, output.output)
    return result.exit_code


def _world_from(labels: str, options: SimulationOptions, how: JudgementOptions, result: Result) -> World:
    """A world from a file of labels; the manifest says which, and what it holds."""
    table, result.content["sources"] = read_labels(labels)
    judgements = usable_judgements(table, options.n_positions)
    left_out, kept = judgements.queries_left_out, len(judgements.n_docs)
    result.content["labels"] = {"queries": kept, "queries_left_out": left_out, "docs": len(judgements.doc_ids)}
    if left_out:
        result.warnings.append(
            f"{left_out:,} of {counted(left_out + kept, 'queries')} left out, with fewer than {options.n_positions} "
            "labelled documents, one for each position."
        )
    return judged_world(judgements, options, how)


def _counting(
    blocks: Iterable[pl.DataFrame],
    stage: Stage,
    sessions: Counter[str],
    impressions: Counter[int],
    clicks: Counter[int],
) -> Iterator[pl.DataFrame]:
    """The same blocks, counted by position on the way."""
    for block in blocks:
        counts = block.group_by("position").agg(pl.len(), pl.col("click").cast(pl.Int64).sum())
        for position, shown, clicked in counts.iter_rows():
            impressions[position] += shown
            clicks[position] += clicked
        yield block
        sessions["all"] += (number := block["session"].n_unique())
        stage.advance(number)


def _rates_table(impressions: Counter[int], clicks: Counter[int], propensities: pl.DataFrame) -> list[Printed]:
    """Click rates beside the truth that they are often taken for; where that is by position alone."""
    positions = sorted(impressions)
    rate = {position: clicks[position] / impressions[position] for position in positions}
    relative = first(f"{rate[position] / rate[1]:.3f}" if rate[1] else "-" for position in positions)
    shown = first(f"{impressions[position]:,}" for position in positions)
    columns = [
        Column("position", first(map(str, positions)), folded="posi-\ntion", label=True),
        Column("impressions", shown, folded="impres-\nsions"),
        Column("clicks", first(f"{clicks[position]:,}" for position in positions)),
        Column("click rate", relative, folded="click\nrate"),
    ]
    if propensities.columns == ["position", "propensity", "examination"]:
        truth = propensities["propensity"].to_list()
        known = first(f"{truth[position - 1]:.3f}" for position in positions)
        columns.append(Column("true propensity", known, folded="true pro-\npensity"))
    table = PrintedTable(tuple(columns), more(len(positions), f"positions in {LOG_OF_SIMULATION}"))
    return ["click rates relative to position 1", table]


def _next_step(options: SimulationOptions, folder: Location) -> list[str]:
    """The command that estimates from this log what is known about it."""
    flags = {
        "--model ubm": options.model == "ubm",
        "--timestamp timestamp --period day": options.feedback_strength > 0 and options.updates_per_day == 1,
        "--timestamp timestamp": options.updates_per_day > 1,
        "--stratify segment": options.segments > 1,
        "--context device": bool(options.contexts) and options.model == "pbm",  # contexts are fitted within PBM
    }
    log = quote(str(folder / LOG_OF_SIMULATION))
    if options.model not in CELL_MODELS:
        rivals = ",".join(dict.fromkeys((options.model, *CELL_MODELS)))
        return [f"next: posbias evaluate {log} --models {rivals} -o judged"]
    words = ["posbias run", log, *(flag for flag, wanted in flags.items() if wanted), "-o result"]
    then = f"then compare result/propensities.parquet with {folder / TRUTH}"
    return [f"next: {' '.join(words)}", then]
