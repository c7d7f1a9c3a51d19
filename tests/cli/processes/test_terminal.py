"""Nothing that comes from outside acts on a terminal: each way from data to the screen, with a hostile text on it."""

import io
import json
import re
import sys
import unicodedata
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import polars as pl
import pytest
from command_results import manifest_of
from rich.text import Text
from workshop import RunPosbias

from posbias.cli import interrupts, main, messages
from posbias.cli.report import printing
from posbias.cli.report.result import show_progress, show_stored
from posbias.core.errors import EngineError, UsageError, escape_unseen, escape_unseen_in_json, printable_lines
from posbias.core.simulation.simulate import SimulationOptions, simulate
from posbias.io.jobs import fit
from posbias.io.results import renames
from posbias.io.results.manifest import checksum_of_content

FORGED = "written: elsewhere"
"""What a line of a value would say, if it began a line of the output."""
NAME = f"a\x1b[31mb\x1b]0;t\x07c\x7f\x9b2Jd\u202ee\u2066f\u200bg\u2028h\x08i\x85j\x0ck\rl\n{FORGED}"
"""What may be the name of a file: colours, titles, C1, order of letters, invisible characters, backspaces, lines."""
VALUE = f"{NAME}\n\t\x00m"
"""What may stand in a row."""
ESCAPES = (r"\x1b[31m", r"\u001b[31m")


def _any_name(name: str, where: str) -> None:
    """Take a column, whatever it is called."""
    del name, where


@dataclass(frozen=True)
class Ways:
    """What the ways need: a folder, the command line, and means to break something."""

    folder: Path
    run: RunPosbias
    monkeypatch: pytest.MonkeyPatch

    def frame(self) -> pl.DataFrame:
        """A log that works."""
        return simulate(SimulationOptions(n_sessions=60, n_queries=4, docs_per_query=4, n_positions=3, seed=3)).log

    def log(self, name: str = "log.parquet", **columns: pl.Expr) -> Path:
        """The same on disk, with other columns."""
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        self.frame().with_columns(**columns).write_parquet(path)
        return path

    def device_log(self, name: str, *values: str) -> Path:
        """A log with a column of that name, which holds these values in turn.

        Logs with such names are refused; statistics and results of others may have them all the same.
        """
        self.monkeypatch.setattr("posbias.core.roles.check_readable", _any_name)
        values = values or ("app", "web")
        device = pl.Series(values).gather(pl.int_range(0, 180, eager=True) % len(values))
        return self.log("log.parquet", **{name: pl.lit(device)})

    def rare_device_log(self) -> Path:
        """A log with a device on one page only."""
        return self.log(device=pl.when(pl.col("session") == 0).then(pl.lit(VALUE)).otherwise(pl.lit("web")))

    def statistics(self, name: str = "statistics", **edits: Any) -> Path:  # noqa: ANN401
        """Statistics, with other entries in their manifest."""
        folder = self.folder / name
        assert not self.run("collect", self.device_log(NAME), "--context", NAME, "-o", folder).returncode
        if edits:
            manifest = manifest_of(folder)
            edited = manifest | edits
            edited["checksum"] = checksum_of_content(edited)
            (folder / "manifest.json").write_text(json.dumps(edited), encoding="utf-8")
        return folder

    def raising(self, error: Exception) -> CompletedProcess[str]:
        """A command in the middle of which a library raises."""

        def fail(*_: object, **__: object) -> None:
            raise error

        self.monkeypatch.setattr(fit, "count", fail)
        return self.run("fit", self.log(), "-o", "out")

    def configured(self, text: str) -> CompletedProcess[str]:
        """A command with this configuration."""
        (self.folder / "posbias.toml").write_text(text, encoding="utf-8")
        return self.run("fit", self.log(), "-o", "out")

    def robot_log(self) -> Path:
        """A log with a client that clicks on all that it is shown."""
        options = SimulationOptions(n_sessions=1_500, n_queries=20, docs_per_query=8, n_positions=5, seed=3)
        is_robot = pl.col("session") % 10 == 0
        client = pl.when(is_robot).then(pl.lit(VALUE)).otherwise(pl.col("session").cast(pl.String))
        clicks = pl.when(is_robot).then(1).otherwise("click").alias("click")
        path = self.folder / "robot.parquet"
        simulate(options).log.with_columns(clicks, user_id=client).write_parquet(path)
        return path

    def evaluated(self, name: str, score: pl.Expr) -> CompletedProcess[str]:
        """An evaluation of scores under a name."""
        doc = (VALUE + pl.col("doc").cast(pl.String)).alias("doc")
        path = self.folder / "scores.parquet"
        self.frame().select("query", doc).unique().with_columns(score=score).write_parquet(path)
        named = f"{name}={path}"
        return self.run(
            "evaluate", self.log(doc=doc), "--propensities", "power:1", "--scores", named, "-o", "out", "--details"
        )

    def features(self, **columns: pl.Expr) -> Path:
        """A table of features."""
        path = self.folder / "features.parquet"
        self.frame().select("query", "doc").unique().with_columns(x=pl.lit(1.0), **columns).write_parquet(path)
        return path


def _toml(text: str) -> str:
    return json.dumps(text)  # TOML's escapes are those of JSON


Way = Callable[[Ways], "CompletedProcess[str]"]

WAYS: dict[str, Way] = {
    # what the command line itself finds
    "a value that is none of several": lambda to: to.run("fit", to.log(), "-o", "out", "--engine", NAME),
    "a value that we read": lambda to: to.run("fit", to.log(), "-o", "out", "--memory", NAME),
    "a value of several": lambda to: to.run("simulate", "-o", "out", "--swap", NAME),
    "an option that there is not": lambda to: to.run("fit", to.log(), "-o", "out", f"--{NAME}"),
    "a command that there is not": lambda to: to.run(NAME),
    "an argument too many": lambda to: to.run("simulate", "-o", "out", NAME),
    "a variable of the environment": lambda to: to.run("fit", to.log(), "-o", "out", POSBIAS_ENGINE=NAME),
    "a key of the configuration": lambda to: to.configured(f"{_toml(NAME)} = 1"),
    "a key of a command's section": lambda to: to.configured(f"[fit]\n{_toml(NAME)} = 1"),
    "a value of the configuration": lambda to: to.configured(f"model = {_toml(VALUE)}"),
    "the name of the configuration": lambda to: to.run("fit", to.log(), "-o", "out", "--config", f"{NAME}.toml"),
    # names of files and directories
    "a log that is not there": lambda to: to.run("fit", NAME, "-o", "out"),
    "a log that cannot be read": lambda to: to.run("fit", _written(to.folder / f"{NAME}.parquet", "no"), "-o", "out"),
    "a log that is named twice": lambda to: to.run("fit", *[to.log(f"{NAME}.parquet")] * 2, "-o", "out"),
    "a log with faulty rows": lambda to: to.run("fit", to.log(f"{NAME}.parquet", click=pl.lit(7)), "-o", "out"),
    "the line that says what is written": lambda to: to.run("fit", to.log(), "-o", NAME),
    "a target that is there": lambda to: to.run("fit", to.log(f"{NAME}/log.parquet"), "-o", NAME),
    "a place for temporary files": lambda to: to.run("fit", to.log(), "-o", "out", "--temp-dir", NAME),
    "a fit that is none": lambda to: to.run(
        "weight", to.log(), "-o", "out", "--propensities", to.log(f"{NAME}/log.parquet").parent
    ),
    "a table of features": lambda to: to.run("run", to.log(), "-o", "out", "--features", NAME),
    "a table of clicks": lambda to: to.run("fit", to.log(), "-o", "out", "--clicks", NAME),
    "labels": lambda to: to.run("simulate", "-o", "out", "--labels", NAME),
    "the next step of a simulation": lambda to: to.run("simulate", "--sessions", "50", "-o", NAME),
    "a master of Spark": lambda to: to.run("fit", to.log(), "-o", "out", "--engine", "spark", "--master", NAME),
    # columns and rows
    "a column that there is not": lambda to: to.run("fit", to.log(), "-o", "out", "--query", NAME),
    "the columns that there are": lambda to: to.run("fit", to.device_log(NAME), "-o", "out", "--query", "nosuch"),
    "a faulty value": lambda to: to.run("fit", to.log(click=pl.lit(VALUE)), "-o", "out"),
    "an id of a faulty row": lambda to: to.run("fit", to.log(session=pl.lit(VALUE)), "-o", "out"),
    "a context's name": lambda to: to.run("fit", to.device_log(NAME), "--context", NAME, "-o", "out"),
    "a context's value": lambda to: to.run(
        "fit", to.device_log("device", VALUE, "web"), "--context", "device", "-o", "out"
    ),
    "a cell that is not identified": lambda to: to.run("fit", to.rare_device_log(), "--context", "device", "-o", "out"),
    "a feature's name": lambda to: to.run(
        "run", to.log(), "-o", "out", "--features", to.features(**{NAME: pl.lit([1])})
    ),
    "an id of a log, and one of a table": lambda to: to.run(
        "run",
        to.log(doc=VALUE + pl.col("doc").cast(pl.String)),
        "-o",
        "out",
        "--features",
        to.features(doc=pl.lit("x")),
    ),
    "a client that clicks like a robot": lambda to: to.run("check", to.robot_log()),
    "the kinds of events": lambda to: to.run(
        "fit", to.log(kind=pl.lit(VALUE)), "--impression-where", "kind=no", "--click-where", "kind=not", "-o", "out"
    ),
    "the name of a ranking": lambda to: to.evaluated(NAME, pl.lit(1.0)),
    "an id of a score that is none": lambda to: to.evaluated("scores", pl.lit(None, pl.Float64)),
    # manifests
    "--json": lambda to: to.run("fit", to.device_log(NAME), "--context", NAME, "-o", NAME, "--json", "--quiet"),
    "--info: the table": lambda to: to.run("collect", to.statistics(), "--info"),
    "--info: the path": lambda to: to.run("collect", to.statistics(NAME), "--info"),
    "--info: JSON": lambda to: to.run("collect", to.statistics(), "--info", "--json"),
    "--info: texts of a manifest": lambda to: to.run(
        "collect", to.statistics(NAME, rows={"read": 1, "used": 1, "rejected": {VALUE: 1}}), "--info"
    ),
    "a manifest of another version": lambda to: to.run("fit", to.statistics(NAME, version=VALUE), "-o", "out"),
    "a damaged manifest": lambda to: to.run("fit", to.statistics(NAME, counted={"model": VALUE}), "-o", "out"),
    "statistics that do not merge": lambda to: to.run("collect", to.statistics(), to.statistics(NAME), "-o", "out"),
    # texts of libraries
    "an error of Polars": lambda to: to.raising(pl.exceptions.ComputeError(VALUE)),
    "an error of an engine": lambda to: to.raising(EngineError(f"Spark failed: {VALUE}")),
    "a fault of our own": lambda to: to.raising(RuntimeError(VALUE)),
}


def _written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def _acts_on_a_terminal(text: str) -> list[str]:
    return [c for c in text if c != "\n" and (unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"})]


@pytest.mark.slow_after(28)
@pytest.mark.parametrize("way", WAYS)
def test_no_way_from_data_to_the_terminal_is_raw(
    tmp_path: Path, run_in_process: RunPosbias, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    done = WAYS[way](Ways(tmp_path, run_in_process, monkeypatch))

    assert _acts_on_a_terminal(done.stdout + done.stderr) == []
    assert not [line for line in (done.stdout + done.stderr).splitlines() if line.strip().startswith(FORGED)]
    without_frames = re.sub(r"[\s│]", "", done.stdout + done.stderr)
    assert any(escape in without_frames for escape in ESCAPES), done.stderr


@pytest.mark.parametrize("way", ["--json", "--info: JSON"])
def test_json_says_what_was_there_to_the_letter(
    tmp_path: Path, run_in_process: RunPosbias, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    done = WAYS[way](Ways(tmp_path, run_in_process, monkeypatch))

    said = json.loads(done.stdout)
    assert (said if isinstance(said, dict) else said[0])["counted"]["context"] == [NAME]


def test_an_error_that_no_command_catches_is_escaped_and_ends_with_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise RuntimeError(VALUE)

    monkeypatch.setattr(main, "app", fail)
    monkeypatch.setattr(interrupts, "install", lambda: None)
    monkeypatch.setattr(interrupts, "ignore", lambda: None)
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    with pytest.raises(SystemExit) as ended:
        main.main()

    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert _acts_on_a_terminal(said) == []
    assert ESCAPES[0] in said


def test_warnings_of_libraries_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    messages.escape_warnings()
    said = warnings.formatwarning(UserWarning(VALUE), UserWarning, "file.py", 1)

    assert _acts_on_a_terminal(said) == []
    assert ESCAPES[0] in said


def test_what_a_signal_leaves_unfinished_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renames, "_uploads", [f"s3://bucket/{NAME}"])

    assert renames.unfinished_upload() == f"s3://bucket/{escape_unseen(NAME)}"


def test_bars_show_notes_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "400")
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    bars = printing.SafeConsole(stderr=True)
    assert bars.is_terminal
    with show_progress(bars, quiet=False) as progress, progress.stage(f"[bold]{NAME}") as stage:
        stage.say(VALUE)

    assert escape_unseen(VALUE) in stream.getvalue()
    assert ESCAPES[0] in stream.getvalue()
    assert not any(raw in stream.getvalue() for raw in ("\x1b[31m", "\x1b]0;", "\x9b", "\u202e", "\x08"))


def test_what_libraries_write_while_bars_are_shown_is_not_acted_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    with show_progress(printing.SafeConsole(stderr=True), quiet=False), warnings.catch_warnings():
        assert sys.stderr is stream


@pytest.mark.parametrize("text", ["[bold red]shop[/]", ":smile:", "[link=http://127.0.0.1]shop[/link]", "\\[x]"])
@pytest.mark.slow_after(2)
def test_nothing_in_data_is_markup_emoji_or_a_link(
    tmp_path: Path, run_in_process: RunPosbias, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    ways = Ways(tmp_path, run_in_process, monkeypatch)
    name = text.replace("/", "")
    in_table = run_in_process("fit", ways.device_log("device", text, "web"), "--context", "device", "-o", name)
    in_error = run_in_process("fit", ways.log(), "-o", "out", "--memory", text)
    in_usage = run_in_process("fit", ways.log(), "-o", "out", "--engine", text)

    plain = [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", done.stderr) for done in (in_table, in_error, in_usage)]
    assert all(text in said for said in plain)
    assert f"written: {name}" in plain[0]
    assert "\x1b]8" not in "".join(plain)


class _Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def test_a_table_that_a_terminal_gets_does_not_act_on_it_and_one_that_a_file_gets_is_as_it_is(
    tmp_path: Path, run_in_process: RunPosbias, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = Ways(tmp_path, run_in_process, monkeypatch)
    run_in_process("fit", ways.device_log("device", VALUE, "web"), "--context", "device", "-o", "out")
    in_a_file = run_in_process("show", "out", "--format", "csv", code=0)
    monkeypatch.setattr(sys, "stdout", terminal := _Terminal(buffer := io.BytesIO()))
    show_stored(tmp_path / "out", "csv", plot=False, details=False)
    terminal.flush()

    assert VALUE in in_a_file.stdout
    assert escape_unseen(VALUE) in buffer.getvalue().decode()
    assert _acts_on_a_terminal(buffer.getvalue().decode()) == []


def test_what_gets_around_is_escaped_by_the_console(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    printing.print_content(printing.SafeConsole(stderr=True), Text(VALUE))

    assert _acts_on_a_terminal(stream.getvalue()) == []
    assert ESCAPES[0] in stream.getvalue()


def test_only_the_console_makes_texts_of_rich(repository: Path) -> None:
    makers = [
        path.name for path in (repository / "cli").rglob("*.py") if re.search(r"import .*\bText\b", path.read_text())
    ]
    assert sorted(makers) == ["printing.py", "result.py"]


@pytest.mark.slow
def test_every_control_format_and_separating_character_is_escaped() -> None:
    acting = {
        c
        for c in map(chr, range(sys.maxunicode + 1))
        if unicodedata.category(c) in {"Cc", "Cs", "Zl", "Zp"}
        or unicodedata.bidirectional(c) in {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    }
    invisible = {*map(chr, range(0x200B, 0x2010)), "\u2060", "\ufeff", "\xad", "\u3164", "\U000e0041"}

    assert [c for c in acting | invisible if escape_unseen(c) == c] == []
    assert all(escape_unseen(c) == repr(c)[1:-1] for c in acting)
    assert escape_unseen(letters := "Schuhe größer 42 €, ботинки, 鞋, ❤️, 'a' \\ \"b\"") == letters


def test_json_with_escapes_says_the_same() -> None:
    every = "".join(map(chr, range(0xD800))) + "\ud800\ufeff\U000e0001ё❤️"
    text = escape_unseen_in_json(json.dumps({every: [every]}, ensure_ascii=False, indent=2))

    assert json.loads(text) == {every: [every]}
    assert escape_unseen(text, keep="\n") == text
    assert "ё❤️" in text


def test_a_line_break_in_data_does_not_begin_a_message() -> None:
    lines = ("no such file: a\nwritten: b", "an own line", "  another\none")

    assert printable_lines(lines) == "no such file: a\\nwritten: b\n  an own line\n  another\\none"
    assert UsageError(*lines).lines == lines


def test_a_line_break_in_a_value_does_not_break_a_table(
    tmp_path: Path, run_in_process: RunPosbias, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Ways(tmp_path, run_in_process, monkeypatch).device_log("device", "a\nwritten: elsewhere", "web")
    done = run_in_process("fit", log, "--context", "device", "-o", "out")

    assert r"a\nwritten: elsewhere" in done.stderr
    assert [said for said in done.stderr.splitlines() if said.startswith("written")] == ["written: out"]
