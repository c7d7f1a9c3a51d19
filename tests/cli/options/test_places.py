"""A place is on disk or in an object store; a URL of anything else is refused, whatever names it, and masked."""

from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from typer.main import get_command
from workshop import RunPosbias as Run

from posbias.cli.main import app
from posbias.core.simulation.simulate import SimulationOptions, simulate

PASSWORD = "pAssw0rd"  # noqa: S105 - nobody's
URLS = (
    f"hdfs://user:{PASSWORD}@namenode/x",
    f"HDFS:/user:{PASSWORD}@namenode/x",
    f"hdfs:user:{PASSWORD}@namenode/x",
    f"webhdfs://{PASSWORD}@namenode/x",
    f"http://user:{PASSWORD}@host:80/x",
    f"https://host/x?sv=2026&X-Amz-Signature={PASSWORD}",
    f"https://host/x?{PASSWORD}",
    f"ftp://host/x#{PASSWORD}",
    f"file:///data/x#token={PASSWORD}",
    "file:x",
    "dbfs:/x",
    "C:/x",
    f" wasbs://user:{PASSWORD}@host/x",
    f"out/hdfs://user:{PASSWORD}@namenode/x",
    f"s3://bucket/x#token={PASSWORD}",
    f"S3://bucket/x?X-Amz-Signature={PASSWORD}",
    f"s3:///KEY:{PASSWORD}@bucket/x",
    f"s3:KEY:{PASSWORD}@bucket/x",
    "gs://",
)
PLACES = {
    "A B",
    "DIR",
    "FILE",
    "FILE...",
    "FIT",
    "LOG",
    "LOGS...",
    "LOGS|STATISTICS...",
    "RESULT",
    "RESULT...",
    "RUN",
    "STORE",
}
APPLICATION: Any = get_command(app)
OPTIONS = {
    f"{command} {parameter.opts[0]}": (command, parameter)
    for command, each in APPLICATION.commands.items()
    for parameter in each.params
    if parameter.metavar in PLACES
}


def check_refused(done: CompletedProcess[str], folder: Path) -> None:
    """Exit code 2, one error that shows no password, and nothing on disk."""
    assert done.returncode == 2, done.stdout
    assert PASSWORD not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert len([line for line in done.stderr.splitlines() if "error" in line]) == 1, done.stderr
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(("number", "option"), list(enumerate(OPTIONS)), ids=OPTIONS)
def test_whatever_takes_a_place_refuses_urls_of_anything_but_an_object_store(
    run_in_process: Run, tmp_path: Path, number: int, option: str
) -> None:
    command, parameter = OPTIONS[option]
    for url in URLS[number % 5 :: 5]:  # a fifth of them with each option
        named = [parameter.opts[0], url] if parameter.opts[0].startswith("-") else [url]
        check_refused(run_in_process(command, *named), tmp_path)


SECRET = f"hdfs://user:{PASSWORD}@namenode/" + "x" * 60
SETTINGS: dict[str, tuple[tuple[str, ...], dict[str, str], str]] = {
    "environment": ((), {"POSBIAS_OUTPUT": SECRET}, ""),
    "file": ((), {}, f'output = "{SECRET}"'),
    "file, zero byte": ((), {}, 'output = "a\\u0000"'),
    "file, table": ((), {}, f'output = {{place = "{SECRET}"}}'),
    "file, cut off": ((), {}, f'output = ["{"x" * 36}", "{SECRET}"]'),
    "file, unknown": ((), {}, f'"{SECRET}" = 1'),
    "looked at": (("-o", SECRET, "--print-config"), {}, ""),
    "rehearsed": (("-o", SECRET, "--dry-run"), {}, ""),
    "as JSON": (("-o", SECRET, "--json"), {}, ""),
    "lines of JSON": (("-o", SECRET, "--log-format", "json"), {}, ""),
    "ranking": (("--scores", f"new={SECRET}"), {}, ""),
    "unknown option": ((f"--outptu={SECRET}",), {}, ""),
    "one word too many": (("--quiet", "-o", "out", "--", SECRET), {}, ""),
}


@pytest.mark.parametrize(("words", "environment", "configuration"), SETTINGS.values(), ids=SETTINGS)
def test_its_password_is_not_printed_wherever_it_is_set(
    run_in_process: Run, tmp_path: Path, words: tuple[str, ...], environment: dict[str, str], configuration: str
) -> None:
    (tmp_path / "posbias.toml").write_text(configuration, encoding="utf-8")
    here = tmp_path / "here"
    here.mkdir()
    command = "evaluate" if "--scores" in words else "fit"
    done = run_in_process(command, "log.parquet", *words, "--config", "../posbias.toml", cwd=here, **environment)

    assert done.returncode == 2, done.stdout
    assert PASSWORD[:3] not in done.stdout + done.stderr
    assert list(here.iterdir()) == []


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("name", ["a:b.csv", "ts=12:00/log:1.csv", "12:/log.csv", "./s3:/log.csv", "./hdfs:/log:*.csv"])
def test_a_colon_in_a_name_makes_no_url_of_it(run_in_process: Run, tmp_path: Path, name: str) -> None:
    log = tmp_path / name.replace("*", "1")
    log.parent.mkdir(parents=True, exist_ok=True)
    simulate(SimulationOptions(n_sessions=300, n_queries=20, docs_per_query=5, n_positions=4)).log.write_csv(log)
    there = run_in_process("fit", name, "-o", "a:b/c", "--quiet")
    again = run_in_process("weight", name, "--propensities", "a:b/c", "-o", "./s3:/out", "--quiet")

    assert (there.returncode, again.returncode) == (0, 0), there.stderr + again.stderr
    assert (tmp_path / "a:b" / "c" / "manifest.json").is_file()
    assert (tmp_path / "s3:" / "out" / "manifest.json").is_file()
