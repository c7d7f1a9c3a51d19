"""Simulated logs: a world, its sessions on disk, and the truth beside them."""

from collections import Counter
from collections.abc import Iterable, Iterator
from shlex import quote

import polars as pl

from posbias.core.errors import plural
from posbias.core.simulation.options import CELL_MODELS, SimulationOptions
from posbias.core.simulation.simulate import simulate_blocks, true_attractiveness, true_parameters, true_propensities
from posbias.core.simulation.worlds import JudgementOptions, World, judged_world, random_world, usable_judgements
from posbias.io.jobs.tables import Column, Printed, PrintedTable, Result, first, more
from posbias.io.log.days import TRUTH, read_labels, write_log, write_truth
from posbias.io.log.sources import LOG_OF_SIMULATION
from posbias.io.places.locations import Location
from posbias.io.progress import Stage
from posbias.io.results.conclusions import reason


def simulate(
    options: SimulationOptions, labels: str | None, how: JudgementOptions, result: Result, target: Location
) -> None:
    """Simulate a click log of which the truth is known.

    Args:
        options: what there is to click, and how it is shown and clicked.
        labels: a table of judged documents, in place of drawn ones.
        how: what is made of judgements.
        result: gets the log and the truth.
        target: where the result will be, for the next step that is named.

    Raises:
        PosbiasError: the labels cannot be read, or do not suffice.
    """
    result.content["schema"] = "posbias.simulation"
    world = random_world(options) if labels is None else _world_from(labels, options, how, result)
    sessions, impressions, clicks = Counter[str](), Counter[int](), Counter[int]()
    with result.progress.stage("simulating", options.n_sessions, unit="sessions") as stage:
        write_log(_counting(simulate_blocks(options, world), stage, sessions, impressions, clicks), result.folder)
    propensities = true_propensities(options)
    write_truth(propensities, true_parameters(options), true_attractiveness(options, world), result.folder)
    totals = {"sessions": sessions.total(), "impressions": impressions.total(), "clicks": clicks.total()}
    result.content["simulated"] = totals
    result.headline = ", ".join(plural(number, name) for name, number in totals.items()) + " are simulated"
    result.printed += _rates_table(impressions, clicks, propensities)
    result.next = _next_step(options, target)
    if options.model in CELL_MODELS:
        result.facts.append(f"then compare result/propensities.parquet with {target / TRUTH}")


def _world_from(labels: str, options: SimulationOptions, how: JudgementOptions, result: Result) -> World:
    """A world from a file of labels; the manifest says which, and what it holds."""
    table, result.content["sources"] = read_labels(labels)
    judgements = usable_judgements(table, options.n_positions)
    left_out, kept = judgements.queries_left_out, len(judgements.n_docs)
    result.content["labels"] = {"queries": kept, "queries_left_out": left_out, "docs": len(judgements.doc_ids)}
    if left_out:
        of, positions = left_out + kept, options.n_positions
        result.reasons.append(reason("queries-left-out", {"left_out": left_out}, queries=of, positions=positions))
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


def _next_step(options: SimulationOptions, folder: Location) -> str:
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
        return f"posbias evaluate {log} --models {rivals} -o judged"
    words = ["posbias run", log, *(flag for flag, wanted in flags.items() if wanted), "-o result"]
    return " ".join(words)
