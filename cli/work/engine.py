"""The engine that does the work, and its place for temporary files."""

from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

from posbias.cli.options.reading import ReadingOptions
from posbias.cli.options.values import parse_memory
from posbias.core.errors import OutputError, UsageError
from posbias.io.engines.engine import Engine
from posbias.io.engines.local import LocalEngine
from posbias.io.places.file_names import is_text
from posbias.io.places.locations import Location, ObjectUrl
from posbias.io.temporary.directories import owned_directory, system_temporary


@contextmanager
def open_engine(reading: ReadingOptions, output: Location) -> Generator[Engine]:
    """The engine, with a directory for temporary files for as long as the block runs.

    Raises:
        UsageError: an option does not go with the engine.
        OutputError: there is no place for temporary files.
        EngineError: the engine cannot start.
    """
    memory = parse_memory(reading.memory)
    if reading.engine == "polars":
        with _scratch(reading.temp_dir or system_temporary(), hidden=False) as scratch:
            yield LocalEngine(memory, scratch, reading.on_bad_rows, reading.check_pages)
        return
    place = reading.temp_dir
    if place is None:  # where all machines of a cluster find the output, they find temporary files too
        if isinstance(output, ObjectUrl):
            raise UsageError(
                f"--output {output}: with --engine spark the result is made on disk before it is uploaded. "
                "Use --temp-dir to name a directory that all machines of the cluster can see."
            )
        place = next(folder for folder in output.absolute().parents if folder.is_dir())
    from posbias.io.engines.spark import SparkEngine  # noqa: PLC0415 - only where it is asked for
    from posbias.io.engines.spark_session import DEFAULT_MASTER, open_session  # noqa: PLC0415 - likewise

    with (
        _scratch(place, hidden=True) as scratch,
        open_session(reading.master or DEFAULT_MASTER, scratch) as session,
        closing(SparkEngine(memory, scratch, reading.on_bad_rows, reading.check_pages, session=session)) as engine,
    ):
        yield engine


@contextmanager
def _scratch(parent: Path, *, hidden: bool) -> Generator[Path]:
    if not parent.is_dir():
        raise OutputError(f"--temp-dir {parent}: there is no such directory.")
    if not is_text(parent.absolute()):
        raise OutputError(f"--temp-dir {str(parent)!a}: the name is not UTF-8. Choose another directory.")
    with owned_directory(parent.absolute(), hidden=hidden) as scratch:
        yield scratch
