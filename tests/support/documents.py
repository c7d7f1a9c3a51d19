"""The documents of the repository, read as a reader does: sections, tables, links, and examples that can be run.

    python tests/support/documents.py

writes into every document what its examples print now, and into cli/options/README.md the tables of options from their
help texts and defaults. Run it after a message has changed, and look at the difference.

Examples are lines of a block ```sh that begin with `posbias`, and blocks ```console. There `$ posbias ...` is followed
by what it prints, `$ cat FILE` by what FILE holds, and `$ python FILE` by what that script prints. A block ```pycon is
a session of Python by itself.
"""

import gzip
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass
from doctest import DocTestParser
from io import StringIO
from pathlib import Path

import polars as pl
import typer
from patience import ended
from typer.core import TyperGroup, TyperOption
from typer.testing import CliRunner

from posbias.cli.main import app
from posbias.cli.options.groups import SETTINGS
from posbias.cli.options.option import fill_placeholders, settings_table
from posbias.core.learners.learning import learners_that_take
from posbias.core.training.layout import layouts_that_take

UBI_SAMPLE = "opensearch_ubi_sample.ndjson.gz"
"""Of the shared data: it may lie beside the repository, and is not a part of it."""

OPTIONS = "cli/options/README.md"
"""The document of options: what a person wrote, then `_GENERATED`, then `option_tables`."""

_GENERATED = "<!-- what follows is written by tests/support/documents.py -->\n"
_SECTIONS = {
    **dict.fromkeys(("World", "Labels", "Ranker", "Users", "Experiments"), "Simulating"),
    **dict.fromkeys(("Rankings", "Click models"), "Rankings and click models"),
    **dict.fromkeys(("Exploring", "Comparing"), "Exploring and comparing"),
    **dict.fromkeys(("Learning from features (--method features or regression-em)", "Features"), "Features"),
    "Showing": "Output",
    "Serving": "Exporting",
    "Options": "Weighting",
}
"""Sections of the help that share a table."""

_FENCE = "```"
_NOT_OURS = {".git", ".venv", "build", "node_modules", ".pytest_cache"}
_PYTHON_SESSION = "pycon"
_SMALL = 5_000  # rows, of a log and of a day


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        language: as it is named after the fence.
        line: of the first line of its text, from 0.
        lines: its text.
    """

    language: str
    line: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Step:
    """A command of an example.

    Attributes:
        command: as a reader would type it.
        printed: what the document says that it prints; None where it does not say.
        line: of the output in the document, from 0.
    """

    command: str
    printed: tuple[str, ...] | None
    line: int

    @property
    def words(self) -> list[str]:
        """The words that a shell would make of it; comments are left out."""
        return shlex.split(self.command, comments=True)


def documents(repository: Path) -> list[str]:
    """The documents, by their paths in the repository."""
    found = (path.relative_to(repository) for path in repository.rglob("*.md"))
    return sorted(path.as_posix() for path in found if not _NOT_OURS & set(path.parts))


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a document."""
    language, start, inside = "", 0, list[str]()
    fenced = False
    for number, line in enumerate(text.splitlines()):
        if fenced and line.startswith(_FENCE):
            yield Block(language, start, tuple(inside))
            fenced = False
        elif line.startswith(_FENCE):
            fenced, language, start, inside = True, line.removeprefix(_FENCE).strip(), number + 1, []
        elif fenced:
            inside.append(line)


def prose(text: str) -> str:
    """A document without its fenced blocks."""
    lines = text.splitlines()
    for block in blocks(text):
        lines[block.line : block.line + len(block.lines)] = [""] * len(block.lines)
    return "\n".join(line for line in lines if not line.startswith(_FENCE))


def section(text: str, heading: str) -> str:
    """What stands below a heading, up to the next one of its level or above."""
    level = len(heading) - len(heading.lstrip("#"))
    lines = text.splitlines()
    start = lines.index(heading) + 1
    ends = (at for at in range(start, len(lines)) if re.match(rf"#{{1,{level}}} ", lines[at]))
    return "\n".join(lines[start : next(ends, len(lines))])


def rows(text: str) -> list[list[str]]:
    """The cells of the rows of all tables, header lines left out."""
    found = [line for line in text.splitlines() if line.startswith("|")]
    rules = {at for at, line in enumerate(found) if set(line) <= set("|-: ")}
    kept = [line for at, line in enumerate(found) if not {at, at + 1} & rules]
    return [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in kept]


def code(text: str) -> list[str]:
    """What stands between backticks."""
    return re.findall(r"`([^`\n]+)`", text)


def steps(text: str) -> list[Step]:
    """The examples of a document, in their order; a script (`#!`) is none."""
    found: list[Step] = []
    for block in blocks(text):
        if block.language == "console":
            found += _console(block)
        elif block.language == "pycon":
            found.append(Step(_PYTHON_SESSION, block.lines, block.line))
        elif block.language == "sh" and not block.lines[0].startswith("#!"):
            joined = "\n".join(block.lines).replace("\\\n", " ").splitlines()
            found += [Step(line, None, 0) for line in joined if line.startswith("posbias ")]
    return found


def _console(block: Block) -> Iterator[Step]:
    starts = [at for at, line in enumerate(block.lines) if line.startswith("$ ")]
    for start, end in zip(starts, [*starts[1:], len(block.lines)], strict=True):
        yield Step(block.lines[start][2:], block.lines[start + 1 : end], block.line + start + 1)


def make_workspace(folder: Path, repository: Path) -> None:
    """Make the files that the examples read: the sample logs, and logs of other forms that are made of them."""
    samples = folder / "sample_logs"
    samples.mkdir()
    for path in (repository / "sample_logs").glob("*.parquet"):
        shutil.copyfile(path, samples / path.name)
    sample = pl.read_parquet(samples / "web_search.parquet")
    (folder / "logs").mkdir()
    for day in sample.partition_by("date", maintain_order=True):  # as sample_logs/split_days.py does, but less of it
        day.head(_SMALL).write_parquet(folder / "logs" / f"{day.item(0, 'date')}.parquet")
    small = sample.head(_SMALL)
    names = {"session": "serp", "query": "q", "doc": "sku", "position": "slot", "click": "clicked"}
    small.rename(names).write_parquet(folder / "shop.parquet")
    small.with_columns(device=pl.col("session") % 2).write_parquet(folder / "phones.parquet")
    _write_gzip(folder / "shown.csv.gz", small.drop("click"))
    _write_gzip(folder / "clicks.csv.gz", small.filter(pl.col("click") == 1).select("session", "doc"))
    shutil.copyfile(samples / "web_search_features.parquet", folder / "documents.parquet")
    small.write_parquet(folder / "heldout.parquet")
    by = small.group_by("query", "doc", "position", maintain_order=True)
    by.agg(impressions=pl.len(), clicks=pl.col("click").sum()).write_csv(folder / "sums.csv")
    (folder / "later").mkdir()
    small.write_parquet(folder / "later" / "log.parquet")
    pairs = small.select("query", "doc").unique(maintain_order=True)
    for name, seed in (("new", 0), ("old", 1)):
        score = pl.struct("query", "doc").hash(seed) % 1000 / 1000
        pairs.with_columns(score=score).write_csv(folder / f"{name}.csv")
    ubi = repository.parent / "shared" / "data" / UBI_SAMPLE
    if ubi.is_file():
        shutil.copyfile(ubi, folder / UBI_SAMPLE)


def _write_gzip(path: Path, table: pl.DataFrame) -> None:
    path.write_bytes(gzip.compress(table.write_csv().encode()))


def run(step: Step) -> tuple[int, tuple[str, ...]]:
    """Run a command in the current directory; return its exit code and the lines that it prints.

    `$ cat FILE` makes the file, of the lines that the document shows; `< FILE` at the end of a command is read.
    """
    program, *words = step.words
    if program == "cat":
        Path(words[0]).write_text("".join(f"{line}\n" for line in step.printed or ()), encoding="utf-8")
        return 0, step.printed or ()
    if program == "python":
        script = ended([sys.executable, *words], env=os.environ | {"OMP_NUM_THREADS": "1"})
        return script.returncode, tuple(script.stdout.splitlines())
    if program == _PYTHON_SESSION:
        return 0, _python_session(step.printed or ())
    assert program == "posbias", step.command
    piped = Path(words[-1]).read_bytes() if "<" in words else None
    words = words[: words.index("<")] if "<" in words else words
    done = CliRunner().invoke(app, words, input=piped, catch_exceptions=False)
    return done.exit_code, tuple(line.rstrip() for line in done.output.rstrip().splitlines())


def _python_session(lines: Sequence[str]) -> tuple[str, ...]:
    """What a terminal shows when the statements of a session are typed in again."""
    shown, names = list[str](), dict[str, object]()
    for example in DocTestParser().get_examples("\n".join(lines)):
        first, *others = example.source.splitlines()
        output = StringIO()
        with redirect_stdout(output):
            exec(compile(example.source, _PYTHON_SESSION, "single"), names)  # noqa: S102 - the repository's own document
        shown += [f">>> {first}", *(f"... {line}" for line in others), *output.getvalue().splitlines()]
    return tuple(shown)


def compared(lines: Sequence[str], *, of_trees: bool = False) -> list[str]:
    """Lines as they are compared: without empty ones, and but for what depends on a library or a processor.

    That is the size of a Parquet file, and all numbers of a model whose trees grow otherwise where sums are rounded
    otherwise (`of_trees`), with the order of its features.
    """
    kept = [line.rstrip() for line in lines if line.strip()]
    without_sizes = [re.sub(r"[\d.,]+ (B|KiB|MiB)\b", r"N \1", line) for line in kept]
    return sorted(re.sub(r"[-+]?[\d.,]*\d", "N", line) for line in kept) if of_trees else without_sizes


def option_tables() -> str:
    """The options of all commands as tables by section: name and value, default and range, commands, help."""
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    sections: dict[str, str] = {}  # of an option; what several sections of the help show stands in the first one
    tables: dict[str, dict[tuple[str, str, str], list[str]]] = {}
    for command, described in group.commands.items():
        context = typer.Context(described)
        for option in described.params:
            if not isinstance(option, TyperOption) or option.name in {"help", "help_all"}:
                continue
            name, text = option.get_help_record(context) or ("", "")
            sentence, _, default = fill_placeholders(text).removesuffix("]").partition("  [")
            section = fill_placeholders(option.rich_help_panel or "Weighting")
            section = sections.setdefault(name, _SECTIONS.get(section, section))
            named = re.sub(r"^(?!default: )(?=.*<=|.*>=)", "-; ", default or "-").removeprefix("default: ")
            row = (name, named, sentence)
            tables.setdefault(section, {}).setdefault(row, []).append(command)
            for setting, values, about in settings_table(option.name) if option.name in SETTINGS else ():
                row = (setting, values.removeprefix("default: "), about)
                takers = (layouts_that_take if option.name == "layout_options" else learners_that_take)(setting)
                tables.setdefault(f"`{option.opts[0]} NAME=VALUE`", {})[row] = takers or ["all"]
    lines = list[str]()
    for section, options in tables.items():
        of = "for" if section.startswith("`") else "commands"
        lines += ["", f"## {section}", "", f"| option | default; range | {of} | help |", "|---|---|---|---|"]
        for (name, default, sentence), commands in options.items():
            cells = [f"`{name}`", default, ", ".join(commands), sentence]
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def with_option_tables(text: str) -> str:
    """The document of options with the tables as they are now."""
    return text.partition(_GENERATED)[0] + _GENERATED + option_tables()


def _reprint(repository: Path, name: str) -> None:
    path = repository / name
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    found = steps(text)
    printed: dict[int, tuple[str, ...]] = {}
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        make_workspace(Path(folder), repository)
        for step in found:
            if step.printed is not None and (UBI_SAMPLE not in step.command or Path(UBI_SAMPLE).is_file()):
                printed[step.line] = run(step)[1]
            elif not {"--engine", "--master"} & set(step.words) and "s3://" not in step.command:
                run(step)
    for step in reversed(found):
        if step.line in printed:
            lines[step.line : step.line + len(step.printed or ())] = printed[step.line]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    root = Path(__file__).parents[2]
    for setting in [name for name in os.environ if name.startswith("POSBIAS_")]:
        del os.environ[setting]
    (root / OPTIONS).write_text(with_option_tables((root / OPTIONS).read_text(encoding="utf-8")), encoding="utf-8")
    for document in documents(root):
        if any(step.printed is not None for step in steps((root / document).read_text(encoding="utf-8"))):
            _reprint(root, document)
