"""`simulate`: write sessions of a simulated world, and its true parameters."""

from contextlib import ExitStack
from importlib import import_module
from shlex import quote
from typing import Any, cast

import polars as pl

from posbias.core.errors import SchemaError, plural
from posbias.core.schema import ALIASES, DOC, QUERY
from posbias.core.simulation import simulate as simulation
from posbias.core.simulation.options import CELL_MODELS, SimulationOptions
from posbias.core.simulation.worlds import JudgementOptions, judged_world, random_world, usable_judgements
from posbias.io.jobs.tables import Column, Printed, PrintedTable, Result, first, more
from posbias.io.log.scan import reading, scan_sources
from posbias.io.log.sources import SIMULATED_LOG, digests, find_sources
from posbias.io.places.locations import Location
from posbias.io.results.conclusions import reason

TRUTH = "truth.parquet"
_LABEL = "label"
_LABEL_NAMES = (_LABEL, "grade", "relevance")
_STORAGE: dict[str, Any] = {"compression": "zstd", "compression_level": 1}


def simulate(
    options: SimulationOptions, labels: str | None, how: JudgementOptions, result: Result, target: Location
) -> None:
    """Simulate a click log with known propensities.

    Args:
        options: documents, rankers, users and click model.
        labels: table of judged documents, instead of random ones.
        how: conversion of judgements to attractiveness.
        result: receives the log and the truth.
        target: final place of the result, for the suggested next command.

    Raises:
        PosbiasError: labels cannot be read, or are too few.
    """
    result.content["schema"] = "posbias.simulation"
    if labels is None:
        world = random_world(options)
    else:
        table, result.content["sources"] = read_labels(labels)
        judgements = usable_judgements(table, options.n_slots)
        left_out, kept = judgements.queries_left_out, len(judgements.n_docs)
        result.content["labels"] = {"queries": kept, "queries_left_out": left_out, "docs": len(judgements.doc_ids)}
        if left_out:
            queries, positions = left_out + kept, options.n_slots
            result.reasons.append(
                reason("queries-left-out", {"left_out": left_out}, queries=queries, positions=positions)
            )
        world = judged_world(judgements, options, how)
    sessions, counted = 0, list[pl.DataFrame]()
    parquet: Any = import_module("pyarrow.parquet")  # slow to import, and untyped
    with result.progress.stage("simulating", options.n_sessions, unit="sessions") as stage, ExitStack() as opened:
        writer: Any = None  # writes one row group per block
        for block in simulation.simulate_blocks(options, world):
            counted.append(simulation.count_simulated_cells(options, block))
            rows = cast("Any", block.to_arrow())
            if writer is None:
                writer = parquet.ParquetWriter(result.folder / SIMULATED_LOG, rows.schema, **_STORAGE)
                opened.enter_context(writer)
            writer.write_table(rows)
            number = block["session"].n_unique()
            sessions += number
            stage.advance(number)
    counts = pl.concat(counted)
    propensities = simulation.true_propensities(options, counts)
    truth = {
        TRUTH: propensities,
        "parameters_truth.parquet": simulation.true_parameters(options),
        "attractiveness_truth.parquet": simulation.true_attractiveness(options, world),
    }
    for name, table in truth.items():
        if table.columns:  # empty if the model has no such parameters
            table.write_parquet(result.folder / name)
    totals = {"sessions": sessions, **counts.select(pl.sum("impressions", "clicks")).row(0, named=True)}
    result.content["simulated"] = totals
    result.headline = ", ".join(plural(number, name) for name, number in totals.items()) + " are simulated"
    result.printed += _rates_table(options, counts, propensities)
    log = quote(str(target / SIMULATED_LOG))
    if options.interleave:
        ranks = " --rank-a rank_a --rank-b rank_b" * (len(options.interleave) > 1)
        user = " --user user" * (options.users > 0)
        result.next = f"posbias interleave {log} --team team{ranks}{user} -o verdict"
    elif options.model in CELL_MODELS:
        flags = {  # of the command that estimates the true propensities
            "--model ubm": options.model == "ubm",
            "--timestamp timestamp --period day": options.feedback_strength > 0 and options.updates_per_day == 1,
            "--timestamp timestamp": options.updates_per_day > 1,
            "--stratify segment": options.segments > 1,
            "--context device": bool(options.contexts) and options.model == "pbm",  # contexts require PBM
            **{f"--cell {quote(column.name)}": True for column in options.cell_columns},
        }
        result.next = " ".join(["posbias run", log, *(flag for flag, holds in flags.items() if holds), "-o result"])
        result.facts.append(f"then compare result/propensities.parquet with {target / TRUTH}")
    else:
        rivals = ",".join(dict.fromkeys((options.model, *CELL_MODELS)))
        result.next = f"posbias evaluate {log} --models {rivals} -o judged"


def _rates_table(options: SimulationOptions, counts: pl.DataFrame, propensities: pl.DataFrame) -> list[Printed]:
    """Print click rates by cell, beside the true propensity if it depends on the cell alone."""
    names = [column.name for column in options.cell_columns]
    cells = counts.group_by("position", *names).agg(pl.sum("impressions", "clicks")).sort(*names, "position")
    cells = cells.with_columns(rate=pl.col("clicks") / pl.col("impressions"))
    reference = cells.sort("position", -pl.col("impressions"), maintain_order=True)["rate"][0]
    shown = first(f"{number:,}" for number in cells["impressions"])
    rates = first(f"{rate / reference:.3f}" if reference else "-" for rate in cells["rate"])
    columns = [
        *(Column(name, first(str(value).lower() for value in cells[name]), label=True) for name in names),
        Column("position", first(map(str, cells["position"])), folded="posi-\ntion", label=True),
        Column("impressions", shown, folded="impres-\nsions"),
        Column("clicks", first(f"{number:,}" for number in cells["clicks"])),
        Column("click rate", rates, folded="click\nrate"),
    ]
    if propensities.columns == ["position", *names, "propensity", "examination"]:
        truth = cells.join(propensities, on=["position", *names], how="left", maintain_order="left")["propensity"]
        columns.append(Column("true propensity", first(f"{value:.3f}" for value in truth), folded="true pro-\npensity"))
    rest = more(cells.height, f"{'cells' if names else 'positions'} in {SIMULATED_LOG}")
    return ["click rates relative to position 1", PrintedTable(tuple(columns), rest)]


def read_labels(name: str) -> tuple[pl.DataFrame, dict[str, str]]:
    """Read graded labels: `query`, `doc`, `label`, and further columns as features.

    Text columns that hold only numbers are cast to Float64.

    Returns:
        The table, and the paths of its files by digest.

    Raises:
        LogFormatError: the file is missing or unreadable.
        SchemaError: one of the three columns is missing or ambiguous.
    """
    sources = find_sources([name], "Name a table of query, doc and label.")
    with reading(sources):
        raw = scan_sources(sources).collect()
    roles = dict[str, str]()
    for role, known in ((QUERY, ALIASES[QUERY]), (DOC, ALIASES[DOC]), (_LABEL, _LABEL_NAMES)):
        names = [column for column in raw.columns if column.lower() in known]
        if len(names) > 1:
            raise SchemaError(
                f"{name}: {len(names)} columns could be the {role}: {', '.join(names)}. Keep one of them."
            )
        if not names:
            shown = ", ".join(raw.columns[:20]) + (", ..." if raw.width > 20 else "")  # noqa: PLR2004 - a line's worth
            raise SchemaError(
                f"{name}: no column is named {' or '.join(known)}. Rename the {role} column. There are: {shown}."
            )
        roles[names[0]] = role
    keys = [column for column, role in roles.items() if role != _LABEL]
    others = list[pl.Series]()
    for column in (column for column in raw.columns if column not in keys):
        values = raw[column]
        numbers = values.cast(pl.Float64, strict=False) if values.dtype == pl.String else values
        others.append(numbers if numbers.null_count() == values.null_count() else values)
    return raw.select(keys).with_columns(others).rename(roles), digests(sources, holds_rows=lambda _: True)
