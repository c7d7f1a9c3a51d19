"""The documents say what the code does: options, columns, links, examples and what these print."""

import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import documents
import notebook
import polars as pl
import pytest
import typer.main
from arm_logs import log_of_arms
from documents import OPTIONS, blocks, code, compared, prose, rows, section, steps
from typer.core import TyperGroup, TyperOption
from typer.testing import CliRunner

from posbias.cli.main import app
from posbias.io.results.conclusions import CODES, FAULTS, STOPS

REPOSITORY = Path(os.environ.get("REPOSITORY_OF_POSBIAS", Path(__file__).parents[2])).resolve()
DOCUMENTS = documents.documents(REPOSITORY)  # of the tests alone, if there is no repository: then `repository` skips
RESULTS = "io/results/README.md"
COMPLETING = ("--install-completion", "--show-completion")
MEASURED = "tests/benchmarks/README.md"

EXPLORED = ("widths.parquet", "swaps.parquet", "documents.parquet")
"""What `explore` writes."""

NOT_RUN = {
    "posbias fit --table main.shop.impressions -o fit --engine spark": "needs a table: tests/io/engines/test_spark.py",
    "posbias run logs/*.parquet -o result --engine spark": "starts Spark: tests/io/engines/test_spark.py",
    "posbias run logs/*.parquet -o result --engine spark --master spark://host:7077": (
        "needs a cluster: tests/io/engines/test_spark_cluster.py"
    ),
    "posbias run s3://bucket/logs/2026-01-*.parquet -o s3://bucket/result": "needs a store: tests/io/object_stores",
    "posbias collect s3://bucket/logs/day=2026-01-05/ -o s3://bucket/statistics/2026-01-05": "likewise",
    "posbias fit s3://bucket/statistics/* -o s3://bucket/fit": "likewise",
    "posbias weight s3://bucket/logs/ --propensities s3://bucket/fit -o training": "likewise",
    "posbias fit counts.parquet -o fitted": "needs a warehouse: tests/io/counting/test_warehouse.py",
}
"""Examples that are not run here, with the reason."""

OF_OTHER_PROGRAMS = {
    "--without-pip": "venv",
    "--python": "pip",
    "--cov": "pytest",
    "--durations": "pytest",
    "--check": "ruff",
    "--pythonpath": "pyright",
}
"""Options in the documents that are not of posbias or a benchmark."""


def read(repository: Path, name: str) -> str:
    """A document."""
    return (repository / name).read_text(encoding="utf-8")


# --- options ---------------------------------------------------------------------------------------------------


@cache
def options_by_command() -> dict[str, list[TyperOption]]:
    """The options of each command."""
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    return {
        name: [
            param
            for param in command.params
            if isinstance(param, TyperOption) and param.name not in {"help", "help_all"}
        ]
        for name, command in group.commands.items()
    }


def names_of(option: TyperOption) -> tuple[str, ...]:
    """The names of an option, as they are typed."""
    return (*option.opts, *option.secondary_opts)


def documented_options(text: str) -> set[tuple[frozenset[str], str, str]]:
    """Names, default and a command of the options in the tables."""
    return {
        (frozenset(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", code(name)[0])), default.split(";")[0], command)
        for name, default, commands, _ in rows(text)
        for command in commands.split(", ")
        if name.startswith("`-")  # the others are settings of an option NAME=VALUE
    }


def default_in_words(option: TyperOption) -> str:
    """The default as the tables give it."""
    if option.required:
        return "required"
    return "-" if option.default is None or option.default is False else str(option.default)


def test_the_tables_of_options_hold_every_option_with_its_commands_and_its_default(repository: Path) -> None:
    real = {
        (frozenset(names_of(option)), default_in_words(option), command)
        for command, options in options_by_command().items()
        for option in options
    }

    assert documented_options(read(repository, OPTIONS)) == real


def test_the_tables_of_options_are_made_of_the_help(repository: Path) -> None:
    text = read(repository, OPTIONS)

    assert text == documents.with_option_tables(text), "run tests/support/documents.py"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_no_document_names_an_option_that_does_not_exist(repository: Path, name: str) -> None:
    known = {word for options in options_by_command().values() for option in options for word in names_of(option)}
    known |= {"--help", "--help-all", "-h", "--version", *COMPLETING, *OF_OTHER_PROGRAMS}
    if name == MEASURED:
        sources = [path.read_text(encoding="utf-8") for path in (repository / "tests" / "benchmarks").glob("*.py")]
        known |= {word for source in sources for word in re.findall(r'add_argument\("(--[a-z-]+)"', source)}
    text = read(repository, name)
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", "\n".join([*code(prose(text)), *shell(text)])))

    assert named - known == set()


def shell(text: str) -> list[str]:
    """The lines of shell commands, without those that run a benchmark."""
    lines = [line for block in blocks(text) if block.language in {"sh", "console"} for line in block.lines]
    return [line for line in lines if "tests/benchmarks/" not in line]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_commands_within_a_sentence_exist_and_take_the_options_that_are_named(repository: Path, name: str) -> None:
    for words in (text.split() for text in code(prose(read(repository, name))) if text.startswith("posbias ")):
        assert words[1] in {*options_by_command(), "--version", "--help", "-h", "COMMAND", *COMPLETING}, words
        taken = {word for option in options_by_command().get(words[1], ()) for word in names_of(option)}
        options = {word for word in words[2:] if word.startswith("-")} - {"-"}  # which is standard input, or a mark
        assert options - taken - {"--help", "--help-all", "-h"} == set(), words


@pytest.mark.parametrize("name", DOCUMENTS)
def test_settings_in_the_environment_and_in_files_are_those_of_options(repository: Path, name: str) -> None:
    every = [option for options in options_by_command().values() for option in options]
    text = read(repository, name)
    variables = set(re.findall(r"\bPOSBIAS_[A-Z_]+", text))
    files = ["\n".join(block.lines) for block in blocks(text) if block.language == "toml"]
    keys = {key for file in files for key in re.findall(r"^([\w-]+) *=", file, flags=re.MULTILINE)}

    assert variables <= {option.envvar for option in every} | {"POSBIAS_"}
    assert {f"--{key}" for key in keys} <= {word for option in every for word in names_of(option)}


# --- columns ---------------------------------------------------------------------------------------------------


def documented_columns(text: str, heading: str, *, what: str = "") -> set[str]:
    """The columns in the first cells of the tables below a heading, from the line on that begins with `what`."""
    part = section(text, heading)
    own = part[part.index(what) :].split("\n\n`", 1)[0] if what else part
    return {name for cells in rows(own) for name in code(cells[0])}


def columns_of(*tables: Path) -> set[str]:
    """The columns that any of the tables has."""
    return {name for table in tables for name in pl.read_parquet_schema(table)}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of all kinds, of small simulated logs."""
    folder = tmp_path_factory.mktemp("results")
    world = ("--sessions", "400", "--queries", "20", "--days", "2", "--segments", "2", "--swap", "1-5")
    devices = ("--device", "1", "--device", "1.5", "--randomized-share", "0.2")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        do("simulate", *world, *devices, "-o", "pbm")
        do("simulate", *world, "--model", "ubm", "-o", "ubm")
        for model in ("dbn", "tpbm", "rdctr"):
            do("simulate", "--sessions", "50", "--queries", "9", "--model", model, "-o", model)
        do("run", "pbm/log.parquet", "--context", "device", "-o", "by-device")
        do("fit", "pbm/log.parquet", "--for-each", "device", "-o", "for-each")
        do("fit", "pbm/log.parquet", "--context", "device", "--seed", "2", "--bootstrap", "20", "-o", "again")
        do("collect", "pbm/log.parquet", "--timestamp", "timestamp", "--period", "day", "-o", "counts-of-days")
        do("run", "ubm/log.parquet", "--model", "ubm", "-o", "browsing")
        pl.read_parquet("ubm/log.parquet").select("doc", price="doc").unique().write_parquet("prices.parquet")
        do("train", "ubm/log.parquet", "--propensities", "browsing", "--features", "prices.parquet", "-o", "ranker")
        do("train", "pbm/log.parquet", "--learner", "regression-em", "--features", "prices.parquet", "-o", "em")
        do("export", "ranker", "--engine", "solr", "-o", "exported")
        do("simulate", *world[:4], "--interleave", ".5:.5", "--users", "90", "-o", "drafts")
        do("interleave", "drafts/log.parquet", "--team", "team", "--user", "user", "-o", "verdict")
        do("explore", "by-device", "--top", "2", "-o", "explored")
        do("compare", "by-device", "again", "-o", "compared")
        do("compare", "counts-of-days", "--by", "day", "-o", "days-compared")
        do("fit", "pbm/log.parquet", "--method", "features", "--feature", "segment", "-o", "by-features")
        by = ("--context", "device", "--stratify", "segment", "--timestamp", "timestamp")
        pl.read_parquet("pbm/log.parquet").with_columns(user="segment", exp="device").write_parquet("columns.parquet")
        by += ("--cluster-column", "user", "--arm", "exp")
        do("collect", "columns.parquet", *by, "--randomized-where", "policy=random", "-o", "counts")
        log_of_arms("learns", 0, queries=60, pages=60).write_parquet("arms.parquet")
        do("fit", "arms.parquet", "--arm", "arm", "--timestamp", "none", "-o", "arms")
        do("collect", "ubm/log.parquet", "--model", "ubm", "-o", "ubm-counts")
        scores = pl.read_parquet("pbm/attractiveness_truth.parquet").select("query", "doc", score="attractiveness")
        scores.unique(["query", "doc"], maintain_order=True).write_parquet("scores.parquet")
        evaluated = ("pbm/log.parquet", "--propensities", "by-device", "--scores", "true=scores.parquet")
        do("evaluate", *evaluated, "-o", "evaluated")
        do("predict", *evaluated, "-o", "predicted")
        do("weight", "pbm/log.parquet", "--propensities", "power:1", "-o", "weighed-by-a-power")
        graded = pl.col("attractiveness").mul(4).round().cast(pl.Int64)
        truth = pl.read_parquet("pbm/attractiveness_truth.parquet").unique(["query", "doc"])
        truth.select("query", "doc", relevance=graded).write_csv("judged.csv")
        named = ("--models", "ubm,dbn,gctr", "--judgments", "judged.csv", "--test", "dbn/log.parquet")
        do("evaluate", "pbm/log.parquet", *named, "-o", "models")
        do("simulate", "--sessions", "4000", "--queries", "20", "--model", "dbn", "-o", "cascade")
        do("fit", "cascade/log.parquet", "-o", "contradicted")
        do("fit", "cascade/log.parquet", "--model", "dbn", "-o", "page-model")
        do("fit", "cascade/log.parquet", "--model", "rdctr", "-o", "rates")
        trust = {"position": range(1, 11), "alpha": [0.5] * 10, "beta": [0.1] * 10}
        pl.DataFrame(trust).write_csv("trust.csv")
        do("fit", "cascade/log.parquet", "--model", "tpbm", "--trust", "trust.csv", "-o", "trusted")
    return folder


def do(*words: str) -> None:
    """Run a command that is to succeed, or whose result is to be taken with care."""
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code in {0, 1}, done.output


@pytest.mark.parametrize(
    ("document", "heading", "what", "tables"),
    [
        (RESULTS, "## propensities.parquet", "", ["*/propensities.parquet"]),
        (RESULTS, "## attractiveness.parquet", "", ["*/attractiveness.parquet"]),
        (RESULTS, "## Models", "`scores.parquet`, of", ["ranker/scores.parquet"]),
        (RESULTS, "## Models", "`learning_curve.parquet`:", ["ranker/learning_curve.parquet"]),
        (RESULTS, "## Models", "`feature_importance.parquet`, the", ["ranker/feature_importance.parquet"]),
        (RESULTS, "## Models", "`learned_propensities.parquet`, a", ["em/learned_propensities.parquet"]),
        (RESULTS, "## Changes", "", ["*/comparison.parquet"]),
        (RESULTS, "## Rankings", "`metrics.parquet`,", ["*/metrics.parquet"]),
        (RESULTS, "## Rankings", "`differences.parquet`, one", ["*/differences.parquet"]),
        (RESULTS, "## Rankings", "`verdict.parquet`, of", ["verdict/verdict.parquet"]),
        (RESULTS, "## Click models", "`models.parquet`, one", ["models/models.parquet"]),
        (
            RESULTS,
            "## Click models",
            "`parameters.parquet` has",
            ["models/parameters.parquet", "page-model/parameters.parquet"],
        ),
        (RESULTS, "## Simulated logs", "`log.parquet`", ["*/log.parquet"]),
        (RESULTS, "## Simulated logs", "`truth.parquet`", ["*/truth.parquet", "*/*_truth.parquet"]),
        *((RESULTS, "## What to show next", f"`{name}`", [f"*/{name}"]) for name in EXPLORED),
        (RESULTS, "## Statistics", "", ["counts/*.parquet", "ubm-counts/*.parquet"]),
    ],
)
@pytest.mark.slow
def test_the_documents_name_every_column_of_a_table_and_no_other(
    repository: Path, results: Path, document: str, heading: str, what: str, tables: list[str]
) -> None:
    found = [path for pattern in tables for path in results.glob(pattern)]

    assert found
    assert documented_columns(read(repository, document), heading, what=what) == columns_of(*found)


@pytest.mark.parametrize("log", ["web_search.parquet", "open_bandit.parquet"])
def test_the_documents_name_every_column_of_a_sample_log(repository: Path, sample_logs: Path, log: str) -> None:
    described = section(read(repository, "sample_logs/README.md"), f"## {log}")
    table = described[described.index("| column") :].partition("\n\n")[0]

    assert {code(cells[0])[0] for cells in rows(table)} == columns_of(sample_logs / log)


def test_the_table_of_codes_holds_every_code_of_a_conclusion_and_no_other(repository: Path) -> None:
    tables = rows(section(read(repository, "cli/README.md"), "## Exit codes"))
    table = [row for row in tables if not row[0][0].isdigit()]
    may_stop, others = (code(" ".join(row[column] for row in table)) for column in (1, 2))
    assert sorted(may_stop) == sorted(STOPS)
    assert sorted(may_stop + others) == sorted(CODES)


def test_every_code_of_a_conclusion_is_given_somewhere(repository: Path) -> None:
    source = [path for room in ("core", "io", "cli") for path in (repository / room).rglob("*.py")]
    text = "".join(path.read_text(encoding="utf-8") for path in source)
    faults = {name for name, _ in FAULTS}
    assert [name for name in CODES if name not in faults and not re.search(rf'"{name}[".]', text)] == []


@pytest.mark.slow
def test_the_documents_name_every_section_of_a_manifest(repository: Path, results: Path) -> None:
    keys = {key for path in results.glob("*/manifest.json") for key in json.loads(path.read_text(encoding="utf-8"))}
    named = documented_columns(read(repository, RESULTS), "## manifest.json")

    assert keys - named == set()
    assert named - keys == set()


@pytest.mark.slow
def test_the_documents_name_the_columns_of_every_layout_in_their_order(
    repository: Path, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = rows(section(read(repository, "io/training/README.md"), "## Columns"))
    layouts = {code(cells[0])[0] for cells in rows(section(read(repository, "io/training/README.md"), "## Layouts"))}
    assert {code(cells[0])[0] for cells in said} == layouts
    for number, (layout, group, names) in enumerate((code(a)[0], b, code(c)) for a, b, c in said):
        for grouping in code(group):
            output = f"{number}-{grouping}"
            asked = ("--layout", layout, "--layout-options", f"group={grouping}", "-o", output)
            do("weight", str(results / "pbm" / "log.parquet"), "--propensities", str(results / "by-device"), *asked)
            held = list(pl.read_parquet_schema(tmp_path / output / "training" / "rows" / "part-00000.parquet"))
            assert [name for name in held if name != "device"] == names, (layout, grouping)


# --- links and paths -------------------------------------------------------------------------------------------


def anchors(text: str) -> set[str]:
    """The anchors of the headings of a document, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(text), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_libraries_that_load_py_imports_are_in_the_document_of_formats(repository: Path) -> None:
    named = {"sklearn": "scikit-learn"}
    paths = (repository / "io" / "training" / "scripts").glob("*.py.txt")
    loading = r"(?:^(?:import|from) |import_module\(\")(\w+)"
    found = {name for path in paths for name in re.findall(loading, path.read_text(encoding="utf-8"), re.MULTILINE)}
    needed = found - sys.stdlib_module_names - {"numpy", "polars"}
    text = (repository / "io" / "training" / "README.md").read_text(encoding="utf-8")
    (needs,) = re.findall(r"What `load.py` needs.*?\.\n", text, re.DOTALL)

    assert needed >= {"lightgbm", "xgboost", "sklearn"}
    assert {name for name in needed if named.get(name, name) not in needs} == set()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_link_leads_to_something(repository: Path, name: str) -> None:
    text = prose(read(repository, name))
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not link.startswith(("http://", "https://"))]
    for link in links:
        path, _, anchor = link.partition("#")
        target = (repository / name).parent / path if path else repository / name
        assert target.exists(), link
        assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), link


@pytest.mark.slow
def test_every_document_is_reached_from_the_first_page(repository: Path) -> None:
    reached, ahead = set[Path](), [repository / "README.md"]
    while ahead:
        document = ahead.pop()
        if document not in reached:
            reached.add(document)
            links = re.findall(r"\]\(([\w./-]+\.md)", prose(document.read_text(encoding="utf-8")))
            ahead += [(document.parent / link).resolve() for link in links]

    assert reached == {repository / name for name in documents.documents(repository)}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_path_of_the_repository_that_is_named_is_there(repository: Path, name: str) -> None:
    named = re.findall(r"(?<![\w./-])(?:core|io|cli|tests|sample_logs|\.ci)/[\w./-]*\w", read(repository, name))

    assert [path for path in named if not (repository / path).exists()] == []


# --- examples --------------------------------------------------------------------------------------------------

WITH_EXAMPLES = [name for name in DOCUMENTS if steps(read(REPOSITORY, name))]


@pytest.mark.parametrize("name", WITH_EXAMPLES)
@pytest.mark.slow
def test_examples_run_and_print_what_the_document_says(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean_environment: Mapping[str, str], name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.environ", dict(clean_environment))
    documents.make_workspace(tmp_path, repository)
    of_trees = False
    for step in steps(read(repository, name)):
        if " ".join(step.words) in NOT_RUN or (documents.UBI_SAMPLE in step.command and not has_ubi(tmp_path)):
            continue
        of_trees |= step.words[1:2] == ["train"]
        status, printed = documents.run(step)
        if step.printed is None:
            assert status == 0, (step.command, printed)
        else:
            now, before = (compared(lines, of_trees=of_trees) for lines in (printed, step.printed))
            assert now == before, step.command


@pytest.mark.slow
def test_the_cells_of_the_tutorial_print_what_it_holds(repository: Path) -> None:
    held = json.loads(read(repository, notebook.TUTORIAL))

    of_trees = False
    for now, before in zip(notebook.texts(notebook.run_tutorial(repository)), notebook.texts(held), strict=True):
        of_trees |= "log-likelihood per impression" in before
        assert compared(now.splitlines(), of_trees=of_trees) == compared(before.splitlines(), of_trees=of_trees)


def has_ubi(folder: Path) -> bool:
    """Whether the shared data lies beside the repository: OpenSearch's sample is not part of it."""
    return (folder / documents.UBI_SAMPLE).is_file()


def test_what_is_not_run_is_in_a_document(repository: Path) -> None:
    every = {" ".join(step.words) for name in WITH_EXAMPLES for step in steps(read(repository, name))}

    assert set(NOT_RUN) - every == set()


@pytest.fixture(scope="module")
def sample_result(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The result of the main job on the sample."""
    folder = tmp_path_factory.mktemp("sample")
    do("run", str(repository / "sample_logs" / "web_search.parquet"), "--no-compare", "-o", str(folder / "out"))
    return folder / "out"


@pytest.mark.slow
def test_the_picture_shows_the_numbers_of_the_sample(
    repository: Path, sample_result: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = repository / "sample_logs"
    tables = (sample_result / "propensities.parquet", samples / "web_search_truth.parquet")
    script, picture = samples / "draw_curve.py", tmp_path / "drawn.svg"
    monkeypatch.setattr(sys, "argv", [str(word) for word in (script, *tables, picture)])
    runpy.run_path(str(script), run_name="__main__")

    assert picture.read_text() == (samples / "propensities.svg").read_text()


@pytest.mark.slow
def test_the_row_that_is_followed_from_file_to_weight_has_the_numbers_that_are_given(
    repository: Path, sample_result: Path
) -> None:
    pair = {"query": "QALD2_tr-79", "doc": "<dbpedia:Turlock_Municipal_Airport>"}
    log = pl.read_parquet(repository / "sample_logs" / "web_search.parquet").filter(**pair)
    shown = log.select("session", "position", "click").sort("position").rows()
    theta = pl.read_parquet(sample_result / "propensities.parquet").sort("position")
    weights = pl.read_parquet(sample_result / "training" / "rows" / "part-00000.parquet").filter(**pair)["weight"]
    gamma = pl.read_parquet(sample_result / "attractiveness.parquet").filter(**pair).row(0, named=True)
    story = section(read(repository, "CONTRIBUTING.md"), "## One row from file to weight")
    at_3, at_6 = theta["propensity"][2], theta["propensity"][5]

    assert shown == [(17500, 3, 1), (6082, 6, 1), (16257, 7, 0), (29500, 9, 0)]
    assert f"1 / {at_6:.4f} = {1 / at_6:.3f}, one in cell 3 weighs {1 / at_3:.3f}" in story
    assert f"{1 / at_6:.3f} + {1 / at_3:.3f} = {weights[0]:.3f}, label 0" in story
    assert weights[1] == 0
    assert f"interval is {theta['ci_low'][5]:.3f} to {theta['ci_high'][5]:.3f}" in story
    assert f"{gamma['attractiveness']:.2f}, standard deviation {gamma['std_dev']:.2f}" in story


def test_the_first_page_has_the_two_commands_that_are_run_before_a_release(repository: Path) -> None:
    main_job, test_job = re.findall(r"^python3 -m venv.*$", read(repository, "README.md"), flags=re.MULTILINE)[:2]

    assert "posbias run sample_logs/web_search.parquet" in main_job
    assert test_job.endswith("-m pytest")


# --- benchmarks ------------------------------------------------------------------------------------------------


def benchmark_commands(text: str) -> list[tuple[str, list[str]]]:
    """The commands that run a benchmark: its script, and the words after it."""
    lines = [line for block in blocks(text) if block.language == "sh" for line in block.lines]
    found = [re.match(r"(?:\S*python3?) (tests/benchmarks/\w+\.py)(.*)", line) for line in lines]
    return [(match[1], match[2].split("#")[0].split()) for match in found if match]


def benchmarks(repository: Path) -> list[Path]:
    """The scripts that the documents of the benchmarks run."""
    return sorted({repository / script for script, _ in benchmark_commands(read(repository, MEASURED))})


ASKS_FOR_HELP = """
import contextlib, io, json, os, runpy, sys
said = {}
for script in sys.argv[1:]:
    sys.argv, sys.path[0] = [script, "--help"], os.path.dirname(script)
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        runpy.run_path(script, run_name="__main__")
    said[script] = printed.getvalue()
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def helps(repository: Path) -> dict[str, str]:
    """What each script says of itself, by its path; asked in one process, which loads what they share once."""
    scripts = {
        str(repository / script) for name in DOCUMENTS for script, _ in benchmark_commands(read(repository, name))
    }
    command = [sys.executable, "-c", ASKS_FOR_HELP, *sorted(scripts)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


@pytest.mark.parametrize("name", DOCUMENTS)
@pytest.mark.slow
def test_the_commands_of_benchmarks_exist_and_take_their_options(
    repository: Path, helps: dict[str, str], name: str
) -> None:
    for script, words in benchmark_commands(read(repository, name)):
        known = helps[str(repository / script)]
        assert known.startswith("usage: ")
        asked = [word for word in words if not word.isdigit()]
        assert [word for word in asked if not re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", known)] == []


def test_every_script_that_prints_a_benchmark_has_its_place_in_the_document(repository: Path) -> None:
    scripts = [path for path in (repository / "tests" / "benchmarks").glob("*.py") if is_program(path)]

    assert {path.name for path in scripts} == {path.name for path in benchmarks(repository)}


def is_program(path: Path) -> bool:
    """Whether a file is run by itself."""
    return '__name__ == "__main__"' in path.read_text(encoding="utf-8")
