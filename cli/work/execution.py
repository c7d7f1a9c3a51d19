"""From a job to its exit code, or to the output of --dry-run."""

import shlex
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from posbias.cli.interrupts import install_over_polars
from posbias.cli.messages import print_message
from posbias.cli.options.groups import LogOptions, PrintOptions, ResultOptions
from posbias.cli.options.option import parse_memory
from posbias.cli.report.printing import line, print_on_stdout
from posbias.cli.report.result import write_result
from posbias.core.errors import OutputError, mask_secrets_in_values, plural
from posbias.core.schema import CLICK, DOC, IMPRESSIONS, POSITION, QUERY, SESSION, WEIGHT
from posbias.io.engines.engine import Engine
from posbias.io.engines.local import LocalEngine
from posbias.io.forms import get_form
from posbias.io.jobs.fit import Job
from posbias.io.jobs.tables import DONE, Result
from posbias.io.log.click_log import Log
from posbias.io.log.events import EVENTS
from posbias.io.log.faults import column_faults
from posbias.io.log.lists import RESERVED_PREFIX, Finding
from posbias.io.log.scan import schema_of
from posbias.io.log.sources import input_paths
from posbias.io.places.locations import Location, is_same, is_text
from posbias.io.places.ownership import owned_directory, system_temporary
from posbias.io.places.temporary import shared_place
from posbias.io.results.outputs import check_output


def run_job(
    command: str,
    job: Job,
    log: LogOptions,
    target: Location,
    output: ResultOptions,
    options: Mapping[str, object],
    also_read: Sequence[str],
    work: Callable[[Engine, Result], object],
    *,
    waits: bool = False,
) -> int:
    """Run a command on a validated job, or rehearse it with --dry-run; return the exit code.

    Args:
        command: its name.
        job: the inputs.
        log: options of reading, and the engine.
        target: the place of the result.
        output: replacement of an old result, and printing.
        options: for the manifest.
        also_read: further inputs, which must not be replaced.
        work: makes the result.
        waits: whether to wait for another run that writes the target, instead of raising OutputError.
    """
    also_read = [*also_read, *(log.clicks or ())]
    if output.dry_run:
        return dry_run(command, job, log, target, output, also_read)

    def in_engine(result: Result) -> None:
        with open_engine(log, target, result.facts) as engine:
            work(engine, result)

    return write_result(command, job.inputs, target, output, options, in_engine, also_read, waits=waits)


@contextmanager
def open_engine(log: LogOptions, output: Location, facts: list[str] | None = None) -> Generator[Engine]:
    """Open the engine, with a directory for temporary files, while the block runs.

    Args:
        log: options of reading, memory and engine.
        output: the place of the result; temporary files of Spark go beside it.
        facts: a list to which a sentence about the Spark session is added.

    Raises:
        UsageError: an option conflicts with the engine.
        OutputError: the directory for temporary files does not exist.
        EngineError: the engine cannot start.
    """
    install_over_polars()
    memory = parse_memory(log.memory)
    if log.engine == "polars":
        with _scratch(log.temp_dir or system_temporary(), hidden=False) as scratch:
            yield LocalEngine(memory, scratch, log.on_bad_rows, log.check_pages)
        return
    place = shared_place(log.temp_dir, output)
    from posbias.io.engines.spark import SparkEngine  # noqa: PLC0415 - only for Spark
    from posbias.io.engines.spark_session import about_session, open_session  # noqa: PLC0415 - only for Spark

    with (
        _scratch(place, hidden=True) as scratch,
        open_session(log.master, scratch) as session,
        closing(SparkEngine(memory, scratch, log.on_bad_rows, log.check_pages, session=session)) as engine,
    ):
        yield engine
        if facts is not None:
            facts.append(about_session(session, log.master))


@contextmanager
def _scratch(parent: Path, *, hidden: bool) -> Generator[Path]:
    if not parent.is_dir():
        raise OutputError(f"--temp-dir {parent}: there is no such directory.")
    if not is_text(parent.absolute()):
        raise OutputError(f"--temp-dir {str(parent)!a}: the name is not UTF-8. Choose another directory.")
    with owned_directory(parent.absolute(), ".posbias" if hidden else "posbias") as scratch:
        yield scratch


DRY_RUN_SCHEMA = "posbias.rehearsal"
OUTPUTS = {
    "run": "propensities, attractiveness, training files, manifest",
    "fit": "propensities, attractiveness, manifest",
    "collect": "statistics, manifest",
    "weight": "training files, manifest",
    "train": "a model, scores, manifest",
    "evaluate": "a table of values, manifest",
    "interleave": "the verdict, sums by day, manifest",
}
"""Descriptions of the output of each command."""


def dry_run(
    command: str,
    job: Job,
    log: LogOptions,
    target: Location,
    output: PrintOptions,
    also_read: Sequence[str | Location] = (),
    *,
    replaces_input: bool = False,
) -> int:
    """Print what a command with a validated job would read and write; return the exit code.

    Args:
        command: its name.
        job: the inputs.
        log: options of reading.
        target: the place of the result.
        output: replacement of an old result, and printing.
        also_read: further inputs, which must not be replaced.
        replaces_input: whether the result may replace an input, because it contains the input.

    Raises:
        PosbiasError: the error with which the command would end before it reads a row.
    """
    reads: dict[str, Any] = {"inputs": list(job.inputs), "also": [*map(str, also_read)]}
    warnings: list[str] = []
    if job.statistics:
        reads["statistics"] = {
            str(entry.path): {"days": entry.days, "parts": len(entry.parts)} for entry in job.statistics
        }
    else:
        opened = job.open_log()
        reads["log"] = log_description(opened)
        reads["files"] = [str(source.path) for source in opened.sources]
        warnings = [reason.sentence for reason in column_faults(opened)]
    paths = input_paths((*job.inputs, *also_read))
    paths += [path for path in (output.config, log.temp_dir) if path is not None]
    protected = [path for path in paths if not (replaces_input and is_same(path, target))]
    is_there = check_output(target, force=output.force, protected=protected)
    writes = {"target": str(target), "what": OUTPUTS[command], "replaces": is_there}
    content = {"schema": DRY_RUN_SCHEMA, "command": command, "reads": reads, "writes": writes, "warnings": warnings}
    content = mask_secrets_in_values(content)
    reads = content["reads"]
    lines = log_lines(reads["log"]) if "log" in reads else []
    for name, entry in reads.get("statistics", {}).items():
        days = "" if not entry["days"] else f", {plural(len(entry['days']), 'days')}"
        lines.append(f"statistics: {name}, {plural(entry['parts'], 'parts')}{days}")
    lines += [f"also read: {name}" for name in reads["also"]]
    verb = "would replace" if is_there else "would write"
    lines += [f"{verb}: {content['writes']['target']}, with {OUTPUTS[command]}", "nothing was written (--dry-run)"]
    print_on_stdout([] if output.quiet else map(line, lines), content if output.json else None)
    for warning in content["warnings"]:
        print_message(warning, level="warning")
    return DONE


def log_description(log: Log, findings: Sequence[Finding] = ()) -> dict[str, Any]:
    """Return the form, files, columns by role with their types in the files, and findings of a log, as plain data."""
    roles, form = log.roles, "flat" if log.nesting is None else "nested"
    if log.raw is not None:
        form = log.raw.name
    elif roles.impressions is not None:
        form = "sums"
    single = {
        POSITION: roles.position,
        "page": roles.page,
        CLICK: None if log.click_sources else roles.click,
        IMPRESSIONS: roles.impressions,
        WEIGHT: roles.weight,
        "timestamp": roles.timestamp,
    }
    names_by_role = {SESSION: roles.session, QUERY: roles.query, DOC: roles.doc}
    names_by_role |= {role: (name,) for role, name in single.items() if name is not None}
    schema = {} if log.raw is not None and log.raw.reads_lines else dict(schema_of(log.sources[0]))
    columns = {
        role: [{"column": name, "type": str(schema[name]) if name in schema else None} for name in names]
        for role, names in names_by_role.items()
        if names and not any(name.startswith(RESERVED_PREFIX) for name in names)
    }
    return {
        "form": form,
        "files": len(log.sources),
        "formats": sorted({source.format for source in log.sources}),
        "columns": columns,
        "position_base": log.request.rules.position_base,
        "findings": [
            {"said": finding.text, "options": list(finding.options), "certain": finding.certain} for finding in findings
        ],
    }


_FORMS = {
    "flat": "one row per impression",
    "nested": "one row per page",
    "sums": "one row per sum of impressions",
    EVENTS: "one row per impression or click",
}


def log_lines(log: Mapping[str, Any]) -> list[str]:
    """Return lines about the files, the columns of each role, and the findings of a `log_description`."""
    form = _FORMS[log["form"]] if log["form"] in _FORMS else get_form(log["form"]).title
    roles: list[str] = []
    for role, entries in log["columns"].items():
        columns = [each["column"] + (f" ({each['type']})" if each["type"] is not None else "") for each in entries]
        roles.append(f"{role} {' and '.join(columns)}")
    lines = [f"log: {plural(log['files'], 'files')} of {', '.join(log['formats'])}, {form}"]
    lines.append(f"columns: {'; '.join(roles)}")
    for finding in log["findings"]:
        doubt = "" if finding["certain"] else " (a guess)"
        option = f": {shlex.join(finding['options'])}" if finding["options"] else ""
        lines.append(f"found: {finding['said']}{doubt}{option}")
    return lines
