"""Numbers that nobody means, on every option that takes one: a clear error or a valid result, and never a traceback."""

import signal
from collections.abc import Generator
from pathlib import Path
from subprocess import CompletedProcess
from typing import cast

import polars as pl
import pytest
from typer.core import TyperGroup, TyperOption
from typer.main import get_command
from workshop import RunPosbias as Run

from posbias.cli.main import app
from posbias.core.simulation.simulate import SimulationOptions, simulate
from posbias.io import open_result

COMMANDS = cast("TyperGroup", get_command(app)).commands
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

SMALL = {"--sessions": "40", "--queries": "5", "--positions": "3", "--docs-per-query": "4"}
LISTS = (*("1,nan", "1e300,1", "inf,1,1", "0,0,0", "1e308,1e308,1e308", ",", "1:2:3", "nan:1", "0:1", "1:"),)
BETAS = ("1e-300:1e300", "1e-300:1e-300", "1e-6:1e6", "1e6:1e6", "1e-6:1e-6")
SWAPS = ("1-1", "0-1", "1-99", f"1-{'9' * 5000}", "1-nan")
PARAMETERS = (*("continuation=nan", "continuation=inf", "continuation=0", "continuation=1", "continuation=1e-300"),)
OF_MANY = {"--attractiveness": BETAS, "--satisfaction": BETAS, "--swap": SWAPS, "--parameters": PARAMETERS}
FOR_A_CHANCE = {
    "--swap-share": ("--swap", "1-2"),
    "--segment-difference": ("--segments", "2"),
    "--satisfaction": ("--model", "sdbn"),
    "--parameters": ("--model", "dbn"),
}
NO_NUMBER = (
    "--config",
    "--output",
    "--force",
    "--quiet",
    "--json",
    "--help-all",
    "--print-config",
    "--log-format",
    "--labels",
    "--ranker",
    "--model",
)


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


def assert_a_log_with_its_truth(folder: Path) -> None:
    """Probabilities are probabilities, and a page shows a document and a position once."""
    log, gamma = (pl.read_parquet(folder / f"{name}.parquet") for name in ("log", "attractiveness_truth"))
    if (folder / "truth.parquet").exists():
        truth = pl.read_parquet(folder / "truth.parquet")
        assert truth["examination"].is_between(0, 1, closed="right").all()
        assert truth["propensity"].is_finite().all()
    if (folder / "parameters_truth.parquet").exists():
        assert pl.read_parquet(folder / "parameters_truth.parquet")["value"].is_between(0, 1).all()
    for name in {"attractiveness", "satisfaction"} & set(gamma.columns):
        assert gamma[name].is_between(0, 1).all()
    assert log["click"].is_between(0, 1).all()
    for name in ("doc", "position"):
        assert not log.select("session", name).is_duplicated().any()


NUMBERED = [
    option.opts[0]
    for option in COMMANDS["simulate"].params
    if isinstance(option, TyperOption) and option.opts[0] not in NO_NUMBER
]


@pytest.mark.parametrize("option", NUMBERED)
@pytest.mark.slow_after(9)
def test_a_simulation_of_what_cannot_be_is_refused(run_in_process: Run, tmp_path: Path, option: str) -> None:
    others = [word for flag, value in SMALL.items() if flag != option for word in (flag, value)]
    for number, value in enumerate((*NUMBERS, *LISTS, *OF_MANY.get(option, ()))):
        out = f"out{number}"
        done = run_in_process("simulate", *others, *FOR_A_CHANCE.get(option, ()), option, value, "-o", out, "--quiet")
        assert_refused_or_done(done)
        if done.returncode == 0:
            assert_a_log_with_its_truth(tmp_path / out)
        else:
            assert not (tmp_path / out).exists()


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
@pytest.mark.slow_after(3)
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


@pytest.mark.parametrize("option", ["--min-propensity", "--validation", "--grades"])
def test_training_files_of_what_cannot_be_are_refused(run_in_process: Run, log: Path, option: str) -> None:
    among = ("--layout", "judgments") if option == "--grades" else ()
    for number, value in enumerate((*NUMBERS, "1e-9", "0.999999999")):
        done = run_in_process("run", log, "-o", f"out{number}", "--quiet", *among, option, value)
        assert_refused_or_done(done)
