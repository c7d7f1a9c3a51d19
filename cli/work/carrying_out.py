"""One way for every command from a job to its exit code, or to what `--dry-run` prints."""

from collections.abc import Callable, Sequence
from typing import Any

from posbias.cli.options.log import ReadingOptions
from posbias.cli.options.output import ResultOptions
from posbias.cli.report.result import open_result
from posbias.cli.work.requests import open_engine
from posbias.io.engines.engine import Engine
from posbias.io.jobs.fit import Job
from posbias.io.jobs.tables import Result


def carry_out(
    command: str,
    job: Job,
    reading: ReadingOptions,
    output: ResultOptions,
    groups: list[Any],
    also_read: Sequence[str],
    work: Callable[[Engine, Result], object],
) -> int:
    """Do the work of a command, once its options have been found to go together; return the exit code.

    Args:
        command: its name.
        job: what it reads.
        reading: how, and with which engine.
        output: where to, and how much to say.
        groups: the option groups that shaped the result.
        also_read: what is read beside the job, and must not be replaced either.
        work: makes the result.
    """
    also_read = [*also_read, *(reading.clicks or ())]
    if output.dry_run:
        from posbias.cli.work.checking import rehearse  # noqa: PLC0415 - it loads what recognises logs

        return rehearse(command, job, reading, output.output, output, also_read)
    with (
        open_result(command, output, job.inputs, groups, also_read) as result,
        open_engine(reading, output.output) as engine,
    ):
        work(engine, result)
    return result.exit_code
