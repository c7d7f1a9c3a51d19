"""The one way from a job to its exit code, or to what `--dry-run` prints."""

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
from posbias.cli.report.result import carry_out
from posbias.core.errors import OutputError, mask_secrets_in_values, plural
from posbias.core.schema import CLICK, DOC, IMPRESSIONS, POSITION, QUERY, SESSION, WEIGHT
from posbias.io.engines.engine import Engine
from posbias.io.engines.local import LocalEngine
from posbias.io.forms import get_form
from posbias.io.jobs.fit import Job
from posbias.io.jobs.tables import DONE, Result
from posbias.io.log.click_log import Log
from posbias.io.log.events import EVENTS
from posbias.io.log.faults import doubts
from posbias.io.log.lists import RESERVED_PREFIX, Finding
from posbias.io.log.scan import schema_of
from posbias.io.log.sources import input_paths
from posbias.io.places.locations import Location, is_same, is_text
from posbias.io.places.ownership import owned_directory, system_temporary
from posbias.io.places.temporary import shared_place
from posbias.io.results.outputs import check_output


def carry_out_job(
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
    """Do the work of a command, once its options are known to go together; return the exit code.

    Args:
        command: its name.
        job: what it reads.
        log: how, and with which engine.
        target: where the result goes.
        output: whether an old result may go, and how much is printed.
        options: those that shaped the result.
        also_read: what is read beside the job, and must not be replaced either.
        work: makes the result.
        waits: whether to wait until another run that writes the target has ended; else that is an error.
    """
    also_read = [*also_read, *(log.clicks or ())]
    if output.dry_run:
        return rehearse(command, job, log, target, output, also_read)

    def in_engine(result: Result) -> None:
        with open_engine(log, target, result.facts) as engine:
            work(engine, result)

    return carry_out(command, job.inputs, target, output, options, in_engine, also_read, waits=waits)


@contextmanager
def open_engine(log: LogOptions, output: Location, facts: list[str] | None = None) -> Generator[Engine]:
    """The engine, with a directory for temporary files for as long as the block runs.

    Raises:
        UsageError: an option does not go with the engine.
        OutputError: there is no place for temporary files.
        EngineError: the engine cannot start.
    """
    install_over_polars()
    memory = parse_memory(log.memory)
    if log.engine == "polars":
        with _scratch(log.temp_dir or system_temporary(), hidden=False) as scratch:
            yield LocalEngine(memory, scratch, log.on_bad_rows, log.check_pages)
        return
    place = shared_place(log.temp_dir, output)
    from posbias.io.engines.spark import SparkEngine  # noqa: PLC0415 - only where it is requested
    from posbias.io.engines.spark_session import about_session, open_session  # noqa: PLC0415 - only where it is requested

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


SCHEMA_OF_REHEARSALS = "posbias.rehearsal"
WRITTEN = {
    "run": "propensities, attractiveness, training files, manifest",
    "fit": "propensities, attractiveness, manifest",
    "collect": "statistics, manifest",
    "weight": "training files, manifest",
    "train": "a model, scores, manifest",
    "evaluate": "a table of values, manifest",
    "interleave": "the verdict, sums by day, manifest",
}
"""The output of each command, in words."""


def rehearse(
    command: str,
    job: Job,
    log: LogOptions,
    target: Location,
    output: PrintOptions,
    also_read: Sequence[str | Location] = (),
    *,
    replaces_input: bool = False,
) -> int:
    """Say what a command would do, once its options are known to go together; return the exit code.

    Args:
        command: its name.
        job: what it reads.
        log: how.
        target: where it writes.
        output: whether an old result may go, and how much is printed.
        also_read: what else is read, and must not be replaced either.
        replaces_input: whether the result may replace an input, as it holds all of that.

    Raises:
        PosbiasError: the command would fail with it before it reads a row.
    """
    reads: dict[str, Any] = {"inputs": list(job.inputs), "also": [*map(str, also_read)]}
    warnings: list[str] = []
    if job.statistics:
        reads["statistics"] = {
            str(entry.path): {"days": entry.days, "parts": len(entry.parts)} for entry in job.statistics
        }
    else:
        opened = job.open_log()
        reads["log"] = describe_log(opened)
        reads["files"] = [str(source.path) for source in opened.sources]
        warnings = [reason.sentence for reason in doubts(opened)]
    paths = input_paths((*job.inputs, *also_read))
    paths += [path for path in (output.config, log.temp_dir) if path is not None]
    protected = [path for path in paths if not (replaces_input and is_same(path, target))]
    is_there = check_output(target, force=output.force, protected=protected)
    writes = {"target": str(target), "what": WRITTEN[command], "replaces": is_there}
    content = {
        "schema": SCHEMA_OF_REHEARSALS,
        "command": command,
        "reads": reads,
        "writes": writes,
        "warnings": warnings,
    }
    content = mask_secrets_in_values(content)
    reads = content["reads"]
    lines = recognised_lines(reads["log"]) if "log" in reads else []
    for name, held in reads.get("statistics", {}).items():
        days = "" if not held["days"] else f", {plural(len(held['days']), 'days')}"
        lines.append(f"statistics: {name}, {plural(held['parts'], 'parts')}{days}")
    lines += [f"also read: {name}" for name in reads["also"]]
    verb = "would replace" if is_there else "would write"
    lines += [f"{verb}: {content['writes']['target']}, with {WRITTEN[command]}", "nothing was written (--dry-run)"]
    print_on_stdout([] if output.quiet else map(line, lines), content if output.json else None)
    for warning in content["warnings"]:
        print_message(warning, level="warning")
    return DONE


def describe_log(log: Log, findings: Sequence[Finding] = ()) -> dict[str, Any]:
    """The form, files and columns of a log, each column with its type as the files have it, and findings about it."""
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
    played = {SESSION: roles.session, QUERY: roles.query, DOC: roles.doc}
    played |= {role: (name,) for role, name in single.items() if name is not None}
    schema = {} if log.raw is not None and log.raw.reads_lines else dict(schema_of(log.sources[0]))
    columns = {
        role: [{"column": name, "type": str(schema[name]) if name in schema else None} for name in names]
        for role, names in played.items()
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


def recognised_lines(log: Mapping[str, Any]) -> list[str]:
    """The files, the column of each role, and what was recognised beside them."""
    form = _FORMS[log["form"]] if log["form"] in _FORMS else get_form(log["form"]).title
    roles: list[str] = []
    for role, held in log["columns"].items():
        columns = [of["column"] if of["type"] is None else f"{of['column']} ({of['type']})" for of in held]
        roles.append(f"{role} {' and '.join(columns)}")
    lines = [f"log: {plural(log['files'], 'files')} of {', '.join(log['formats'])}, {form}"]
    lines.append(f"columns: {'; '.join(roles)}")
    for finding in log["findings"]:
        doubt = "" if finding["certain"] else " (a guess)"
        option = f": {shlex.join(finding['options'])}" if finding["options"] else ""
        lines.append(f"found: {finding['said']}{doubt}{option}")
    return lines
