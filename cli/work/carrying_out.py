"""The one way of a command from a job to its exit code, or to what `--dry-run` prints."""

from collections.abc import Callable, Mapping, Sequence

from posbias.cli.options.log import LogOptions
from posbias.cli.options.output import ResultOptions
from posbias.cli.report.result import carry_out
from posbias.cli.work.requests import open_engine
from posbias.io.engines.engine import Engine
from posbias.io.jobs.fit import Job
from posbias.io.jobs.tables import Result


def carry_out_job(
    command: str,
    job: Job,
    log: LogOptions,
    output: ResultOptions,
    options: Mapping[str, object],
    also_read: Sequence[str],
    work: Callable[[Engine, Result], object],
) -> int:
    """Do the work of a command, once its options have been found to go together; return the exit code.

    Args:
        command: its name.
        job: what it reads.
        log: how, and with which engine.
        output: where to, and how much to say.
        options: those that shaped the result.
        also_read: what is read beside the job, and must not be replaced either.
        work: makes the result.
    """
    also_read = [*also_read, *(log.clicks or ())]
    if output.dry_run:
        from posbias.cli.work.checking import rehearse  # noqa: PLC0415 - it loads what recognises logs

        return rehearse(command, job, log, output.output, output, also_read)

    def in_engine(result: Result) -> None:
        with open_engine(log, output.output) as engine:
            work(engine, result)

    return carry_out(command, job.inputs, output, options, in_engine, also_read)
