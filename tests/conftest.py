"""What tests share: where the repository and the real data are, and the command line as a subprocess.

The tests also run from a copy outside the repository, against a plain install; REPOSITORY_OF_POSBIAS then says
where the repository is. Settings in the environment (POSBIAS_*) are taken away: they would answer for flags.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the command line does, before it loads numpy: twice as fast
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # likewise, before LightGBM is loaded

import last_bits

if "LAST_BITS" in os.environ:  # as on another processor; before posbias is imported
    last_bits.install(int(os.environ["LAST_BITS"]))

import gc
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Generator
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from hypothesis import settings
from patience import ended
from typer.main import get_command
from typer.testing import CliRunner
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from posbias.cli.main import app

settings.load_profile("ci")  # the same examples in every run, and nothing stored

collect_ignore = ["links"]  # the package, for editors and type checkers

COMMAND = (sys.executable, "-m", "posbias.cli")

for setting in [name for name in os.environ if name.upper().startswith("POSBIAS_")]:
    del os.environ[setting]

RunPosbias = Callable[..., CompletedProcess[str]]


LONGEST = (
    "tests/cli/test_golden.py",
    "tests/io/engines/test_packed_buckets.py",
    "tests/cli/options/test_option_effects.py",
    "tests/io/engines/test_spark.py",
    "tests/cli/processes/test_crash_safety.py",
    "tests/test_recovery.py",
    "tests/cli/commands/test_click_model_fits.py",
    "tests/cli/processes/test_daily_job.py",
)
"""Files that come first, so that at the end no worker is alone with one of them."""

# Workers, and processes that tests start, keep their compiled modules, whatever the environment says: half of a start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first, and mark the cases of a test as slow beyond the first ones, where it says so."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(places)))
    seen = Counter[str]()
    for item in items:
        mark = item.get_closest_marker("slow_after")
        if mark is None:
            continue
        name = item.nodeid.partition("[")[0]
        seen[name] += 1
        if seen[name] > mark.args[0]:
            item.add_marker("slow")


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over what is loaded for good: it takes a fifth of the time otherwise."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)


class ByFile(LoadScopeScheduling):
    """Gives the tests of a file to one worker, so that what they share is made once; and those of Spark, for one JVM.

    A scheduler of our own, because `--dist=loadgroup` of pytest-xdist 3.8 groups nothing under pytest 9.2.
    """

    def _split_scope(self, nodeid: str) -> str:
        return "spark" if "engines/test_spark" in nodeid else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile:
    """Return what deals the tests out to the workers."""
    config.option.loadscopereorder = False  # by the number of tests, which says little of how long they take
    return ByFile(config, log)


@pytest.fixture(autouse=True)
def signals_stay_as_they_were() -> Generator[None]:
    """Fail a test that changes what a signal does: what is ignored here is ignored by every process started later."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    yield
    assert [signal.getsignal(number) for number in numbers] == before


@pytest.fixture(scope="session", autouse=True)
def one_command_line() -> Generator[None]:
    """Make the parser of the command line once: to make it takes longer than to count a small log."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", cache(get_command))
        yield


@pytest.fixture(scope="session", autouse=True)
def disks_do_not_wait() -> Generator[None]:
    """Let this process not wait until a disk has what was written: no test here sees a power cut. Processes do wait."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", _at_once)
        yield


@pytest.fixture(scope="session", autouse=True)
def temporary_files_of_others_are_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Generator[None]:
    """Give this process and those it starts a place for temporary files: of those that others leave posbias warns."""
    place = str(tmp_path_factory.mktemp("temporary"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", place)
        patch.setattr(tempfile, "tempdir", place)
        yield


def _at_once(descriptor: int) -> None:
    """Look whether it could be synced, as far as that needs no disk."""
    os.fstat(descriptor)


@pytest.fixture(scope="session")
def repository() -> Path:
    """Return the repository root, or skip where the tests stand alone."""
    root = Path(os.environ.get("REPOSITORY_OF_POSBIAS", Path(__file__).parents[1])).resolve()
    if not all((root / folder).is_dir() for folder in ("cli", "core", "io")):
        pytest.skip(f"no repository at {root}: set REPOSITORY_OF_POSBIAS to its root")
    return root


@pytest.fixture(scope="session")
def sample_logs(repository: Path) -> Path:
    """Return the directory of the sample logs."""
    return repository / "sample_logs"


@pytest.fixture(scope="session")
def shared_data(repository: Path) -> Path:
    """Return the directory of real data beside the repository, or skip where there is none."""
    data = repository.parent / "shared" / "data"
    if not data.is_dir():
        pytest.skip(f"the shared data is not at {data}")
    return data


@pytest.fixture(scope="session")
def clean_environment() -> dict[str, str]:
    """Return the environment, in which no POSBIAS_* setting answers for a flag: what a test may add to."""
    return dict(os.environ)


@pytest.fixture
def run_posbias(clean_environment: dict[str, str], tmp_path: Path) -> RunPosbias:
    """Return a function that runs the command line in `cwd` (default: tmp_path) and captures text.

    An empty working directory keeps a stray posbias.toml, and the repository's own folders, out of reach.
    """

    def run(*arguments: str | Path, cwd: Path = tmp_path, **environment: str) -> CompletedProcess[str]:
        return ended([*COMMAND, *map(str, arguments)], cwd=cwd, env=clean_environment | environment)

    return run


@pytest.fixture
def run_in_process(clean_environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPosbias:
    """Return a function that runs the command line in this process: ten times as fast, for what needs no process.

    With `code`, the exit code must be that, or one of these.
    """
    for name in set(os.environ) - set(clean_environment):
        monkeypatch.delenv(name)

    def run(
        *arguments: str | Path, cwd: Path = tmp_path, code: int | tuple[int, ...] | None = None, **environment: str
    ) -> CompletedProcess[str]:
        monkeypatch.chdir(cwd)
        words = [str(argument) for argument in arguments]
        result = CliRunner().invoke(app, words, env=environment, catch_exceptions=False)
        assert code is None or result.exit_code in (code if isinstance(code, tuple) else (code,)), result.stderr
        return CompletedProcess(words, result.exit_code, result.stdout, result.stderr)

    return run
