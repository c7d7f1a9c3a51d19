"""Tab completes commands, options and their values, in the shells themselves, and is silent on any failure."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import polars as pl
import pytest
from typer.main import get_command
from workshop import RunPosbias as Run

from posbias.cli.completion import VARIABLE, candidates
from posbias.cli.completion_scripts import SCRIPTS
from posbias.cli.main import app
from posbias.cli.options import names

APPLICATION: Any = get_command(app)
COLUMNS = ("session", "query", "doc", "position", "click", "my column", "it's", "a=b", "z*")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory with logs and things that are none, as the current one."""
    frame = pl.DataFrame({name: [1] for name in (*COLUMNS, "evil\n\x1b")})
    (tmp_path / "logs").mkdir()
    frame.write_parquet(tmp_path / "logs" / "day.parquet")
    frame.write_parquet(tmp_path / "a log.parquet")
    pl.DataFrame({"who": [1], "what": [2]}).write_csv(tmp_path / "clicks.csv")
    (tmp_path / "broken.parquet").write_bytes(b"no")
    (tmp_path / "log.csv.gz").write_bytes(b"no")
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ev", ["evaluate"]),
        ("--ver", ["--version"]),
        ("fit --me", ["--memory", "--method"]),
        ("fit --method ", names.methods()),
        ("fit --method joi", ["joint"]),
        ("fit --method=joi", ["--method=joint"]),
        ("fit log --quiet --method joi", ["joint"]),
        ("run --layout ", names.layouts()),
        ("run --format ", names.formats()),
        ("train --learner lam", ["lambdarank"]),
        ("fit --model d", [name for name in names.models() if name.startswith("d")]),
        ("collect --model ", names.cell_models()),
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
        ("fit logs/day.parquet --query q", ["query"]),
        ("fit logs --query q", ["query"]),
        ("fit 'logs/*.parquet' --query q", ["query"]),
        ("fit --quiet --memory 3GiB logs/day.parquet --context=po", ["--context=position"]),
        ("fit logs/day.parquet --clicks clicks.csv --clicks-session wh", ["who", "what"]),
        *((f"fit {name} --query ", []) for name in ("broken.parquet", "log.csv.gz", "nowhere", "s3://b/x.csv", "-")),
    ],
)
def test_what_is_offered(folder: Path, line: str, expected: list[str]) -> None:
    assert folder.is_dir()
    try:
        found = candidates(APPLICATION, line.split(" "))
    except Exception:  # noqa: BLE001 - whoever asks is then told nothing
        found = []
    assert found == expected


def asked(folder: Path, environment: dict[str, str], *words: str, shell: str = "zsh") -> CompletedProcess[str]:
    """What the process answers to a shell."""
    command = [sys.executable, "-m", "posbias.cli", *words]
    variables = environment | {VARIABLE: shell}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    "words",
    [
        ("nosuch", "--x"),
        (),
        ("fit", "broken.parquet", "--query", ""),
        ("fit", "pipe", "--query", ""),
        ("fit", "'unclosed", "--query", ""),
        ("fit", "log\udcff", "--query", ""),
    ],
)
def test_a_failure_is_silent(folder: Path, clean_environment: dict[str, str], words: tuple[str, ...]) -> None:
    done = asked(folder, clean_environment, *words)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_nothing_that_acts_on_a_terminal_is_offered(folder: Path, clean_environment: dict[str, str]) -> None:
    done = asked(folder, clean_environment, "fit", "logs/day.parquet", "--query", "")
    assert done.stdout.splitlines() == list(COLUMNS)


def test_a_log_is_not_written_and_no_setting_is_read(folder: Path, clean_environment: dict[str, str]) -> None:
    (folder / "posbias.toml").write_text("no = toml = at all", encoding="utf-8")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert asked(folder, clean_environment, "fit", "logs/day.parquet", "--query", "q").stdout == "query\n"
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


@pytest.fixture
def path_with_posbias(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a search path on which posbias is."""
    place = tmp_path_factory.mktemp("bin")
    (place / "posbias").write_text(f'#!/bin/sh\nexec {sys.executable} -m posbias.cli "$@"\n', encoding="utf-8")
    (place / "posbias").chmod(0o755)
    return f"{place}:{os.environ['PATH']}"


def in_shell(shell: str, code: str, folder: Path, path: str) -> list[str]:
    """Lines that a shell prints, or skip where there is none."""
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    done = subprocess.run(
        [shell, "-c", code],
        cwd=folder,
        env={"PATH": path, "HOME": str(folder), "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("fi", ["fit"]),
        ("fit --method joi", ["joint"]),
        ("fit --method = joi", ["joint"]),
        ("fit --method =", names.methods()),
        ("fit logs/day.parquet --query ''", ["session", "query", "doc", "position", "click"]),
        ("fit a\\\\\\ log.parquet --query my", ["'my column'"]),
        ("fit nowhere --query ''", []),
        ("fit logs/day.parquet --query z", ["'z*'"]),
    ],
)
@pytest.mark.slow_after(1)
def test_bash_offers_it(folder: Path, path_with_posbias: str, words: str, expected: list[str]) -> None:
    code = f"""
        {SCRIPTS["bash"]}
        shopt -s nullglob
        COMP_WORDS=(posbias {words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        _posbias_completion; printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    found = [line for line in in_shell("bash", code, folder, path_with_posbias) if line]
    assert found[: len(expected)] == expected
    assert bool(found) is bool(expected)


@pytest.mark.slow
def test_fish_offers_it(folder: Path, path_with_posbias: str) -> None:
    (folder / "posbias.fish").write_text(SCRIPTS["fish"], encoding="utf-8")
    for line, expected in (("fit --method joi", "joint"), ("fit logs/day.parquet --query que", "query")):
        code = f"source posbias.fish; complete -C 'posbias {line}'"
        assert expected in in_shell("fish", code, folder, path_with_posbias)
    assert "conditional" in in_shell(
        "fish", "source posbias.fish; complete -C 'posbias fit --method '", folder, path_with_posbias
    )


ZSH = """
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "PS1=; autoload -Uz compinit; compinit -u; . ./_posbias; zstyle ':completion:*' list-prompt ''"
zpty -w shell $'posbias fit logs/day.parquet --query que\\t --method joi\\t --END'
for i in {1..200}; do
    zpty -r -t shell line && all+=$line
    [[ "$all" == *"joint"* ]] && break
    sleep 0.1
done
print -r -- "$all"
"""


@pytest.mark.slow
def test_zsh_offers_it(folder: Path, path_with_posbias: str) -> None:
    (folder / "_posbias").write_text(SCRIPTS["zsh"], encoding="utf-8")
    printed = "\n".join(in_shell("zsh", ZSH, folder, path_with_posbias))
    assert "--query query" in printed
    assert "--method joint" in printed


# --- installing -----------------------------------------------------------------------------------------------

PLACES = {
    "bash": ".local/share/bash-completion/completions/posbias",
    "zsh": ".zfunc/_posbias",
    "fish": ".config/fish/completions/posbias.fish",
}


@pytest.mark.parametrize("shell", PLACES)
@pytest.mark.slow_after(1)
def test_what_is_shown_is_what_is_installed_and_may_be_installed_again(
    run_posbias: Run, tmp_path: Path, shell: str
) -> None:
    home = {"HOME": str(tmp_path), "XDG_DATA_HOME": "", "XDG_CONFIG_HOME": ""}
    shown = run_posbias("--show-completion", shell, **home)
    for _ in range(2):
        done = run_posbias("--install-completion", shell, **home)
        assert (done.returncode, done.stdout) == (0, "")
        assert f"written: {tmp_path / PLACES[shell]}" in done.stderr
    assert shown.returncode == 0
    assert (tmp_path / PLACES[shell]).read_text(encoding="utf-8") == shown.stdout
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [Path(PLACES[shell]).name]


def test_a_file_of_somebody_else_stays(run_posbias: Run, tmp_path: Path) -> None:
    target = tmp_path / ".zfunc" / "_posbias"
    target.parent.mkdir()
    target.write_text("mine", encoding="utf-8")
    done = run_posbias("--install-completion", "zsh", HOME=str(tmp_path))
    assert done.returncode == 2
    assert "posbias did not write it" in done.stderr
    assert target.read_text(encoding="utf-8") == "mine"

    target.unlink()
    target.symlink_to("elsewhere")
    assert run_posbias("--install-completion", "zsh", HOME=str(tmp_path)).returncode == 2
    assert target.is_symlink()


def test_a_place_that_cannot_be_written_is_an_error(run_posbias: Run, tmp_path: Path) -> None:
    (tmp_path / ".zfunc").write_text("a file", encoding="utf-8")
    done = run_posbias("--install-completion", "zsh", HOME=str(tmp_path))
    assert done.returncode == 2
    assert "cannot be written" in done.stderr


def test_another_shell_is_refused(run_posbias: Run) -> None:
    assert run_posbias("--show-completion", "tcsh").returncode == 2


def test_the_module_can_be_run_by_its_name(run_posbias: Run) -> None:
    done = run_posbias("fit")
    assert done.returncode == 2
    assert "Usage: python -m posbias.cli fit " in done.stderr
