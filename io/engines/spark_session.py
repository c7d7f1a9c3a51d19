"""Open a Spark session or raise a clear error; read logs from tables of its catalog (`--table shop.impressions`).

PySpark, Java and the master are checked first, as Spark's own errors have fifty lines.

Spark copies the rows of tables to temporary Parquet files, once, so that all steps read the same rows of a table that
may change. Columns without a role are not copied.
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

_OLDEST_JAVA = 17  # for Spark 4
_MASTER_TIMEOUT = 5.0  # seconds until the master accepts a connection
_WORKER_TIMEOUT = 120.0  # seconds until a worker accepts a job
_LOCAL = re.compile(r"local(\[(\d+|\*)(, *\d+)?\])?")
_CLUSTER = re.compile(r"(spark|k8s|yarn)(://.+)?")
_GATEWAY_PREFIX = re.compile(r"\AAn error occurred while calling [^\n]*\n: ")
_STARTED = "spark.posbias.started"
_SHUFFLE = "spark.sql.shuffle.partitions"
_ONE_THREAD = ("POLARS_MAX_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")  # Spark runs a worker per core
_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger", "py4j")

Session = Any
"""pyspark.sql.SparkSession; PySpark is an optional dependency."""

_sessions_of_frames: list[Session] = []  # sessions of the Spark frames that are being read


@contextmanager
def open_session(master: str | None, scratch: Path) -> Generator[Session]:
    """Yield a Spark session and stop it at the end; an existing session of this process is used and left running.

    Args:
        master: master URL, e.g. `local[*]` or `spark://host:7077`; None for `local[*]`.
        scratch: directory for Spark's messages, and in local mode for its temporary files.

    Raises:
        EngineError: PySpark is missing, Java is missing or too old, Spark does not start, or no worker accepts a job.
        UsageError: the master URL is invalid, or the master does not answer.
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
        session.conf.set(_STARTED, "true")
        yield session
    finally:
        with suppress(EngineError), spark_errors():  # the JVM may have died
            session.stop()


def running_session() -> Session | None:
    """Return the active session of this process, classic or Spark Connect; None if there is none."""
    if _sessions_of_frames:
        return _sessions_of_frames[-1]
    if "pyspark.sql" not in sys.modules:
        return None
    classic: Any = import_module("pyspark.sql").SparkSession
    connect: Any = sys.modules.get("pyspark.sql.connect.session")
    running = classic.getActiveSession() or (connect and connect.SparkSession.getActiveSession())
    return running or getattr(classic, "_instantiatedSession", None)  # the session of another thread


@contextmanager
def session_of(frame: Any) -> Generator[str]:  # noqa: ANN401 - pyspark.sql.DataFrame
    """Register a Spark frame as a temporary view in its session, and yield the name of the view."""
    view = f"posbias_{secrets.token_hex(8)}"
    with spark_errors():
        frame.createOrReplaceTempView(view)
    _sessions_of_frames.append(frame.sparkSession)
    try:
        yield view
    finally:
        _sessions_of_frames.pop()
        with suppress(EngineError), spark_errors():
            frame.sparkSession.catalog.dropTempView(view)


def is_connect(session: Session) -> bool:
    """Whether a session is one of Spark Connect, and has no SparkContext."""
    return type(session).__module__.startswith("pyspark.sql.connect")


def is_own(session: Session) -> bool:
    """Whether posbias started a session, and may change its settings."""
    return session.conf.get(_STARTED, None) is not None


def about_session(session: Session, master: str | None) -> str:
    """Return one line that describes the session of a command."""
    place = "Spark Connect" if is_connect(session) else session.sparkContext.master
    if is_own(session):
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
    """Set the number of shuffle partitions to at least `n_parts`, in a session that posbias started."""
    if is_own(session) and n_parts > int(session.conf.get(_SHUFFLE)):
        session.conf.set(_SHUFFLE, str(n_parts))


def check_java() -> None:
    """Check that Spark will find Java, and that it is recent enough.

    Raises:
        EngineError: Java is missing, does not run, or is too old.
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
    """Check the form of a master URL, and that one of its hosts answers; Spark itself takes a minute to fail.

    Raises:
        UsageError: the URL is invalid, or no host answers.
    """
    if not _LOCAL.fullmatch(master) and not _CLUSTER.fullmatch(master):
        raise UsageError(
            f"--master {master}: is not a Spark master. Give local[*], local[4], spark://host:7077, yarn or k8s://host:port."
        )
    if not master.startswith("spark://"):
        return
    refusals: list[str] = []
    for address in master.removeprefix("spark://").split(","):
        place = address.rpartition("@")[2]  # messages do not repeat a password, which Spark refuses
        host, _, port = place.rpartition(":")
        if not host or not port.isdigit():
            raise UsageError(f"--master {master}: {place!r} is not host:port. Give e.g. spark://host:7077.")
        try:
            socket.create_connection((host, int(port)), timeout=_MASTER_TIMEOUT).close()
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
        "spark.driver.maxResultSize": "0",  # no limit: signatures of many parts may exceed the default, 1 GiB
        "spark.ui.showConsoleProgress": "false",
        **{f"spark.executorEnv.{name}": "1" for name in _ONE_THREAD},
    }
    if _LOCAL.fullmatch(master):
        # No other machine connects to this process; the host name need not resolve.
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        settings |= {"spark.ui.enabled": "false", "spark.local.dir": str(scratch)}
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    configuration = pyspark.SparkConf().setMaster(master).setAppName("posbias").setAll(list(settings.items()))
    messages, former = scratch / "spark.log", tempfile.tempdir
    # Locally, Java runs without its second compiler, which takes a third of a short run.
    quick = _LOCAL.fullmatch(master) is not None and "JDK_JAVA_OPTIONS" not in os.environ
    # PySpark makes a temporary directory while it starts: in `scratch`, it is removed even if this process is killed.
    tempfile.tempdir = str(scratch)
    os.environ.update({"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"} if quick else {})
    try:
        with messages.open("wb") as output, spark_errors():
            # A process has one JVM for its life. Its messages go to a file, not to the terminal or to cron.
            gateway = pyspark.SparkContext._gateway or launch(configuration, {"stdout": output, "stderr": output})  # noqa: SLF001
            return sql.SparkSession(pyspark.SparkContext(conf=configuration, gateway=gateway))
    except EngineError as error:
        last = [
            line for line in messages.read_text(errors="replace").splitlines() if "Exception" in line or "Error" in line
        ]
        raise EngineError(f"--master {master}: Spark does not start. {last[0] if last else error}") from error
    finally:
        tempfile.tempdir = former
        if quick:
            del os.environ["JDK_JAVA_OPTIONS"]


def _wait_for_workers(session: Session, master: str) -> None:
    """Wait until a worker accepts a job, with a time limit; Spark itself waits for ever.

    Raises:
        EngineError: no worker accepts a job within the limit.
    """
    if _LOCAL.fullmatch(master):
        return
    until = time.monotonic() + _WORKER_TIMEOUT
    with spark_errors():
        while session.sparkContext._jsc.sc().getExecutorMemoryStatus().size() == 1:  # noqa: SLF001 - the driver is one
            if time.monotonic() > until:
                raise EngineError(
                    f"--master {master}: no worker accepted the job within {_WORKER_TIMEOUT:.0f} seconds. Is one "
                    "free, and can it reach this machine (SPARK_LOCAL_IP sets the address that it gets)?"
                )
            time.sleep(0.1)


@contextmanager
def spark_errors() -> Generator[None]:
    """Raise the error of a worker for the failed Spark job, or an EngineError of one line.

    Raises:
        EngineError: Spark failed, or a worker does not see a file.
    """
    errors: Any = import_module("pyspark.errors")
    py4j: Any = import_module("py4j.protocol") if find_spec("py4j") else None  # not needed for Spark Connect
    java_error: type[Exception] = py4j.Py4JError if py4j else ConnectionError
    network_error: type[Exception] = py4j.Py4JNetworkError if py4j else ConnectionError
    kinds = cast("tuple[type[Exception], ...]", (errors.PySparkException, java_error, ConnectionError))
    loggers = [logging.getLogger(name) for name in _LOGGERS]  # they log Java stack traces of errors that are raised
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            # PySpark warns of versions of pandas, which is not used here.
            warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
            yield
    except kinds as error:
        text = str(error)
        worker_error = WIRE.error_in(text)
        if isinstance(worker_error, FileNotFoundError):
            raise EngineError(f"a Spark worker does not find {worker_error}. {SHARED}") from error
        if worker_error is not None:
            raise worker_error from error
        if isinstance(error, (ConnectionError, network_error)):
            raise EngineError(
                "Spark failed: its Java process has ended; was it killed, or short of memory? Run the command again, "
                "with less --memory where the machine has none to spare."
            ) from error
        raise EngineError(f"Spark failed: {_cause(text)}") from error
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _cause(text: str) -> str:
    """Return the line of a stack trace that names the cause.

    Lines of Java may quote the log. Only if the first line, which is Spark's own, says that a Python worker failed,
    Python's errors are searched in the text: such a worker failed before it read a row.
    """
    first = _first_line(_GATEWAY_PREFIX.sub("", text))
    lost_task = re.search(r"Lost task [^:]*: (?:[\w.]+\.)?(\w+: .+)", first)
    cause = first if lost_task is None else lost_task[1]
    if "Python worker" not in cause and not cause.startswith("PythonException"):
        return cause
    if re.search(r"^ModuleNotFoundError: No module named 'posbias\b", text, re.MULTILINE):
        return "its workers do not find posbias. Install posbias for the Python that they run (PYSPARK_PYTHON)"
    python_errors = re.findall(r"^(?:[\w.]+\.)?(\w+(?:Error|Exception): .+)$", text, re.MULTILINE)
    return python_errors[-1] if python_errors else cause


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else ""


_FIRST_ROWS = 10_000  # rows to copy if only the columns of a log matter
_ROW_GROUP = 1 << 24  # bytes of a row group, which a reader decodes whole
_FILE_ROWS = 1 << 22
_NO_COLUMNS = ("calendarinterval", "void", "variant", "geometry", "geography", "map")


@dataclass(frozen=True)
class Reading:
    """Settings for reading tables: master, configuration and directories."""

    master: str | None  # master of a session, if one must be started
    place: Path  # directory for temporary files, which all machines of a cluster see
    stack: ExitStack  # closed at the end of the command
    every_column: bool  # whether columns without a role are copied, too
    every_row: bool  # whether all rows are copied, or only the first ones

    def session(self) -> Session:
        """The active session, or a new one that runs until the command ends."""
        running = running_session()
        return self.stack.enter_context(open_session(self.master, self.folder())) if running is None else running

    def folder(self) -> Path:
        """A new directory that is removed when the command ends."""
        return self.stack.enter_context(owned_directory(self.place.absolute(), ".posbias"))


_commands: list[Reading] = []  # one entry while a command runs
_copies: dict[tuple["Tables", tuple[str, ...]], tuple[Source, ...]] = {}  # a command may open its log several times


@contextmanager
def tables_below(place: Path, master: str | None, *, every_column: bool, every_row: bool) -> Generator[None]:
    """Set how tables are copied inside this context; for the arguments see `Reading`."""
    with ExitStack() as stack:
        _commands.append(Reading(master, place, stack, every_column, every_row))
        try:
            yield
        finally:
            _commands.pop()
            _copies.clear()


@dataclass(frozen=True)
class Tables:
    """Tables and views of a catalog that form one log, or a query over the catalog."""

    names: tuple[str, ...]
    query: str | None = None  # one SELECT
    flag: str = "--table"  # the option, for messages

    def __call__(self, request: LogRequest) -> tuple[Source, ...]:
        """Copy the rows to Parquet files that are removed when the command ends.

        Raises:
            UsageError: there is no such table, the query is not one SELECT or fails, or columns differ only in case.
            EngineError: Spark does not start, or cannot read the table.
        """
        reading = _commands[-1]
        session, analysis_error = reading.session(), import_module("pyspark.errors").AnalysisException
        with spark_errors():
            try:
                frame = self._frame(session)
                columns = _columns(frame, request, every=reading.every_column)
            except analysis_error as error:
                raise UsageError(f"{self._title}: {str(error).strip().splitlines()[0].rstrip('.')}.") from error
        alike = [name for name in columns if sum(name.lower() == other.lower() for other in columns) > 1]
        if alike and session.conf.get("spark.sql.caseSensitive") != "true":
            raise UsageError(
                f"{self._title}: columns are called alike: {' and '.join(map(repr, alike))}. Spark does not tell them "
                "apart. Rename one of them in a view."
            )
        key = (self, tuple(columns))
        if key not in _copies:
            rows = frame.select(*(f"`{name.replace('`', '``')}`" for name in columns))
            _copies[key] = self._write(rows if reading.every_row else rows.limit(_FIRST_ROWS), reading.folder())
        return _copies[key]

    @property
    def _title(self) -> str:
        return self.flag if self.query is not None else f"{self.flag} {' '.join(self.names)}"

    def _frame(self, session: Session) -> Any:  # noqa: ANN401 - pyspark.sql.DataFrame
        if self.query is not None:  # in brackets, nothing but a query can be run
            return session.sql(f"SELECT * FROM (\n{self.query.strip().rstrip(';')}\n)")  # noqa: S608 - the user's own
        frames = [session.table(name) for name in self.names]
        return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)

    def _write(self, rows: Any, folder: Path) -> tuple[Source, ...]:  # noqa: ANN401 - pyspark.sql.DataFrame
        target = folder / "rows"
        try:
            with spark_errors():
                options = {"parquet.block.size": _ROW_GROUP, "maxRecordsPerFile": _FILE_ROWS}
                rows.write.options(**options).parquet(target.as_uri())
        except EngineError as error:
            raise EngineError(f"{self._title}: {error}") from error
        files = sorted(target.glob("*.parquet"))
        if not files:
            raise EngineError(
                f"{self._title}: Spark wrote its rows to {target} on another machine. Name a --temp-dir that this "
                "machine and the cluster see."
            )
        name = " ".join(self.names) if self.query is None else self.flag
        with spark_errors():
            made_of = ((_digest(rows.sparkSession.read.parquet(target.as_uri())), name),)
        names = [name] if len(files) == 1 else [f"{name}/part {number}" for number in range(len(files))]
        parts = zip(names, files, strict=True)
        return tuple(Source.temporary(part, "parquet", file, made_of) for part, file in parts)


def _digest(rows: Any) -> str:  # noqa: ANN401 - pyspark.sql.DataFrame
    """Digest rows by their number and the sum of their hashes: independent of order and files."""
    functions: Any = import_module("pyspark.sql.functions")
    row = functions.xxhash64(functions.to_json(functions.struct("*"), {"timeZone": "UTC"}))
    number, total = rows.select(functions.count("*"), functions.sum(row.cast("decimal(20,0)"))).first()
    return f"{number}-{int(total or 0) % (1 << 64):016x}"


def _columns(frame: Any, request: LogRequest, *, every: bool) -> list[str]:  # noqa: ANN401 - pyspark.sql.DataFrame
    """Return the columns that may have a role, and columns whose names cause a warning; with `every`, all columns."""
    types = {field.name: field.dataType.typeName() for field in frame.schema.fields}
    names = [name for name, kind in types.items() if kind not in _NO_COLUMNS]
    if every or request.raw or request.events or request.clicks:
        return names
    try:
        roles = resolve_roles(request.roles, names, where=request.where, required=())
    except RoleError:
        return names
    if not all((roles.query or roles.no_query, roles.doc, roles.position, roles.click)):
        return names  # the error message lists all columns
    nested = {name for name in names if types[name] in {"struct", "array"}}  # their fields may have a role
    warned = {name for name in names if is_page_name(name) or is_offset_name(name) or is_count_name(name)}
    return [name for name in names if name in nested | warned or name in roles.columns()]
