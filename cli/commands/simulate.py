"""`posbias simulate`: logs with known truth."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import Annotated, Literal

import polars as pl
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table

from posbias.cli.console import counted, line
from posbias.cli.options.option import option
from posbias.cli.options.options import OutputOptions
from posbias.cli.report.result import Result, open_result
from posbias.core.errors import UsageError
from posbias.core.simulation.judgements import JudgementOptions, judged_world, usable_judgements
from posbias.core.simulation.options import SimulationOptions
from posbias.core.simulation.simulate import simulate_blocks
from posbias.core.simulation.worlds import World, random_world, true_attractiveness, true_propensities
from posbias.io.log.simulated import LOG, TRUTH, read_labels, write_log, write_truth
from posbias.io.places.locations import Location, location
from posbias.io.progress import Stage

SCHEMA = "posbias.simulation"
_WORLD, _LABELS, _RANKER, _USERS, _EXPERIMENTS = "World", "Labels", "Ranker", "Users", "Experiments"
_LONG_NAMES = (
    *("docs_per_query", "query_exponent", "ranker_strength", "attractiveness_scale", "score_weight", "theta_shock"),
    *("segment_difference", "feedback_strength", "updates_per_day", "randomized_share", "swap_share"),
)
_QUERIES, _DOCS_PER_QUERY, _ATTRACTIVENESS = 1000, 20, "1:2"
_MOST_ROWS = 30


@dataclass(frozen=True)
class WorldOptions:
    """What there is to click, and how position matters."""

    model: Annotated[
        Literal["pbm", "ubm"],
        option(
            "--model",
            "What examination depends on: position (pbm, the default), or also the last click above (ubm).",
            _WORLD,
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


def simulate(
    drawn: WorldOptions,
    labels: LabelOptions,
    ranking: RankerOptions,
    users: UserOptions,
    experiments: ExperimentOptions,
    output: OutputOptions,
) -> int:
    """Simulate a click log whose true propensities are known, from scratch or from graded labels.

    Example: posbias simulate -o simulated
    """
    try:
        options = simulation_options(drawn, ranking, users, experiments)
    except UsageError as error:
        raise UsageError(_with_flags(str(error))) from error
    how = judgement_options(labels)
    inputs = [] if labels.labels is None else [str(labels.labels)]
    with open_result("simulate", output, inputs, [drawn, labels, ranking, users, experiments]) as result:
        result.content["schema"] = SCHEMA
        world = random_world(options) if labels.labels is None else _world_from(labels.labels, options, how, result)
        totals = Totals()
        with result.progress.stage("simulating", options.n_sessions, unit="sessions") as stage:
            write_log(totals.counting(simulate_blocks(options, world), stage), result.folder)
        propensities = true_propensities(options)
        write_truth(propensities, true_attractiveness(options, world), result.folder)
        result.content["simulated"] = totals.summary()
        result.tables += [
            line(totals.line()),
            _rates_table(totals, propensities),
            _next_step(options, location(output.output)),
        ]
    return result.exit_code


def simulation_options(
    drawn: WorldOptions, ranking: RankerOptions, users: UserOptions, experiments: ExperimentOptions
) -> SimulationOptions:
    """What the options ask for.

    Raises:
        UsageError: an option cannot be read, or asks for what cannot be.
    """
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
        attractiveness_shape=_shape(drawn.attractiveness or _ATTRACTIVENESS),
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
    )


def judgement_options(labels: LabelOptions) -> JudgementOptions:
    """How labels are used.

    Raises:
        UsageError: an option asks for what cannot be.
    """
    asked = {"click_noise": labels.click_noise, "ranker": labels.ranker, "ranker_queries": labels.ranker_queries}
    return replace(JudgementOptions(), **{name: value for name, value in asked.items() if value is not None})


def _world_from(labels: Path, options: SimulationOptions, how: JudgementOptions, result: Result) -> World:
    """A world from a file of labels; the manifest says which, and what it holds."""
    table, result.content["sources"] = read_labels(str(labels))
    judgements = usable_judgements(table, options.n_positions)
    left_out, kept = judgements.queries_left_out, len(judgements.n_docs)
    result.content["labels"] = {"queries": kept, "queries_left_out": left_out, "docs": len(judgements.doc_ids)}
    if left_out:
        result.warnings.append(
            f"{left_out:,} of {counted(left_out + kept, 'queries')} left out, with fewer than {options.n_positions} "
            "labelled documents, one for each position."
        )
    return judged_world(judgements, options, how)


@dataclass
class Totals:
    """What has been written so far; counts by position."""

    sessions: int = 0
    impressions: Counter[int] = field(default_factory=Counter[int])
    clicks: Counter[int] = field(default_factory=Counter[int])

    def counting(self, blocks: Iterable[pl.DataFrame], stage: Stage) -> Iterator[pl.DataFrame]:
        """The same blocks, counted on the way."""
        for block in blocks:
            sessions = block["session"].n_unique()
            counts = block.group_by("position").agg(pl.len(), pl.col("click").cast(pl.Int64).sum())
            self.sessions += sessions
            for position, impressions, clicks in counts.iter_rows():
                self.impressions[position] += impressions
                self.clicks[position] += clicks
            yield block
            stage.advance(sessions)

    def summary(self) -> dict[str, int]:
        """For the manifest."""
        return {
            "sessions": self.sessions,
            "impressions": self.impressions.total(),
            "clicks": self.clicks.total(),
        }

    def line(self) -> str:
        """For a person."""
        return ", ".join(counted(number, name) for name, number in self.summary().items())


def _rates_table(totals: Totals, propensities: pl.DataFrame) -> RenderableType:
    """Click rates beside the truth that they are often taken for; where that is by position alone."""
    by_position = propensities.columns == ["position", "propensity", "examination"]
    truth = propensities["propensity"].to_list() if by_position else []
    table = Table(
        title="click rates relative to position 1",
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    for name in ("position", "impressions", "clicks", "click rate", *(["true propensity"] if truth else [])):
        table.add_column(name, justify="right", no_wrap=True)
    top = totals.clicks[1] / totals.impressions[1]
    for position in sorted(totals.impressions)[:_MOST_ROWS]:
        impressions, clicks = totals.impressions[position], totals.clicks[position]
        rate = f"{clicks / impressions / top:.3f}" if top else "-"
        known = [f"{truth[position - 1]:.3f}"] if truth else []
        table.add_row(str(position), f"{impressions:,}", f"{clicks:,}", rate, *known)
    return table


def _next_step(options: SimulationOptions, folder: Location) -> RenderableType:
    """The command that estimates from this log what is known about it."""
    flags = {
        "--model ubm": options.model == "ubm",
        "--timestamp timestamp --period day": options.feedback_strength > 0 and options.updates_per_day == 1,
        "--timestamp timestamp": options.updates_per_day > 1,
        "--stratify segment": options.segments > 1,
        "--context device": bool(options.contexts) and options.model == "pbm",  # contexts are fitted within PBM
    }
    words = ["posbias run", quote(str(folder / LOG)), *(flag for flag, wanted in flags.items() if wanted), "-o result"]
    then = f"then compare result/propensities.parquet with {folder / TRUTH}"
    return Group(line(f"next: {' '.join(words)}"), line(then))


def _with_flags(message: str) -> str:
    """A message about the simulation with the command line's names, e.g. `n_sessions` -> `--sessions`."""
    names = {
        "n_sessions": "--sessions",
        "n_queries": "--queries",
        "n_positions": "--positions",
        "attractiveness_shape": "--attractiveness",
        **{name: f"--{name.replace('_', '-')}" for name in _LONG_NAMES},
    }
    return re.sub("|".join(rf"\b{name}\b" for name in names), lambda match: names[match[0]], message)


def _number(flag: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{flag} {text}: {text.strip()!r} is not a number.") from None


def _numbers(flag: str, text: str) -> tuple[float, ...]:
    return tuple(_number(flag, part) for part in text.split(","))


def _number_or_numbers(flag: str, text: str) -> float | tuple[float, ...]:
    return _numbers(flag, text) if "," in text else _number(flag, text)


def _shape(text: str) -> tuple[float, float]:
    first, separator, second = text.partition(":")
    if not separator:
        raise UsageError(f"--attractiveness {text}: write A:B, such as {_ATTRACTIVENESS}.")
    return _number("--attractiveness", first), _number("--attractiveness", second)


def _swap(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,9})-(\d{1,9})", text)
    if match is None:
        raise UsageError(f"--swap {text}: write two positions, such as 1-5.")
    return int(match[1]), int(match[2])
