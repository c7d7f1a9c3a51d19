"""A server of objects, buckets on it, and a command line to which the environment says where it is."""

import itertools
import os
import shutil
import sys
from collections.abc import Generator
from importlib import import_module
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import polars as pl
import pytest
from command_results import Run, invoke
from object_store import Bucket, CommandLine, S3Server
from patience import ended

from posbias.core.simulation.simulate import SimulationOptions, simulate
from posbias.io.places.object_stores import copies_below


@pytest.fixture(scope="session")
def server_of_session() -> Generator[S3Server]:
    """Yield one server for all tests of a process."""
    server = S3Server()
    yield server
    server.stop()


@pytest.fixture
def server(
    server_of_session: S3Server,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    clean_environment: dict[str, str],
) -> Generator[S3Server]:
    """Yield the server, to which the environment points, and nothing else."""
    server_of_session.reset()
    nowhere = tmp_path_factory.getbasetemp() / "nowhere"
    settings = {
        "AWS_ACCESS_KEY_ID": "key-of-the-environment",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": server_of_session.endpoint,
        "AWS_CONFIG_FILE": str(nowhere / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(nowhere / "credentials"),
        "AWS_METADATA_ENDPOINT": "http://127.0.0.1:9",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    clean_environment.update(settings)
    with copies_below(tmp_path):
        yield server_of_session
    server_of_session.reset()


@pytest.fixture(scope="session")
def command_lines() -> Generator[list[CommandLine]]:
    """Yield the command line that commands of several tests share, once there is one."""
    found: list[CommandLine] = []
    yield found
    for command_line in found:
        command_line.end()


@pytest.fixture
def run_command(
    server: S3Server,  # noqa: ARG001 - it comes first: the environment points to it
    command_lines: list[CommandLine],
    tmp_path: Path,
) -> Run:
    """Return a function that runs the command line with the environment that the test made, and never in this process.

    Where a test changes nothing of it, that is the process of all such tests.
    """

    def environment() -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if not name.startswith(("POSBIAS_", "PYTEST_"))}

    if not command_lines:
        command_lines.append(CommandLine(environment()))

    def run(*arguments: str | Path, **more: str) -> CompletedProcess[str]:
        words = [str(argument) for argument in arguments]
        ours = environment() | more
        if ours == command_lines[0].environment:
            return command_lines[0].run(words, tmp_path)
        return ended([sys.executable, "-m", "posbias.cli", *words], cwd=tmp_path, env=ours)

    return run


_numbers = itertools.count()


@pytest.fixture
def bucket(server: S3Server) -> Bucket:
    """Return a new bucket."""
    client: Any = import_module("boto3").client("s3", endpoint_url=server.endpoint)
    name = f"bucket-{next(_numbers)}"
    client.create_bucket(Bucket=name)
    server.requests.clear()
    return Bucket(name, client)


@pytest.fixture(scope="session")
def log() -> pl.DataFrame:
    """Return 400 pages of 4 positions."""
    return simulate(SimulationOptions(n_sessions=400, n_queries=6, docs_per_query=6, n_positions=4, seed=11)).log


@pytest.fixture
def log_file(log: pl.DataFrame, tmp_path: Path) -> Path:
    """Return the log as a file."""
    log.write_parquet(tmp_path / "log.parquet")
    return tmp_path / "log.parquet"


@pytest.fixture(scope="session")
def counted(log: pl.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return statistics of the log, counted once."""
    folder = tmp_path_factory.mktemp("counted")
    log.write_parquet(folder / "log.parquet")
    invoke("collect", folder / "log.parquet", "-o", folder / "statistics")
    return folder / "statistics"


@pytest.fixture
def statistics(bucket: Bucket, counted: Path, tmp_path: Path) -> str:
    """Return the URL of statistics, which lie on disk in `statistics` as well."""
    shutil.copytree(counted, tmp_path / "statistics")
    return bucket.put_tree(counted, "statistics")
