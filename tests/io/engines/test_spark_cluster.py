"""The Spark engine on a standalone master and two workers, started on this machine's loopback."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from subprocess import CompletedProcess

import polars as pl
import pytest
from patience import PATIENCE, ended
from polars.testing import assert_frame_equal

from posbias.core.errors import EngineError
from posbias.io.engines.spark_session import check_java

pytestmark = pytest.mark.slow

RunPosbias = Callable[..., CompletedProcess[str]]
ENVIRONMENT = {"SPARK_LOCAL_IP": "127.0.0.1", "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


@pytest.fixture
def cluster(tmp_path: Path) -> Generator[str]:
    """Start a master and two workers of one core each, and yield the URL; skip where Spark cannot run."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        pytest.skip("PySpark is not installed")
    try:
        check_java()
    except EngineError as error:
        pytest.skip(str(error))
    command = Path(spec.origin).parent / "bin" / "spark-class"
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    with ExitStack() as running:
        here = ("--host", "127.0.0.1", "--webui-port", "0")
        master = (command, "org.apache.spark.deploy.master.Master", *here, "--port", str(port))
        running.enter_context(process(*master, log=tmp_path / "master.log", started="New state: ALIVE"))
        for number in (1, 2):
            worker = (command, "org.apache.spark.deploy.worker.Worker", *here, "--cores", "1", "--memory", "1g")
            place = ("--work-dir", str(tmp_path / f"work-{number}"))
            log = tmp_path / f"worker-{number}.log"
            running.enter_context(process(*worker, *place, url, log=log, started="Successfully registered"))
        yield url


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


@contextmanager
def process(*command: str | Path, log: Path, started: str) -> Generator[None]:
    with log.open("wb") as said:
        running = subprocess.Popen(command, stdout=said, stderr=said, env=os.environ | ENVIRONMENT)
    try:
        until = time.monotonic() + PATIENCE
        while started not in log.read_text(errors="replace"):
            assert running.poll() is None, log.read_text(errors="replace")
            assert time.monotonic() < until, log.read_text(errors="replace")
            time.sleep(0.1)
        yield
    finally:
        running.kill()  # it has nothing to put in order
        running.wait(PATIENCE)


def test_a_cluster_gives_what_one_machine_gives_and_says_nothing_else(
    cluster: str, run_posbias: RunPosbias, log: pl.DataFrame, tmp_path: Path
) -> None:
    for share in (0, 1):
        log.filter(pl.col("session") % 2 == share).write_parquet(tmp_path / f"log-{share}.parquet")
    arguments = ("run", "log-0.parquet", "log-1.parquet", "--layout", "session", "--quiet", "-o")
    one = run_posbias(*arguments, "one")
    many = run_posbias(*arguments, "many", "--engine", "spark", "--master", cluster, **ENVIRONMENT)
    assert (one.returncode, many.returncode, many.stderr) == (0, 0, one.stderr)
    for path, keys in (
        ("propensities.parquet", ["position"]),
        ("attractiveness.parquet", ["query", "doc"]),
        ("training/rows/part-*.parquet", ["session", "position"]),
    ):
        found, expected = (pl.read_parquet(tmp_path / result / path).sort(keys) for result in ("many", "one"))
        assert_frame_equal(found, expected, abs_tol=1e-9, rel_tol=1e-9)
    assert len(list((tmp_path / "many" / "training" / "rows").iterdir())) > 1
    assert not list(tmp_path.glob(".posbias-*"))


CONNECT = """
import sys
import posbias
from polars.testing import assert_frame_equal
from pyspark.sql import SparkSession
session = SparkSession.builder.remote("local[2]").getOrCreate()
frame = session.read.parquet(sys.argv[1])
there, here = posbias.fit(frame, engine="spark"), posbias.fit(sys.argv[1])
assert_frame_equal(there.propensities, here.propensities, abs_tol=1e-9, rel_tol=1e-9)
assert "the session that was running (Spark Connect" in str(there)
print(session.range(3).count(), session.catalog.listTables())
session.stop()
"""


def test_a_frame_of_spark_connect_is_a_log_and_its_session_goes_on(log: pl.DataFrame, tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="PySpark is not installed")
    pytest.importorskip("grpc", reason="the client of Spark Connect is not installed")
    log.write_parquet(tmp_path / "log.parquet")
    command = (sys.executable, "-W", "ignore", "-c", CONNECT, str(tmp_path / "log.parquet"))
    env = os.environ | ENVIRONMENT | {"PYSPARK_PYTHON": sys.executable}
    done = ended(command, env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "3 []"
