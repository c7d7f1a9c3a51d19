"""Numbers that nobody means, on every option that takes one: a clear error or a valid result, and never a traceback."""

import os
import signal
from collections.abc import Generator
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from workshop import RunPosbias as Run

from posbias import open_result
from posbias.core.simulation.simulate import SimulationOptions, simulate

NUMBERS = (
    "nan",
    "inf",
    "-inf",
    "1e400",
    "-1e400",
    "-0",
    "0",
    "-1",
    "1e-300",
    "1e300",
    "9" * 30,
    "9" * 5000,
    "0x10",
    "",
)
SHORT_OF_ALL_TIME = 20
UNUSABLE = 2


@pytest.fixture(autouse=True)
def in_time() -> Generator[None]:
    """Interrupt what does not end."""

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(10 * SHORT_OF_ALL_TIME)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def assert_refused_or_done(done: CompletedProcess[str]) -> None:
    """One error, or a result."""
    assert "Traceback" not in done.stderr, done.args
    assert "fault of posbias" not in done.stderr, done.args
    assert done.returncode in (0, 1, 2), done.args
    assert (done.returncode == 2) == any(word in done.stderr for word in ("posbias: error", "─ Error")), (
        done.args,
        done.stderr,
    )


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a small log with days."""
    path = tmp_path_factory.mktemp("extremes") / "log.parquet"
    simulate(SimulationOptions("pbm", 100, 5, 5, 3, days=3)).log.write_parquet(path)
    return path


@pytest.mark.parametrize(
    "option",
    [
        *("--decay", "--tolerance", "--max-iterations", "--max-position", "--position-bins", "--reference", "--seed"),
        *("--attractiveness-prior", "--examination-prior", "--bootstrap", "--memory", "--position-base"),
    ],
)
@pytest.mark.slow_after(1)
def test_a_fit_to_what_cannot_be_is_refused_or_can_be_read(
    run_in_process: Run, log: Path, tmp_path: Path, option: str
) -> None:
    among = {"--decay": ("--timestamp", "timestamp"), "--seed": ("--bootstrap", "100")}.get(option, ())
    values = (
        *NUMBERS,
        "nan:1",
        "0.5:nan",
        "0.5:inf",
        "1:1",
        "0:1",
        "0.5:",
        "1,nan",
        "1,2,inf",
        "1,1",
        "1,2,3000000000",
    )
    for number, value in enumerate(values):
        done = run_in_process("fit", log, "-o", f"out{number}", "--quiet", *among, option, value)
        assert_refused_or_done(done)
        assert done.returncode == UNUSABLE or open_result(tmp_path / f"out{number}").propensities.height


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--min-propensity", "--validation", "--layout-options"])
def test_training_files_of_what_cannot_be_are_refused(run_in_process: Run, log: Path, option: str) -> None:
    among = ("--layout", "judgments") if option == "--layout-options" else ()
    for number, value in enumerate((*NUMBERS, "1e-9", "0.999999999")):
        done = run_in_process(
            "run", log, "-o", f"out{number}", "--quiet", *among, option, f"grades={value}" if among else value
        )
        assert_refused_or_done(done)


@pytest.mark.parametrize(("option", "name"), [("--sql", "a.sql"), ("--config", "a.toml")])
@pytest.mark.parametrize("kind", ["FIFO", "device", "file of 300 MB"])
def test_what_no_person_wrote_is_no_query_and_no_configuration(
    run_in_process: Run, log: Path, tmp_path: Path, option: str, name: str, kind: str
) -> None:
    file = tmp_path / name
    if kind == "FIFO":
        os.mkfifo(file)
    elif kind == "file of 300 MB":
        with file.open("wb") as whole:
            whole.truncate(300 << 20)
    else:
        file.symlink_to("/dev/zero")

    done = run_in_process("check", log, option, file, code=UNUSABLE)

    why = "It has 314,572,800 bytes, more than 1,048,576" if kind == "file of 300 MB" else "Not a regular file"
    assert f"{option} {file}: cannot be read: {why}." in done.stderr
