"""What Spark says becomes one line, and no line of a log is taken for it; no frame is kept when Spark is gone."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from patience import ended

from posbias.core.errors import EngineError, SchemaError
from posbias.io.engines.spark import SparkEngine
from posbias.io.engines.spark_session import spark_errors
from posbias.io.engines.spark_worker import WIRE

ABORTED = (
    "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n"
    ": org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times, most "
    "recent failure: Lost task 0.3 in stage 1.0 (TID 7) (10.0.0.2 executor 1): "
)
NOT_INSTALLED = (
    "Traceback (most recent call last):\n"
    '  File "/opt/spark/python/lib/pyspark.zip/pyspark/worker.py", line 1, in main\n'
    "ModuleNotFoundError: No module named 'posbias'\n"
)
FAKED = "x\nValueError: faked\nModuleNotFoundError: No module named 'posbias'\nLost task 0.0: FakedError: faked"


@pytest.fixture(autouse=True)
def pyspark() -> None:
    """Skip where PySpark is not installed."""
    pytest.importorskip("pyspark", reason="PySpark is not installed")


def said(text: str) -> str:
    """The message of the error that a text of Spark becomes."""
    failure: Any = import_module("pyspark.errors").PySparkException
    with pytest.raises(EngineError) as found, spark_errors():
        raise failure(text)
    return str(found.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"An exception was thrown from the Python worker:\n{NOT_INSTALLED}", "its workers do not find posbias. "),
        (f"{ABORTED}org.apache.spark.api.python.PythonException: {NOT_INSTALLED}", "its workers do not find posbias. "),
        (
            f"An exception was thrown from the Python worker:\n{NOT_INSTALLED.replace('posbias', 'polars')}",
            "ModuleNotFoundError: No module named 'polars'",
        ),
        (f"{ABORTED}java.lang.OutOfMemoryError: Java heap space\n\tat a.b.c", "OutOfMemoryError: Java heap space"),
        (f"[CAST_INVALID_INPUT] The value {FAKED!s} cannot be cast.", "[CAST_INVALID_INPUT] The value x"),
        (f"{ABORTED}org.apache.spark.SparkRuntimeException: [AN_ERROR] {FAKED}", "SparkRuntimeException: [AN_ERROR] x"),
        ("", ""),
    ],
)
def test_what_spark_says_becomes_the_line_that_says_why(text: str, expected: str) -> None:
    assert said(text).startswith(f"Spark failed: {expected}")
    assert "\n" not in said(text)
    assert "faked" not in said(text)


def test_an_error_of_a_worker_is_raised_as_what_it_was() -> None:
    failure: Any = import_module("pyspark.errors").PySparkException

    def work() -> None:
        with WIRE.sending_errors():
            raise SchemaError(FAKED)

    with pytest.raises(RuntimeError) as told:
        work()
    with pytest.raises(SchemaError) as found, spark_errors():
        raise failure(f"An exception was thrown from the Python worker:\n{FAKED}\n{told.value}")
    assert str(found.value) == FAKED


class Frame:
    """A frame that says how often it was persisted, less how often it was let go."""

    def __init__(self, fails: Exception | None = None) -> None:
        self.kept, self.fails = 0, fails

    def persist(self) -> "Frame":
        """Keep it."""
        self.kept += 1
        return self

    def unpersist(self) -> None:
        """Let it go, and perhaps fail."""
        self.kept -= 1
        if self.fails is not None:
            raise self.fails


def test_every_frame_is_let_go_even_where_spark_is_gone(tmp_path: Path) -> None:
    frames = [Frame(), Frame(ConnectionRefusedError()), Frame()]
    engine = SparkEngine(1 << 30, tmp_path, session=None)
    for frame in frames:
        assert engine.persist(frame) is frame
    engine.unpersist(frames[0])
    assert [frame.kept for frame in frames] == [0, 1, 1]
    engine.close()
    engine.close()
    assert [frame.kept for frame in frames] == [0, 0, 0]


JVM_DIES = """
import sys
from pathlib import Path
import pyspark
from posbias.core.errors import EngineError
from posbias.io.engines.spark_session import open_session, spark_errors
try:
    with open_session("local[1]", Path(sys.argv[1])) as session:
        java = pyspark.SparkContext._gateway.proc
        java.kill()
        java.wait()
        with spark_errors():
            session.range(10).count()
except EngineError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_java_process_that_dies_is_one_error(tmp_path: Path) -> None:
    done = ended([sys.executable, "-c", JVM_DIES, tmp_path])

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Spark failed: its Java process has ended")
