"""What `simulate` writes: a log, and the truth about it."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from shlex import quote

import polars as pl

from posbias.cli.options.output import OutputOptions
from posbias.cli.options.simulation import ExperimentOptions, LabelOptions, RankerOptions, UserOptions, WorldOptions
from posbias.cli.report.result import Result, open_result
from posbias.cli.report.table import Column, Printed, PrintedTable, first, more
from posbias.cli.work.simulation_options import judgement_options, simulation_options
from posbias.core.simulation.judgements import JudgementOptions, judged_world, usable_judgements
from posbias.core.simulation.options import SimulationOptions
from posbias.core.simulation.parameters import CELL_MODELS
from posbias.core.simulation.simulate import simulate_blocks
from posbias.core.simulation.truth import true_attractiveness, true_parameters, true_propensities
from posbias.core.simulation.worlds import World, random_world
from posbias.core.wording import counted
from posbias.io.log.simulated import TRUTH, read_labels, write_log, write_truth
from posbias.io.log.sources import LOG_OF_SIMULATION
from posbias.io.places.locations import Location
from posbias.io.progress import Stage

SCHEMA = "posbias.simulation"


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
    how = judgement_options(labels)
    inputs = [] if labels.labels is None else [labels.labels]
    with open_result("simulate", output, inputs, [drawn, labels, ranking, users, experiments]) as result:
        result.content["schema"] = SCHEMA
        world = random_world(options) if labels.labels is None else _world_from(labels.labels, options, how, result)
        totals = Totals()
        with result.progress.stage("simulating", options.n_sessions, unit="sessions") as stage:
            write_log(totals.counting(simulate_blocks(options, world), stage), result.folder)
        propensities = true_propensities(options)
        write_truth(propensities, true_parameters(options), true_attractiveness(options, world), result.folder)
        result.content["simulated"] = totals.summary()
        result.printed += [totals.line(), *_rates_table(totals, propensities)]
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


def _rates_table(totals: Totals, propensities: pl.DataFrame) -> list[Printed]:
    """Click rates beside the truth that they are often taken for; where that is by position alone."""
    by_position = propensities.columns == ["position", "propensity", "examination"]
    truth = propensities["propensity"].to_list() if by_position else []
    positions = sorted(totals.impressions)
    rates = {position: totals.clicks[position] / totals.impressions[position] for position in positions}
    columns = [
        Column("position", first(map(str, positions)), folded="posi-\ntion", label=True),
        Column(
            "impressions", first(f"{totals.impressions[position]:,}" for position in positions), folded="impres-\nsions"
        ),
        Column("clicks", first(f"{totals.clicks[position]:,}" for position in positions)),
        Column(
            "click rate",
            first(f"{rates[position] / rates[1]:.3f}" if rates[1] else "-" for position in positions),
            folded="click\nrate",
        ),
    ]
    if truth:
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
