"""`--dry-run`: what a command would read, how it understands it, and what it would write. Nothing is written."""

from collections.abc import Sequence
from typing import Any

from posbias.cli.console import line
from posbias.cli.messages import warn
from posbias.cli.options.output import OutputOptions
from posbias.cli.options.reading import ReadingOptions
from posbias.cli.report.check import recognised_lines
from posbias.cli.report.shown import print_on_stdout
from posbias.cli.work.described_log import describe_log
from posbias.core.credentials import masked_values
from posbias.core.wording import counted
from posbias.io.features.table import check_features
from posbias.io.jobs.reading import Job
from posbias.io.jobs.result import DONE, is_same
from posbias.io.log.doubts import doubts
from posbias.io.log.sources import named_paths
from posbias.io.places.locations import Location
from posbias.io.results.output import check_output

SCHEMA = "posbias.rehearsal"
WRITTEN = {
    "run": "propensities, attractiveness, training files, manifest",
    "fit": "propensities, attractiveness, manifest",
    "collect": "statistics, manifest",
    "weight": "training files, manifest",
    "train": "a model, scores, manifest",
    "evaluate": "a table of values, manifest",
}
"""What each command writes, in words."""


def rehearse(
    command: str,
    job: Job,
    reading: ReadingOptions,
    target: Location,
    output: OutputOptions,
    also_read: Sequence[str | Location] = (),
    *,
    replaces_input: bool = False,
) -> int:
    """Say what a command would do, once its options have been found to go together; return the exit code.

    Args:
        command: its name.
        job: what it reads.
        reading: how.
        target: where it writes.
        output: whether an old result may go, and how much is said.
        also_read: what else is read, and must not be replaced either.
        replaces_input: whether the result may replace an input, as it holds all of that.

    Raises:
        PosbiasError: the command would fail with it before it reads a row.
    """
    job.require_logs()
    reads: dict[str, Any] = {"inputs": list(job.inputs), "also": [*map(str, also_read)]}
    warnings: list[str] = []
    if job.statistics:
        reads["statistics"] = {
            str(entry.path): {"days": entry.days, "parts": len(entry.parts)} for entry in job.statistics
        }
    else:
        log = job.open_log()
        check_features(log, job.tables, job.features)
        reads["log"] = describe_log(log)
        reads["files"] = [str(source.path) for source in log.sources]
        warnings = doubts(log)
    paths = [path for name in (*job.inputs, *also_read) for path in named_paths(name)]
    paths += [path for path in (output.config, reading.temp_dir) if path is not None]
    protected = [path for path in paths if not (replaces_input and is_same(path, target))]
    is_there = check_output(target, force=output.force, protected=protected)
    writes = {"target": str(target), "what": WRITTEN[command], "replaces": is_there}
    content = {"schema": SCHEMA, "command": command, "reads": reads, "writes": writes, "warnings": warnings}
    content = masked_values(content)
    print_on_stdout([] if output.quiet else map(line, _lines(content)), content if output.json else None)
    for warning in content["warnings"]:
        warn(warning)
    return DONE


def _lines(content: dict[str, Any]) -> list[str]:
    reads, writes = content["reads"], content["writes"]
    said = recognised_lines(reads["log"]) if "log" in reads else []
    for name, held in reads.get("statistics", {}).items():
        days = "" if not held["days"] else f", {counted(len(held['days']), 'days')}"
        said.append(f"statistics: {name}, {counted(held['parts'], 'parts')}{days}")
    said += [f"also read: {name}" for name in reads["also"]]
    verb = "would replace" if writes["replaces"] else "would write"
    return [*said, f"{verb}: {writes['target']}, with {writes['what']}", "nothing was written (--dry-run)"]
