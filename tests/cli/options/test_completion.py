"""Tab completes commands, options and their values, and is silent on any failure."""

import os
import shutil
import sys
from pathlib import Path

import polars as pl
import pytest
from patience import ended
from typer.testing import CliRunner
from workshop import RunPosbias as Run

from posbias.cli.main import app
from posbias.cli.options.option import METHODS
from posbias.core.choices import CLICK_MODELS, FORMATS, LAYOUTS

COLUMNS = ("session", "query", "doc", "position", "click")
ODD_COLUMNS = ("my column", "it's", "a=b", "z*", "$(touch evil)", "`touch evil`", "evil\n\x1b")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory with logs and things that are none, as the current one."""
    frame = pl.DataFrame({name: [1] for name in (*COLUMNS, *ODD_COLUMNS)})
    (tmp_path / "logs").mkdir()
    frame.write_parquet(tmp_path / "logs" / "day.parquet")
    pl.DataFrame({"who": [1], "what": [2]}).write_csv(tmp_path / "clicks.csv")
    (tmp_path / "broken.parquet").write_bytes(b"no")
    (tmp_path / "log.csv.gz").write_bytes(b"no")
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def offered(line: str) -> list[str]:
    """What is offered to bash at the end of a line."""
    words = f"posbias {line}"
    asked = {"_POSBIAS_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    return CliRunner().invoke(app, [], prog_name="posbias", env=asked).stdout.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ev", ["evaluate"]),
        ("--ver", ["--version"]),
        ("fit --me", ["--memory", "--method"]),
        ("fit --method ", list(METHODS)),
        ("fit --method joi", ["joint"]),
        ("fit --method=joi", ["joint"]),
        ("fit log --quiet --method joi", ["joint"]),
        ("run --layout ", list(LAYOUTS)),
        ("run --format ", list(FORMATS)),
        ("train --learner lam", ["lambdarank"]),
        ("fit --model d", [name for name in CLICK_MODELS if name.startswith("d")]),
        ("evaluate --models pbm,ub", ["pbm,ubm"]),
        ("fit --input-format ub", ["ubi"]),
        ("fit --cluster two", ["two-way"]),
        ("show --format m", ["markdown"]),
        ("score --model ", []),
        ("fit --max-position ", []),
        ("fit -o ", []),
        ("fit ", []),
        ("fit --quiet --qui", []),
        ("fit --no-comp", ["--no-compare"]),
        ("fit logs/day.parquet --query ", list(COLUMNS)),
        ("fit logs/*.parquet --query q", ["query"]),
        ("fit logs --query q", ["query"]),
        ("fit --quiet --memory 3GiB logs/day.parquet --context=po", ["position"]),
        ("fit logs/day.parquet --clicks clicks.csv --clicks-session wh", ["who", "what"]),
        *(
            (f"fit {name} --query ", [])
            for name in ("broken.parquet", "log.csv.gz", "pipe", "nowhere", "s3://b/x", "-")
        ),
    ],
)
@pytest.mark.usefixtures("folder")
def test_what_is_offered(line: str, expected: list[str]) -> None:
    assert offered(line) == expected


def test_a_log_is_not_written_and_no_setting_is_read(folder: Path) -> None:
    (folder / "posbias.toml").write_text("no = toml = at all", encoding="utf-8")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert offered("fit logs/day.parquet --query q") == ["query"]
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


@pytest.mark.slow
def test_bash_offers_it(folder: Path) -> None:
    bash, place = shutil.which("bash"), Path(sys.executable).parent
    if bash is None or not (place / "posbias").is_file():
        pytest.skip("there is no bash, or no posbias, here")
    code = r"""
        . /dev/stdin <<< "$(env _POSBIAS_COMPLETE=source_bash posbias)"
        for line in "fit --method joi" "fit logs/day.parquet --query q"; do
            COMP_WORDS=(posbias $line); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
            _posbias_completion posbias; printf '%s\n' "${COMPREPLY[@]}"
        done
    """
    variables = {"PATH": f"{place}:{os.environ['PATH']}", "HOME": str(folder), "LC_ALL": "C.UTF-8"}
    done = ended([bash, "-c", code], env=variables, check=True, cwd=folder)
    assert done.stdout.split() == ["joint", "query"]


def test_the_module_can_be_run_by_its_name(run_posbias: Run) -> None:
    done = run_posbias("fit")
    assert done.returncode == 2
    assert "Usage: python -m posbias.cli fit " in done.stderr
