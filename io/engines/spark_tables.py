"""Logs in tables of Spark's catalog: `--table shop.impressions`, or a query over them.

Spark writes the rows to Parquet files beside the temporary files, once, so that all steps see the same rows of a table
that may change; these files are read as a log is. Columns that play no role stay where they are.
"""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Any

from posbias.core.errors import EngineError, RoleError, UsageError
from posbias.core.roles import plain, resolve_roles, says_offset, says_page
from posbias.core.schema import NAMES_OF_COUNTS
from posbias.io.engines.spark_session import Session, open_session, running_session, spark_errors
from posbias.io.log.click_log import LogRequest
from posbias.io.log.sources import Source
from posbias.io.places.ownership import owned_directory

_FIRST_ROWS = 10_000  # of a log of which no more than the columns is of interest
_ROW_GROUP = 1 << 24  # bytes: a reader decodes it whole
_FILE_ROWS = 1 << 22
_NO_COLUMNS = ("calendarinterval", "void", "variant", "geometry", "geography", "map")


@dataclass(frozen=True)
class Reading:
    """How a command reads tables."""

    master: str | None  # of a session that has to be started
    place: Path  # where temporary files go, which all machines of a cluster see
    stack: ExitStack  # ends with the command
    every_column: bool  # also those that play no role
    every_row: bool  # or only the first ones

    def session(self) -> Session:
        """The session that is running, or one that runs until the command ends."""
        running = running_session()
        return self.stack.enter_context(open_session(self.master, self.folder())) if running is None else running

    def folder(self) -> Path:
        """A new directory that is there until the command ends."""
        return self.stack.enter_context(owned_directory(self.place.absolute(), hidden=True))


_commands: list[Reading] = []  # one while a command runs
_made: dict[tuple["Tables", tuple[str, ...]], tuple[Source, ...]] = {}  # a command may open its log several times


@contextmanager
def tables_below(place: Path, master: str | None, *, every_column: bool, every_row: bool) -> Generator[None]:
    """In this block, tables are copied below a directory for temporary files; for the arguments see `Reading`."""
    with ExitStack() as stack:
        _commands.append(Reading(master, place, stack, every_column, every_row))
        try:
            yield
        finally:
            _commands.pop()
            _made.clear()


@dataclass(frozen=True)
class Tables:
    """Tables and views of a catalog, whose rows are a log together; or a query over the catalog."""

    names: tuple[str, ...]
    query: str | None = None  # one SELECT
    flag: str = "--table"  # the option that gave them, for messages

    def sources(self, request: LogRequest) -> tuple[Source, ...]:
        """The rows as Parquet files that live as long as the command.

        Raises:
            UsageError: there is no such table, the query is not one SELECT or cannot be run.
            EngineError: Spark does not start, or cannot read the table.
        """
        reading = _commands[-1]
        session, refused = reading.session(), import_module("pyspark.errors").AnalysisException
        with spark_errors():
            try:
                frame = self._frame(session)
                columns = _columns(frame, request, every=reading.every_column)
            except refused as error:
                raise UsageError(f"{self._named}: {str(error).strip().splitlines()[0].rstrip('.')}.") from error
        alike = [name for name in columns if sum(name.lower() == other.lower() for other in columns) > 1]
        if alike and session.conf.get("spark.sql.caseSensitive") != "true":
            raise UsageError(
                f"{self._named}: columns are called alike: {' and '.join(map(repr, alike))}. Spark does not tell them "
                "apart. Rename one of them in a view."
            )
        key = (self, tuple(columns))
        if key not in _made:
            rows = frame.select(*(f"`{name.replace('`', '``')}`" for name in columns))
            _made[key] = self._written(rows if reading.every_row else rows.limit(_FIRST_ROWS), reading.folder())
        return _made[key]

    @property
    def _named(self) -> str:
        return self.flag if self.query is not None else f"{self.flag} {' '.join(self.names)}"

    def _frame(self, session: Session) -> Any:  # noqa: ANN401 - pyspark.sql.DataFrame
        if self.query is not None:  # in brackets, nothing but a query can be run
            return session.sql(f"SELECT * FROM (\n{self.query.strip().rstrip(';')}\n)")  # noqa: S608 - the user's own
        frames = [session.table(name) for name in self.names]
        return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)

    def _written(self, rows: Any, folder: Path) -> tuple[Source, ...]:  # noqa: ANN401 - pyspark.sql.DataFrame
        target = folder / "rows"
        try:
            with spark_errors():
                options = {"parquet.block.size": _ROW_GROUP, "maxRecordsPerFile": _FILE_ROWS}
                rows.write.options(**options).parquet(target.as_uri())
        except EngineError as error:
            raise EngineError(f"{self._named}: {error}") from error
        files = sorted(target.glob("*.parquet"))
        if not files:
            raise EngineError(
                f"{self._named}: Spark wrote its rows to {target} on another machine. Name a --temp-dir that this "
                "machine and the cluster see."
            )
        name = " ".join(self.names) if self.query is None else self.flag
        with spark_errors():
            made_of = ((_digest(rows.sparkSession.read.parquet(target.as_uri())), name),)
        sources: list[Source] = []
        for number, file in enumerate(files):
            status, shown = file.stat(), Path(name) if len(files) == 1 else Path(name) / f"part {number}"
            version = (status.st_size, status.st_mtime_ns, (status.st_dev, status.st_ino))
            sources.append(Source(shown, "parquet", (), *version, spooled=file, made_of=made_of))
        return tuple(sources)


def _digest(rows: Any) -> str:  # noqa: ANN401 - pyspark.sql.DataFrame
    """The number of rows and the sum of their hashes: the same for the same rows in any order, in any files."""
    functions: Any = import_module("pyspark.sql.functions")
    row = functions.xxhash64(functions.to_json(functions.struct("*"), {"timeZone": "UTC"}))
    number, total = rows.select(functions.count("*"), functions.sum(row.cast("decimal(20,0)"))).first()
    return f"{number}-{int(total or 0) % (1 << 64):016x}"


def _columns(frame: Any, request: LogRequest, *, every: bool) -> list[str]:  # noqa: ANN401 - pyspark.sql.DataFrame
    """The columns that may play a role, and those whose names alone are a warning."""
    types = {field.name: field.dataType.typeName() for field in frame.schema.fields}
    names = [name for name, kind in types.items() if kind not in _NO_COLUMNS]
    if every or request.raw or request.events or request.clicks:
        return names
    try:
        roles = resolve_roles(request.roles, names, where=request.where, required=())
    except RoleError:
        return names
    if not all((roles.query or roles.no_query, roles.doc, roles.position, roles.click)):
        return names  # the message shows them
    nested = {name for name in names if types[name] in {"struct", "array"}}  # with fields that may play one
    warned = {name for name in names if says_page(name) or says_offset(name) or plain(name) in NAMES_OF_COUNTS}
    return [name for name in names if name in nested | warned or name in roles.columns()]
