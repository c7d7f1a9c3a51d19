"""A result that was written before, printed again: from its manifest and its tables alone."""

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence

import polars as pl
import polars.selectors as cs
import typer
from rich.console import RenderableType

from posbias.cli import streams
from posbias.cli.console import SafeConsole
from posbias.cli.messages import capture_content
from posbias.cli.options.config import Setting
from posbias.cli.options.option import several
from posbias.cli.report.conclusion import Item, in_order, markdown, renderable
from posbias.cli.report.table import Curve
from posbias.core.errors import LogFormatError, OutputError, UsageError, escaped, masked_values, shown
from posbias.io.fits.new_fit import FitManifest
from posbias.io.fits.saved_fit import fits_of_values
from posbias.io.log.lists import Finding
from posbias.io.results.manifest import StoredResult, json_text
from posbias.io.results.result import ResultManifest
from posbias.io.results.tables import PROPENSITIES, as_spreadsheet_columns, read_table

_TABLES = (
    PROPENSITIES,
    *(
        "comparison",
        "metrics",
        "models",
        "widths",
        "feature_importance",
        "learning_curve",
        "truth",
        "parameters_truth",
        "parameters",
    ),
)
"""The table of a result, the first of these that it holds."""

FILES = tuple(f"{name}.parquet" for name in _TABLES)
"""Files to read beside the manifest."""

_WIDTH_IN_A_FILE = 120


def print_on_stdout(
    contents: Iterable[RenderableType], as_json: object = None, *, width_in_a_file: int = _WIDTH_IN_A_FILE
) -> None:
    """Print tables and sentences on stdout as a terminal or a file has room; or JSON instead.

    Raises:
        OutputError: not all of it got through.
    """
    if capture_content(masked_values(as_json)):
        return
    if as_json is not None:
        typer.echo(json_text(masked_values(as_json)).encode(), nl=False)
    else:
        console = SafeConsole(stderr=False, width_in_a_file=width_in_a_file)
        for content in contents:
            console.print(content, crop=False)
    check_stdout()


def check_stdout() -> None:
    """Raise OutputError if not all that was printed got through."""
    lost = streams.why_lost(sys.stdout)
    if lost is not None:
        raise OutputError(f"stdout cannot be written: {lost}.")


def as_table(stored: StoredResult, *, plot: bool, details: bool) -> None:
    """Print the conclusion, the tables, what speaks for and against it, and the curve if `plot`."""
    curve = _curve(stored) if plot else None
    items = [renderable(item, details=details) for item in _items(stored, details=details)]
    print_on_stdout([*items, *([] if curve is None else [curve])])


def as_markdown(stored: StoredResult, *, details: bool) -> None:
    """Print the same as Markdown."""
    typer.echo(markdown(_items(stored, details=details), details=details).encode(), nl=False)


def as_csv(stored: StoredResult) -> None:
    """Print the table of a result as `--csv` writes it.

    Raises:
        UsageError: it has none.
    """
    table = as_spreadsheet_columns(_table(stored).lazy()).collect()
    if sys.stdout.isatty():  # which would act on what a file holds as it is
        table = table.with_columns(cs.string().map_elements(escaped, pl.String))
    typer.echo(table.write_csv().encode(), nl=False)


def as_json(stored: StoredResult) -> None:
    """Print the manifest as `--json` does."""
    typer.echo(json_text(stored.content).encode(), nl=False)


def _items(stored: StoredResult, *, details: bool) -> list[Item]:
    result = stored.typed(ResultManifest)
    if "printed" not in stored.content or not result.verdict:
        raise UsageError(
            f"{stored.folder}: was made before results kept what they print. Make it again, or look at it with "
            "--format json or csv."
        )
    return in_order(result, result.printed, result.facts, details=details)


def _table(stored: StoredResult) -> pl.DataFrame:
    table_name = next((name for name in FILES if name in stored.files), None)
    if table_name is not None:
        return read_table(stored.folder / table_name)
    if "weights_by_position" in stored.content:
        return pl.DataFrame(stored.typed(ResultManifest).weights_by_position)
    raise UsageError(f"--format csv: what `posbias {stored.command}` writes has no such table. Use --format json.")


def _curve(stored: StoredResult) -> Curve:
    name = f"{PROPENSITIES}.parquet"
    if name not in stored.files:
        raise UsageError(
            f"--plot: {stored.folder} holds no {name}. Name a directory that `posbias fit` or `run` wrote."
        )
    each = fits_of_values(stored)
    if each:
        raise UsageError(
            f"--plot: {stored.folder} holds several fits (--for-each). Name one of them, such as {each[0]}."
        )
    cells = stored.typed(FitManifest).counted.plan().cell_columns
    table = read_table(stored.folder / name)
    missing = [column for column in (*cells, "propensity", "ci_low", "ci_high") if column not in table.columns]
    if missing:
        raise LogFormatError(f"{stored.folder / name}: has no column {missing[0]!r}. Run `posbias fit` again.")
    return Curve.of(table, cells)


_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_DELETE = "\x7f"


def settings_text(
    logs: Sequence[str], values: Mapping[str, object], findings: Sequence[Finding], advice: Sequence[str]
) -> str:
    """The file.

    Args:
        logs: as named by the user.
        values: what options are set to, by flag.
        findings: what was recognised, with the options that declare it.
        advice: what would help.
    """
    named = " ".join(logs)
    lines = [
        *_comment(f"What is recognised in {named}. `posbias run LOGS -o DIR` in this directory reads logs like it."),
        *_comment("A flag on the command line goes before what stands here."),
    ]
    done: set[str] = set()
    for finding in findings:
        doubt = "" if finding.certain else " (a guess: see whether it is right)"
        flags = dict.fromkeys(word.partition("=")[0] for word in finding.options if word.startswith("--"))
        lines += ["", *_comment(f"{finding.text}{doubt}")]
        lines += [
            setting_line(flag.removeprefix("--"), values[flag]) for flag in flags if flag in values and flag not in done
        ]
        done.update(flags)
    others = {flag: value for flag, value in values.items() if flag not in done}
    lines += ["", *_comment("As given on the command line")] if others else []
    lines += [setting_line(flag.removeprefix("--"), value) for flag, value in others.items()]
    lines += ["", *_comment("What would help an estimate:")] if advice else []
    lines += [line for sentence in advice for line in _comment(sentence)]
    return "\n".join(lines) + "\n"


def _comment(sentence: str) -> list[str]:
    return [f"# {shown(part)}" for part in sentence.splitlines()]


def setting_line(name: str, value: object) -> str:
    """An option in TOML."""
    if isinstance(value, bool):
        return f"{name} = {str(value).lower()}"
    texts = [_value(str(single)) for single in several(value)]
    return f"{name} = {texts[0]}" if len(texts) == 1 else f"{name} = [{', '.join(texts)}]"


def _value(text: str) -> str:
    """A value in TOML: its basic strings are those of JSON, but for one letter."""
    return text if _WHOLE.fullmatch(text) else json.dumps(text, ensure_ascii=False).replace(_DELETE, "\\u007f")


def configuration_text(command: str, settings: Sequence[Setting]) -> str:
    """The section, which sets the same where it is put into a file; what is not set is named in comments."""
    lines = [_line(setting) for setting in settings]
    width = max(map(len, lines), default=0)
    commented = [f"{line:{width}}  # {shown(setting.origin)}" for line, setting in zip(lines, settings, strict=True)]
    return "\n".join([f"[{command}]", *commented]) + "\n"


def _line(setting: Setting) -> str:
    if setting.value is None:
        return f"# {setting.name}"
    line = shown(setting_line(setting.name, setting.value))
    return line if setting.in_files else f"# {line}"
