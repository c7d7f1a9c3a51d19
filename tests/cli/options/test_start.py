"""Help and usage errors come at once: what takes time to load is loaded by a command that runs."""

import sys
from pathlib import Path

import polars as pl
import pytest
from patience import ended
from workshop import RunPosbias as Run

from posbias.cli.options.option import READS_PLAINLY

SLOW = ("polars", "numpy", "scipy", "pyarrow", "narwhals", "rich", "posbias.cli.work")

LOADED = """
import sys
sys.argv[0] = "posbias"
from posbias.cli.__main__ import main
try:
    main()
except SystemExit as done:
    print(done.code, *sorted(sys.modules))
"""


def loaded(folder: Path, environment: dict[str, str], *words: str) -> tuple[int, set[str], str]:
    """The exit code, the modules that have been loaded by then, and what was printed on stderr."""
    command = [sys.executable, "-c", LOADED, *words]
    done = ended(command, cwd=folder, env=environment, check=True)
    code, *modules = done.stdout.splitlines()[-1].split()
    return int(code), set(modules), done.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--help",), 0),
        (("-h",), 0),
        ((), 2),
        (("fti",), 2),
        (("run", "--help"), 0),
        (("fit", "--help-all"), 0),
        (("train", "--help-all"), 0),
        (("simulate", "--help"), 0),
        (("fit", "--bogus"), 2),
        (("fit", "log.parquet"), 2),
        (("run", "log.parquet", "-o", "out", "--max-position", "many"), 2),
        (("simulate", "-o", "out", "--ranker", "nobody"), 2),
    ],
    ids=str,
)
@pytest.mark.slow_after(2)
def test_help_and_usage_errors_load_nothing_that_takes_time(
    clean_environment: dict[str, str], tmp_path: Path, words: tuple[str, ...], code: int
) -> None:
    ended, modules, _ = loaded(tmp_path, clean_environment, *words)
    assert ended == code
    assert sorted(modules.intersection(SLOW)) == []


def test_a_file_that_is_not_there_is_told_before_anything_is_loaded(
    clean_environment: dict[str, str], tmp_path: Path
) -> None:
    ended, modules, said = loaded(tmp_path, clean_environment, "fit", "nowhere.parquet", "-o", "out")
    assert ended == 2
    assert "nowhere.parquet: no such file or directory" in said
    assert not modules.intersection({"polars", "numpy", "posbias.cli.work"})


@pytest.mark.slow
def test_a_run_loads_only_the_plugins_that_it_uses(clean_environment: dict[str, str], tmp_path: Path) -> None:
    pl.DataFrame(
        {"query": [1, 1, 1, 1], "doc": [1, 2, 2, 1], "position": [1, 2, 1, 2], "click": [1, 0, 1, 1]}
    ).write_parquet(tmp_path / "log.parquet")
    ended, modules, _ = loaded(tmp_path, clean_environment, "run", "log.parquet", "-o", "out", "--force", "--quiet")
    assert ended in {0, 1}
    rooms = ("io.rankings", "core.learners", "core.simulation", "core.evaluation", "io.engines.spark")
    loaded_in_vain = [name for name in modules for room in rooms if name.startswith(f"posbias.{room}")]
    assert sorted(loaded_in_vain) == []
    others = {"core.models.cascade", "core.estimators.harvesting"}
    others |= {"io.training.trainers", "io.training.scored", "io.training.rankers"}
    assert sorted(modules.intersection(f"posbias.{name}" for name in others)) == []
    assert "scipy.optimize" not in modules  # a tenth of a second
    assert ("pydantic" in modules) != READS_PLAINLY  # and another one
    assert modules.issuperset({"posbias.core.models.position_based", "posbias.core.estimators.methods"})


COUNTED = """
import os, sys
import scipy
from posbias.io.jobs import fit as job
from posbias.core.arrays import linalg

def fit(*_):
    print([part for part in scipy.__all__ if f"scipy.{part}" in sys.modules], flush=True)
    os._exit(0)

linalg._load = lambda: None  # in the thread
job.CellFit.fit_counts = fit
sys.argv[0] = "posbias"
from posbias.cli.__main__ import main
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("model", ["pbm", "ubm"])
def test_counting_imports_no_scipy_that_a_thread_loads_meanwhile(
    clean_environment: dict[str, str], run_in_process: Run, tmp_path: Path, model: str
) -> None:
    rows = [
        (session, session % 5, place, place, (session + place) % 3 == 0) for session in range(40) for place in (1, 2)
    ]
    log = pl.DataFrame(rows, schema=["session", "query", "doc", "position", "click"], orient="row")
    log.write_parquet(tmp_path / "log.parquet")
    run_in_process("collect", "log.parquet", "--model", model, "-o", "counts", code=0)
    for read in (["log.parquet", "--model", model], ["counts"]):
        command = [sys.executable, "-c", COUNTED, "fit", *read, "-o", "fit"]
        done = ended(command, cwd=tmp_path, env=clean_environment, check=True)
        assert done.stdout.splitlines() == ["[]"]


EXTRAS = ("altair", "catboost", "lightgbm", "obstore", "pyspark", "sklearn", "vl_convert", "xgboost")


@pytest.mark.slow
def test_no_command_needs_an_extra_before_it_works_with_one(clean_environment: dict[str, str], tmp_path: Path) -> None:
    code = (
        "import importlib, pkgutil, sys, posbias.cli as cli\n"
        "for module in pkgutil.walk_packages(cli.__path__, 'posbias.cli.'):\n"
        "    if module.name != 'posbias.cli.__main__': importlib.import_module(module.name)\n"
        f"print(*[name for name in {EXTRAS} if name in sys.modules])"
    )
    done = ended([sys.executable, "-c", code], cwd=tmp_path, env=clean_environment, check=True)
    assert done.stdout.split() == []
