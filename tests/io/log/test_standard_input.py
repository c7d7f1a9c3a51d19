"""`-` is standard input: read like the file that was piped into it, once, and whole or not at all."""

import gzip
import io
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import DEVNULL, PIPE, CompletedProcess, Popen

import pytest
from command_results import invoke
from patience import PATIENCE

from posbias.core.simulation.simulate import SimulationOptions, simulate

LOG = simulate(SimulationOptions("pbm", 200, 10, 4, 3)).log.select("session", "query", "doc", "position", "click")
CSV = LOG.write_csv().encode()


def written(write: Callable[[io.BytesIO], object]) -> bytes:
    """What is written into a file."""
    file = io.BytesIO()
    write(file)
    return file.getvalue()


PARQUET = written(LOG.write_parquet)
JSON = LOG.write_json().encode()


@pytest.fixture
def piped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., CompletedProcess[str]]:
    """Return a function that runs a command with bytes on its standard input."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scratch").mkdir()

    def run(content: bytes, *words: str) -> CompletedProcess[str]:
        return invoke(*words, "--temp-dir", "scratch", "-o", "out", code=None, piped=content)

    return run


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run", "fit"])
def test_the_other_commands_read_it_as_well(piped: Callable[..., CompletedProcess[str]], command: str) -> None:
    done = piped(CSV, command, "-")

    assert done.returncode == 0, done.stderr
    assert not list(Path("scratch").iterdir())


@pytest.mark.parametrize(
    ("content", "words", "said"),
    [
        (b"", "collect -", "standard input is empty"),
        (CSV[:500].rstrip(b"\n"), "collect -", "in the middle of a line"),
        (PARQUET[:500], "collect -", "truncated"),
        (gzip.compress(CSV, mtime=0)[:100], "collect -", "ends too early"),
        (JSON[:500], "collect -", "truncated"),
        (b"\x00\x01\x02\x03" * 9, "collect -", "cannot tell the format"),
        (CSV, "collect - -", "named twice"),
        (CSV, "collect log.csv --clicks -", "--clicks -"),
        (CSV, "collect - --clicks -", "--clicks -"),
        (LOG.write_csv(separator=";").encode(), "collect -", "Try: posbias collect --separator ';' -"),
        (CSV, "run - --features -", "no such file"),
    ],
)
def test_what_cannot_be_read_from_it_is_one_error(
    piped: Callable[..., CompletedProcess[str]], tmp_path: Path, content: bytes, words: str, said: str
) -> None:
    LOG.write_csv("log.csv")

    refused = piped(content, *words.split())

    assert refused.returncode == 2
    assert said in refused.stderr
    assert refused.stderr.count("error:") == 1
    assert not (tmp_path / "out").exists()
    assert not list((tmp_path / "scratch").iterdir())


def test_a_terminal_is_refused(piped: Callable[..., CompletedProcess[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posbias.io.log.text.is_terminal", bool)

    refused = piped(CSV, "collect", "-")

    assert (refused.returncode, refused.stderr.count("is a terminal")) == (2, 1)


@pytest.mark.slow
def test_a_pipe_is_read_in_pieces_and_its_copy_is_gone_after_a_signal(
    clean_environment: dict[str, str], tmp_path: Path
) -> None:
    with Popen(
        [sys.executable, "-m", "posbias.cli", "collect", "-", "-o", "out", "--temp-dir", "."],
        cwd=tmp_path, env=clean_environment, stdin=PIPE, stdout=DEVNULL, stderr=DEVNULL,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(CSV * 100)
        process.stdin.flush()
        while not list(tmp_path.glob("posbias-*/work/*/standard-input")):
            assert process.poll() is None
        process.terminate()
        process.wait(timeout=PATIENCE)

    assert process.returncode != 0
    assert list(tmp_path.iterdir()) == []
