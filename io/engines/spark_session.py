"""Open a Spark session or raise a clear error; read logs from tables of its catalog (`--table shop.impressions`).

Pyspark, Java and the master are looked at before Spark says it in fifty lines.

Spark writes the rows of tables to Parquet files beside the temporary files, once, so that all steps see the same rows
of a table that may change; these files are read as a log is. Columns that play no role stay where they are.
"""

import logging
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from posbias.core.errors import EngineError, RoleError, UsageError
from posbias.core.roles import is_count_name, is_offset_name, is_page_name, resolve_roles
from posbias.io.engines.spark_worker import WIRE
from posbias.io.log.click_log import LogRequest
from posbias.io.log.sources import Source
from posbias.io.places.ownership import owned_directory
from posbias.io.places.temporary import SHARED

DEFAULT_MASTER = "local[*]"

_OLDEST_JAVA = 17  # what Spark 4 runs on
_ANSWERS_WITHIN = 5.0  # seconds, of a master that is there
_WORKERS_WITHIN = 120.0  # seconds, of a cluster that is not busy
_LOCAL = re.compile(r"local(\[(\d+|\*)(, *\d+)?\])?")
_CLUSTER = re.compile(r"(spark|k8s|yarn)(://.+)?")
_OF_THE_GATEWAY = re.compile(r"\AAn error occurred while calling [^\n]*\n: ")
_OURS = "spark.posbias.started"
_SHUFFLE = "spark.sql.shuffle.partitions"
_ONE_THREAD = ("POLARS_MAX_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")  # Spark runs a worker per core
_CHATTY = ("DataFrameQueryContextLogger", "SQLQueryContextLogger", "py4j")

Session = Any
"""pyspark.sql.SparkSession, which is not there unless the extra is installed."""

_handed_in: list[Session] = []  # sessions of frames that are read


@contextmanager
def open_session(master: str | None, scratch: Path) -> Generator[Session]:
    """Yield a Spark session and stop it at the end; an existing session of this process is used and left running.

    Args:
        master: where Spark runs, e.g. `local[*]` or `spark://host:7077`; None for `local[*]`.
        scratch: where Spark's own messages go, and in local mode its temporary files.

    Raises:
        EngineError: pyspark or Java is missing or too old, or Spark does not start.
        UsageError: the master is none, or does not answer.
    """
    if find_spec("pyspark") is None:
        install = "python3 -m pip install 'pyspark[sql]'"
        raise EngineError(f"--engine spark needs PySpark, which is not installed. Run: {install}")
    running = running_session()
    if running is not None:
        yield running
        return
    check_java()
    check_master(master or DEFAULT_MASTER)
    session = _start(master or DEFAULT_MASTER, scratch)
    try:
        _wait_for_workers(session, master or DEFAULT_MASTER)
        session.conf.set(_OURS, "true")
        yield session
    finally:
        with suppress(EngineError), spark_errors():  # a JVM that has died has nothing to stop
            session.stop()


def running_session() -> Session | None:
    """Return the active session of this process, classic or Spark Connect; None if there is none."""
    if _handed_in:
        return _handed_in[-1]
    if "pyspark.sql" not in sys.modules:
        return None
    classic: Any = import_module("pyspark.sql").SparkSession
    connect: Any = sys.modules.get("pyspark.sql.connect.session")
    running = classic.getActiveSession() or (connect and connect.SparkSession.getActiveSession())
    return running or getattr(classic, "_instantiatedSession", None)  # of another thread


@contextmanager
def session_of(frame: Any) -> Generator[str]:  # noqa: ANN401 - pyspark.sql.DataFrame
    """Register a Spark frame as a temporary view in its session, and yield the name of the view."""
    view = f"posbias_{secrets.token_hex(8)}"
    with spark_errors():
        frame.createOrReplaceTempView(view)
    _handed_in.append(frame.sparkSession)
    try:
        yield view
    finally:
        _handed_in.pop()
        with suppress(EngineError), spark_errors():
            frame.sparkSession.catalog.dropTempView(view)


def is_connect(session: Session) -> bool:
    """Whether a session talks to Spark Connect, which has no SparkContext."""
    return type(session).__module__.startswith("pyspark.sql.connect")


def is_ours(session: Session) -> bool:
    """Whether posbias started a session, and may change its settings."""
    return session.conf.get(_OURS, None) is not None


def about_session(session: Session, master: str | None) -> str:
    """Return one line that describes the session of a command."""
    place = "Spark Connect" if is_connect(session) else session.sparkContext.master
    if is_ours(session):
        return f"spark: a session of its own on {place}, Spark {session.version}"
    unused = "" if master in {None, place} else f"; --master {master} had no effect"
    return f"spark: the session that was running ({place}, Spark {session.version}), left as it was{unused}"


def cores_of(session: Session) -> int:
    """Return the default parallelism of a session: the number of tasks that run at once."""
    if not is_connect(session):
        return session.sparkContext.defaultParallelism
    functions: Any = import_module("pyspark.sql.functions")
    return session.range(1 << 16).select(functions.spark_partition_id()).distinct().count()


def shuffle_into(session: Session, n_parts: int) -> None:
    """Set the number of shuffle partitions to at least `n_parts`; sessions of others are not changed."""
    if is_ours(session) and n_parts > int(session.conf.get(_SHUFFLE)):
        session.conf.set(_SHUFFLE, str(n_parts))


def check_java() -> None:
    """Check that Java is where Spark will look for it.

    Raises:
        EngineError: there is none, or it is too old.
    """
    home = os.environ.get("JAVA_HOME")
    where = f"JAVA_HOME is {home}" if home else "JAVA_HOME is not set, and there is no `java` on the PATH"
    java = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    advice = "Install one, e.g. openjdk-17-jre-headless, or point JAVA_HOME to it."
    if java is None:
        raise EngineError(
            f"--engine spark: Spark runs on Java {_OLDEST_JAVA} or later, and there is none ({where}). {advice}"
        )
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)  # noqa: S603
    version = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    if answer.returncode or version is None:
        raise EngineError(
            f"--engine spark: {java} does not run: {_first_line(answer.stderr) or 'it says nothing'}. {advice}"
        )
    if int(version[1]) < _OLDEST_JAVA:
        raise EngineError(
            f"--engine spark: Spark runs on Java {_OLDEST_JAVA} or later; {java} is Java {version[1]}. {advice}"
        )


def check_master(master: str) -> None:
    """Check the form of a master URL and that its host answers; Spark itself takes a minute to fail.

    Raises:
        UsageError: it cannot, or it does not.
    """
    if not _LOCAL.fullmatch(master) and not _CLUSTER.fullmatch(master):
        raise UsageError(
            f"--master {master}: is not a Spark master. Give local[*], local[4], spark://host:7077, yarn or k8s://host:port."
        )
    if not master.startswith("spark://"):
        return
    refusals: list[str] = []
    for named in master.removeprefix("spark://").split(","):
        place = named.rpartition("@")[2]  # a password is not repeated; Spark itself refuses it
        host, _, port = place.rpartition(":")
        if not host or not port.isdigit():
            raise UsageError(f"--master {master}: {place!r} is not host:port. Give e.g. spark://host:7077.")
        try:
            socket.create_connection((host, int(port)), timeout=_ANSWERS_WITHIN).close()
        except (OSError, OverflowError) as error:
            refusals.append(
                f"{place}: {error.strerror or error}" if isinstance(error, OSError) else f"{place}: {error}"
            )
        else:
            return
    raise UsageError(f"--master {master}: no Spark master answers there ({'; '.join(refusals)}). Is it running?")


def _start(master: str, scratch: Path) -> Session:
    pyspark: Any = import_module("pyspark")
    sql: Any = import_module("pyspark.sql")
    launch: Any = import_module("pyspark.java_gateway").launch_gateway
    settings = {
        _SHUFFLE: "1",  # `shuffle_into` raises it
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(1 << 17),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.driver.maxResultSize": "0",  # signatures of many parts may well be more than the usual 1 GiB
        "spark.ui.showConsoleProgress": "false",
        **{f"spark.executorEnv.{name}": "1" for name in _ONE_THREAD},
    }
    if _LOCAL.fullmatch(master):
        # Nobody else has to reach this process, and a host name that does not resolve does no harm.
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        settings |= {"spark.ui.enabled": "false", "spark.local.dir": str(scratch)}
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    configuration = pyspark.SparkConf().setMaster(master).setAppName("posbias").setAll(list(settings.items()))
    messages, usual = scratch / "spark.log", tempfile.tempdir
    # Java on this machine runs without its second compiler, which takes a third of a short run.
    quick = _LOCAL.fullmatch(master) is not None and "JDK_JAVA_OPTIONS" not in os.environ
    # PySpark makes a directory of its own while it starts: in one of ours, it goes even if this process is killed.
    tempfile.tempdir = str(scratch)
    os.environ.update({"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"} if quick else {})
    try:
        with messages.open("wb") as output, spark_errors():
            # One JVM serves a process for its life; what it says goes to a file, not to the terminal or to cron.
            gateway = pyspark.SparkContext._gateway or launch(configuration, {"stdout": output, "stderr": output})  # noqa: SLF001
            return sql.SparkSession(pyspark.SparkContext(conf=configuration, gateway=gateway))
    except EngineError as error:
        last = [
            line for line in messages.read_text(errors="replace").splitlines() if "Exception" in line or "Error" in line
        ]
        raise EngineError(f"--master {master}: Spark does not start. {last[0] if last else error}") from error
    finally:
        tempfile.tempdir = usual
        if quick:
            del os.environ["JDK_JAVA_OPTIONS"]


def _wait_for_workers(session: Session, master: str) -> None:
    """Wait until a worker accepts a job, with a time limit; Spark itself waits for ever.

    Raises:
        EngineError: none has.
    """
    if _LOCAL.fullmatch(master):
        return
    until = time.monotonic() + _WORKERS_WITHIN
    with spark_errors():
        while session.sparkContext._jsc.sc().getExecutorMemoryStatus().size() == 1:  # noqa: SLF001 - the driver is one
            if time.monotonic() > until:
                raise EngineError(
                    f"--master {master}: no worker accepted the job within {_WORKERS_WITHIN:.0f} seconds. Is one "
                    "free, and can it reach this machine (SPARK_LOCAL_IP sets the address that it gets)?"
                )
            time.sleep(0.1)


@contextmanager
def spark_errors() -> Generator[None]:
    """Translate the failure of a Spark job into the error of its worker, or into a one-line error.

    Raises:
        EngineError: Spark could not do its part.
    """
    errors: Any = import_module("pyspark.errors")
    py4j: Any = import_module("py4j.protocol") if find_spec("py4j") else None  # a client of Spark Connect has none
    of_java: type[Exception] = py4j.Py4JError if py4j else ConnectionError
    kinds = cast("tuple[type[Exception], ...]", (errors.PySparkException, of_java, ConnectionError))
    of_network: type[Exception] = py4j.Py4JNetworkError if py4j else ConnectionError
    loggers = [logging.getLogger(name) for name in _CHATTY]  # with a trace of Java, of errors that are raised anyway
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            # PySpark wants an old pandas to be there, of which nothing is used here.
            warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
            yield
    except kinds as error:
        text = str(error)
        behind = WIRE.error_in(text)
        if isinstance(behind, FileNotFoundError):
            raise EngineError(f"a Spark worker does not find {behind}. {SHARED}") from error
        if behind is not None:
            raise behind from error
        if isinstance(error, (ConnectionError, of_network)):
            raise EngineError(
                "Spark failed: its Java process has ended; was it killed, or short of memory? Run the command again, "
                "with less --memory where the machine has none to spare."
            ) from error
        raise EngineError(f"Spark failed: {_why(text)}") from error
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _why(text: str) -> str:
    """Return the line of a stack trace that names the cause.

    Java quotes the log, so what a line looks like proves nothing. The first line, which is Spark's own, tells whether
    Python has failed; it then has done so before it saw a row.
    """
    first = _first_line(_OF_THE_GATEWAY.sub("", text))
    lost = re.search(r"Lost task [^:]*: (?:[\w.]+\.)?(\w+: .+)", first)
    why = first if lost is None else lost[1]
    if "Python worker" not in why and not why.startswith("PythonException"):
        return why
    if re.search(r"^ModuleNotFoundError: No module named 'posbias\b", text, re.MULTILINE):
        return "its workers do not find posbias. Install posbias for the Python that they run (PYSPARK_PYTHON)"
    of_python = re.findall(r"^(?:[\w.]+\.)?(\w+(?:Error|Exception): .+)$", text, re.MULTILINE)
    return of_python[-1] if of_python else why


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else ""


_FIRST_ROWS = 10_000  # of a log of which no more than the columns is of interest
_ROW_GROUP = 1 << 24  # bytes: a reader decodes it whole
_FILE_ROWS = 1 << 22
_NO_COLUMNS = ("calendarinterval", "void", "variant", "geometry", "geography", "map")


@dataclass(frozen=True)
class Reading:
    """Settings for reading tables: master, configuration and directories."""

    master: str | None  # of a session that has to be started
    place: Path  # where temporary files go, which all machines of a cluster see
    stack: ExitStack  # ends with the command
    every_column: bool  # also those that play no role
    every_row: bool  # or only the first ones

    def session(self) -> Session:
        """The active session, or a new one that runs until the command ends."""
        running = running_session()
        return self.stack.enter_context(open_session(self.master, self.folder())) if running is None else running

    def folder(self) -> Path:
        """A new directory that is removed when the command ends."""
        return self.stack.enter_context(owned_directory(self.place.absolute(), ".posbias"))


_commands: list[Reading] = []  # one while a command runs
_made: dict[tuple["Tables", tuple[str, ...]], tuple[Source, ...]] = {}  # a command may open its log several times


@contextmanager
def tables_below(place: Path, master: str | None, *, every_column: bool, every_row: bool) -> Generator[None]:
    """Set where tables are copied to inside this context; for the arguments see `Reading`."""
    with ExitStack() as stack:
        _commands.append(Reading(master, place, stack, every_column, every_row))
        try:
            yield
        finally:
            _commands.pop()
            _made.clear()


@dataclass(frozen=True)
class Tables:
    """Tables and views of a catalog that form one log, or a query over the catalog."""

    names: tuple[str, ...]
    query: str | None = None  # one SELECT
    flag: str = "--table"  # the option that gave them, for messages

    def __call__(self, request: LogRequest) -> tuple[Source, ...]:
        """Copy the rows to Parquet files that are removed when the command ends.

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
            shown = name if len(files) == 1 else f"{name}/part {number}"
            sources.append(Source.temporary(shown, "parquet", file, made_of))
        return tuple(sources)


def _digest(rows: Any) -> str:  # noqa: ANN401 - pyspark.sql.DataFrame
    """Digest rows by their number and the sum of their hashes: independent of order and files."""
    functions: Any = import_module("pyspark.sql.functions")
    row = functions.xxhash64(functions.to_json(functions.struct("*"), {"timeZone": "UTC"}))
    number, total = rows.select(functions.count("*"), functions.sum(row.cast("decimal(20,0)"))).first()
    return f"{number}-{int(total or 0) % (1 << 64):016x}"


def _columns(frame: Any, request: LogRequest, *, every: bool) -> list[str]:  # noqa: ANN401 - pyspark.sql.DataFrame
    """Return the columns that may have a role, and columns whose names alone cause a warning."""
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
    warned = {name for name in names if is_page_name(name) or is_offset_name(name) or is_count_name(name)}
    return [name for name in names if name in nested | warned or name in roles.columns()]
