"""Every option of every command has an effect, or is refused on the command line and left aside elsewhere."""

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from hashlib import sha256
from pathlib import Path
from typing import cast

import polars as pl
import pytest
from command_results import manifest_of
from typer.core import TyperGroup, TyperOption
from typer.main import get_command
from workshop import RunPosbias as Run

from posbias.cli.main import app
from posbias.cli.options.config import NOT_SETTABLE
from posbias.cli.options.groups import (
    SETTINGS,
    ColumnOptions,
    CountingOptions,
    EstimationOptions,
    FeatureOptions,
    LearningOptions,
    TrainingOptions,
)
from posbias.core.choices import METHODS_OF_ROWS, settings_of
from posbias.core.choices import LearningOptions as LearnerOptions
from posbias.core.simulation.simulate import SimulationOptions, simulate
from posbias.core.training.layout import layout_names
from posbias.io.options import InterleavingOptions

COMMANDS = cast("TyperGroup", get_command(app)).commands
UNUSABLE = 2
REFUSED = "has no effect here"

HOW_NOT_WHAT = {
    "config": "names the file of options",
    "output": "names the result",
    "force": "whether an old result may go",
    "quiet": "what is said on stderr",
    "details": "what is said on stderr",
    "json": "what is said on stdout",
    "memory": "how much of it is used",
    "threads": "how many of them work",
    "temp_dir": "where temporary files lie",
    "engine": "which machine works; the result is the same",
    "master": "which cluster works",
    "table": "where the rows of a log lie",
    "log_format": "in which form messages are",
    "check_pages": "how many pages of a large log are looked at; only what is wrong there shows",
}
"""Options that change how the work is done, and not the result, each with the reason."""


@dataclass(frozen=True)
class Trial:
    """A value that differs from the default, and what else must be said for it to have a chance.

    Attributes:
        words: the option with its value.
        among: what stands on the command line with and without it.
        log: the log for which it matters.
    """

    words: str
    among: str = ""
    log: str = "log.parquet"


TRIALS: dict[str, dict[str, Trial]] = {
    command: {name: Trial(**trial) for name, trial in trials.items()}
    for command, trials in json.loads(Path(__file__).with_name("trials.json").read_text(encoding="utf-8")).items()
}
"""A trial of each option, by command; `log` are those of the commands that read logs or results."""
OTHER_GROUP = Trial("--layout-options group=query")  # of the layout whose rows are grouped by session


def write_rankings(folder: Path, pairs: pl.DataFrame) -> None:
    """Write rankings of these documents, judgments, and a query over the log."""
    grade = pl.struct("query", "doc").hash() % 5
    pairs.with_columns(score=grade).write_csv(folder / "other.csv")
    pairs.with_columns(relevance=grade).write_csv(folder / "judged.csv")
    (folder / "first.sql").write_text("SELECT * FROM log LIMIT 700", encoding="utf-8")
    pl.DataFrame({"position": range(1, 10), "alpha": [0.5] * 9, "beta": [0.1] * 9}).write_csv(folder / "trust.csv")
    for name, score in (("scored", pl.struct("doc", "query").hash(3) % 1000), ("list", pl.col("doc"))):
        lines = pairs.select(pl.format("{} Q0 {} 0 {} " + name, "query", "doc", score)).to_series()
        (folder / f"{name}.run").write_text("\n".join(lines), encoding="utf-8")


def write_positions(folder: Path, log: pl.DataFrame) -> None:
    """Write the log with shifted positions, with some that begin anew on each page of two, and with ranks of clicks."""
    log.with_columns(pl.col("position") + 1).write_parquet(folder / "shifted.parquet")
    place = pl.col("position") - 1
    log.with_columns(position=place % 2 + 1, blatt=place // 2 + 1).write_parquet(folder / "paged.parquet")
    log.with_columns(click=pl.when(pl.col("click") == 1).then("position")).write_parquet(folder / "ranked.parquet")


@pytest.fixture(scope="module")
def log_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a log in which every option of a log finds something."""
    folder = tmp_path_factory.mktemp("effects")
    drawn = SimulationOptions(
        *("pbm", 600, 40, 5, 4), segments=2, contexts=(1.0, 0.3), days=3, randomized_share=0.3, depth=0.9
    )
    log = simulate(drawn).log.with_columns(
        visit=pl.col("session") // 2,
        topic=pl.col("query") // 2,
        family=pl.col("doc") + 10 * (pl.col("query") % 2),
        upwards=5 - pl.col("position"),
        bought=((pl.col("session") + pl.col("doc")) % 3 == 0).cast(pl.Int8),
        copies=1.0 + pl.col("session") % 3,
        version=pl.col("session") // 300,
        user=pl.col("session") % 40,
        half=(pl.col("session") + pl.col("position")) % 2,
        side=(pl.col("session") + pl.col("position") + 1) % 2,
        rank_a=(pl.col("doc") + 3) % 5,
        rank_b=pl.col("doc") % 4,
        orders=pl.col("session") % 3,
        price=pl.col("doc") * 1.5,
    )
    top = log.filter(pl.col("position") == 1)
    elsewhere = [  # documents that are shown nowhere else: no method identifies position 8, few position 9
        top.filter(which).head(3).with_columns(doc=pl.col("doc") + 100, position=pl.lit(at, pl.Int32), click=click)
        for at, which, click in (
            (8, pl.col("policy") == "random", pl.lit(0, pl.Int8)),
            (9, pl.col("policy") == "ranker", pl.lit(1, pl.Int8)),
        )
    ]
    log = pl.concat([log, *elsewhere])
    log.write_parquet(folder / "log.parquet")
    write_rankings(folder, log.select("query", "doc").unique(maintain_order=True))
    log.with_columns(pl.col("click").cast(pl.Int64) * 2).write_parquet(folder / "counts.parquet")
    log.with_columns(shown=pl.col("position") + 1).write_parquet(folder / "sums.parquet")
    write_positions(folder, log)
    plain = log.select("session", "query", "doc", "position", "click")
    plain.write_csv(folder / "pipes.csv", separator="|")
    plain.write_csv(folder / "bare.csv", include_header=False)
    (folder / "wide.csv").write_bytes(plain.write_csv().encode("utf-16"))
    plain.with_columns(position=pl.format("{},0", "position")).write_csv(folder / "commas.tsv", separator="\t")
    clicked = pl.col("click") == 1
    plain.with_columns(click=pl.when(clicked).then(pl.lit("yes")).otherwise(pl.lit("0"))).write_csv(
        folder / "words.csv"
    )
    refused = pl.when(clicked).then(pl.lit("1")).otherwise(pl.lit("no"))
    plain.with_columns(click=refused).write_csv(folder / "refusals.csv")
    days = plain.with_columns(day=pl.format("2026-01-0{}", pl.col("session") % 3 + 1))
    days.write_csv(folder / "written.csv")
    faulty = pl.when(pl.int_range(pl.len()) < 3).then(7).otherwise(pl.col("click"))
    log.with_columns(click=faulty).write_parquet(folder / "faulty.parquet")
    log.with_columns(click=pl.when(pl.col("click") == 1).then(1)).write_parquet(folder / "nulls.parquet")
    twice = pl.when((pl.col("session") == 0) & (pl.col("position") < 3)).then(-1).otherwise(pl.col("doc"))
    log.with_columns(doc=twice).write_parquet(folder / "twice.parquet")
    lists = log.filter(pl.col("position") < 5).group_by("session", "query", maintain_order=True)
    pages = lists.agg(*("doc", "position", "click", pl.col("doc").filter(pl.col("bought") == 1).alias("chosen")))
    pages.write_parquet(folder / "pages.parquet")
    texts = pl.col("doc", "position", "click").cast(pl.List(pl.String))
    pages.select("session", "query", texts.list.join(";")).write_parquet(folder / "written.parquet")
    marked = pl.format("{}-{}", "doc", "click").alias("doc")
    lists.agg(marked, "position", "click").write_parquet(folder / "marked.parquet")
    lists.agg(marked).write_parquet(folder / "unplaced.parquet")
    log.filter(pl.col("bought") == 1).select("session", "doc").write_parquet(folder / "clicks.parquet")
    log.filter(pl.col("bought") == 1).select(
        *("session", "doc", pl.col("doc").alias("other"), (pl.col("session") // 2).alias("elsewhere")),
        clicks=pl.col("bought"),
        twice=pl.col("doc") % 2,
        action=pl.when(pl.col("session") % 3 == 0).then(pl.lit("click")).otherwise(pl.lit("tap")),
    ).with_columns(other=pl.col("other") // 2 * 2).write_parquet(folder / "events.parquet")
    clicked = log.filter(pl.col("bought") == 1).with_columns(
        kind=pl.when(pl.col("session") % 5 > 0).then(pl.lit("clicked")).otherwise(pl.lit("tapped")),
        at=10 * pl.col("session") + 5,
    )
    kinds = log.with_columns(
        kind=pl.when(pl.col("session") % 7 > 0).then(pl.lit("shown")).otherwise(pl.lit("seen")),
        at=10 * pl.col("session"),
    )
    pl.concat([kinds, clicked]).write_parquet(folder / "kinds.parquet")
    features = log.select("query", "doc").unique(maintain_order=True).with_row_index("width")
    features.write_parquet(folder / "features.parquet")
    numbers = features.select("query", "doc", shade=pl.col("doc") % 7, depth=pl.col("query") % 5)
    numbers.write_parquet(folder / "numbers.parquet")
    numbers.with_columns(topic=-pl.col("query"), family=-pl.col("doc")).write_parquet(folder / "candidates.parquet")
    grades = pl.DataFrame({"query": [n // 4 for n in range(120)], "doc": list(range(120))})
    graded = grades.with_columns(label=pl.col("doc") % 4, length=(pl.col("doc") * 7) % 11, age=(pl.col("doc") * 5) % 13)
    graded.write_csv(folder / "labels.csv")
    features.head(12).write_parquet(folder / "some_features.parquet")
    return folder


@dataclass(frozen=True)
class Outcome:
    """What a run came to: its exit code, its files, and what its manifest says beside the options."""

    code: int
    said: str
    files: dict[str, str]
    manifest: dict[str, object]

    def without_click_weights(self) -> "Outcome":
        """The same without the manifest's account of click weights, which some layouts do not write, nor print."""
        account = ("weights", "printed", "facts")
        kept = {name: value for name, value in self.manifest.items() if not name.startswith(account)}
        return replace(self, manifest=kept)

    def is_that_of(self, other: "Outcome") -> bool:
        """Whether two runs came to the same; what is said on stderr does not count."""
        return (self.code, self.files, self.manifest) == (other.code, other.files, other.manifest)


@dataclass(frozen=True)
class Bench:
    """Runs commands on the log, each once.

    Attributes:
        run: the command line.
        place: where the log is.
        known: what was run before.
    """

    run: Run
    place: Path
    known: dict[tuple[object, ...], Outcome]

    def outcome(self, words: Iterable[str], **environment: str) -> Outcome:
        """What a command line comes to."""
        key = (*words, *environment.items())
        if key not in self.known:
            self.known[key] = self._run(words, environment)
        return self.known[key]

    def _run(self, words: Iterable[str], environment: dict[str, str]) -> Outcome:
        out = self.place / ("out.svg" if "report" in words else "out")
        writes_nothing = {"--info", "show"} & set(words) or "POSBIAS_INFO" in environment
        output = () if writes_nothing else ("-o", out.name)
        done = self.run(*words, *output, cwd=self.place, **environment)
        manifest, files = dict[str, object](), {"stdout": done.stdout}
        if out.is_file():
            files["report"] = sha256(out.read_bytes()).hexdigest()
            out.unlink()
        elif out.exists():
            manifest = manifest_of(out)
            for name in ("options", "inputs", "versions", "checksum"):
                del manifest[name]
            for path in out.rglob("*"):
                if path.is_file() and path.name != "manifest.json":
                    files[str(path.relative_to(out))] = sha256(path.read_bytes()).hexdigest()
            shutil.rmtree(out)
        return Outcome(done.returncode, " ".join(done.stderr.split()), files, manifest)


@pytest.fixture(scope="module")
def outcomes() -> dict[tuple[object, ...], Outcome]:
    """Return what command lines came to, for all tests of this file that one process runs."""
    return {}


@pytest.fixture
def bench(run_in_process: Run, log_folder: Path, outcomes: dict[tuple[object, ...], Outcome]) -> Bench:
    """Return what runs commands, where there are also statistics and fits."""
    made = {
        "statistics": "collect log.parquet --timestamp timestamp",
        "dayless": "collect log.parquet",
        "other_day": "collect shifted.parquet --date 2026-01-20",
        "fit": "fit log.parquet",
        "other_fit": "fit log.parquet --max-position 4",
        "steep": "simulate --sessions 3000 --queries 20 --docs-per-query 6 --positions 4 --eta 3",
        "steeper_fit": "fit steep/log.parquet",
        "ranker": "train log.parquet --learner pbm --propensities fit --features numbers.parquet",
        "other_ranker": "train log.parquet --learner naive --features numbers.parquet",
    }
    for name, words in made.items():
        if not (log_folder / name).exists():
            run_in_process(*words.split(), "-o", name, cwd=log_folder, code=0)
    return Bench(run_in_process, log_folder, outcomes)


def trials_of(command: str) -> dict[str, Trial]:
    """The trials of a command's options."""
    return TRIALS.get(command, TRIALS["log"])


def options_of(command: str) -> dict[str, TyperOption]:
    """The options of a command by name; in place of NAME=VALUE, each setting that it takes."""
    return {
        name: option
        for option in COMMANDS[command].params
        if isinstance(option, TyperOption) and option.name not in NOT_SETTABLE
        for name in (settings_of(SETTINGS[option.name]) if option.name in SETTINGS else [str(option.name)])
    }


def faults(bench: Bench, situation: str, only: Iterable[str] | None = None) -> list[str]:
    """Options of a command that neither change the result nor are refused, or are refused although they change it."""
    command, *rest = situation.split()
    options = options_of(command)
    names = set(options) - set(HOW_NOT_WHAT) if only is None else set(only) & set(options)
    found: list[str] = []
    refused: dict[tuple[str, ...], dict[str, str]] = {}
    for name in sorted(names):
        trial = trials_of(command)[name]
        if name == "group" and "--layout session" in situation:
            trial = OTHER_GROUP
        flag, *value = trial.words.split()
        if flag in rest and (options[name].name not in SETTINGS or f" {name}=" in situation):
            continue
        base = [command, *(trial.log if word == "log.parquet" else word for word in rest)]
        before = bench.outcome(base)
        richer = [*base, *(trial.among.split() if trial.among.split()[:1] != rest[1:2] else ())]
        if bench.outcome(richer).code != UNUSABLE:
            base, before = richer, bench.outcome(richer)
        after = bench.outcome([*base, *trial.words.split()])
        if REFUSED in after.said:
            is_switch = not value or value[0].startswith("--")  # then words of another option follow
            setting = value[0] if not is_switch else "false" if flag.startswith("--no-c") else "true"
            settings, variable = refused.setdefault(tuple(base), {}), str(options[name].envvar)
            settings[variable] = f"{settings[variable]} {setting}" if variable in settings else setting
            if flag not in after.said:
                found.append(f"{' '.join(base)} {trial.words}: refused without its name")
        elif "bug in posbias" in after.said:
            found.append(f"{' '.join(base)} {trial.words}: {after.said}")
        elif after.is_that_of(before):
            found.append(f"{' '.join(base)} {trial.words}: no effect, and not refused: {after.said}")
    for base, settings in refused.items():
        found += settings_with_an_effect(bench, base, settings)
    return found


def settings_with_an_effect(bench: Bench, base: tuple[str, ...], settings: dict[str, str]) -> list[str]:
    """Settings of the environment that change a result: searched among all by halves, as hardly any does."""
    before = bench.outcome(base).without_click_weights()
    after = bench.outcome(base, **settings)
    if after.without_click_weights().is_that_of(before):
        return []
    if len(settings) > 1:
        names = list(settings)
        halves = (names[: len(names) // 2], names[len(names) // 2 :])
        return [
            text
            for half in halves
            for text in settings_with_an_effect(bench, base, {name: settings[name] for name in half})
        ]
    [(name, value)] = settings.items()
    if after.code == UNUSABLE:
        return []
    return [f"{' '.join(base)} {name}={value}: refused on the command line, but it has an effect"]


def fields_of(*groups: type) -> set[str]:
    """The options of these groups."""
    return {entry.name for group in groups for entry in fields(group)}


OF_FITS = fields_of(EstimationOptions, CountingOptions) | {"decay"}
OF_COLUMNS = {entry.name for entry in fields(ColumnOptions)} - {"true", "false"}  # of logs without teams
OF_DRAFTS = fields_of(InterleavingOptions) | OF_COLUMNS | {"team", "propensities", "weight_column", "max_bad_rows"}
OF_LEARNERS = fields_of(LearningOptions, LearnerOptions) - {"seed"}  # all take it; few draw anything
WEIGHT = "weight log.parquet --propensities fit"
TRAIN = "--learner pbm --propensities fit --features numbers.parquet --missing nan"
EVALUATE = "evaluate log.parquet --propensities fit --rankings scored.run"
WORLDS = (
    *("--theta 1,.5,.25", "--device 0.5 --device 2", "--segments 2", "--swap 2-3"),
    *("--labels labels.csv", "--labels labels.csv --ranker weak", "--model ubm", "--model tpbm", "--model rdctr"),
    *("--model dbn", "--model gctr --labels labels.csv", "--model dbn --labels labels.csv"),
)
SITUATIONS: dict[str, set[str] | None] = {
    **dict.fromkeys(("run log.parquet", "run statistics", "fit log.parquet", "fit statistics", "fit dayless")),
    **dict.fromkeys(("collect log.parquet", "collect statistics", "collect statistics --info")),
    **dict.fromkeys(("collect statistics other_day", WEIGHT, "weight dayless --propensities fit")),
    **dict.fromkeys((f"train log.parquet {TRAIN}", f"train dayless {TRAIN}")),
    **dict.fromkeys(("score candidates.parquet --model ranker", "export ranker --engine opensearch", "explore fit")),
    **dict.fromkeys(
        ("compare fit steeper_fit", "sql shown --dialect duckdb", "show fit", "show fit --format markdown")
    ),
    **dict.fromkeys(("report fit", EVALUATE, f"{EVALUATE} --candidates query")),
    **dict.fromkeys(("evaluate log.parquet --models pbm,dctr --judgments judged.csv",)),
    **dict.fromkeys(f"predict {log} --propensities fit --rankings scored.run" for log in ("log.parquet", "statistics")),
    "interleave log.parquet --team half --rank-a rank_a --rank-b rank_b": OF_DRAFTS,
    **{f"fit log.parquet --method {method}": OF_FITS for method in ("conditional", "joint", "allpairs --no-compare")},
    "fit log.parquet --method randomized --randomized-where policy=random": OF_FITS,
    **{
        f"fit log.parquet --method {method} --feature price": OF_FITS | fields_of(FeatureOptions)
        for method in METHODS_OF_ROWS
    },
    **{f"{WEIGHT} --layout {layout}": fields_of(TrainingOptions) for layout in layout_names()},
    f"{WEIGHT} --layout pointwise --layout-options negatives=posterior": fields_of(TrainingOptions),
    **{
        f"{WEIGHT} --layout judgments --layout-options rate={rate}": fields_of(TrainingOptions)
        for rate in ("coec", "ips")
    },
    **{
        f"train log.parquet {TRAIN.partition('pbm ')[2]} --learner {learner}": OF_LEARNERS
        for learner in ("distilled", "gbrank --learner-options significance=0.4", "logistic", "pal-sum")
    },
    "simulate --positions 3 --sessions 50": None,
    **dict.fromkeys(f"simulate --positions 3 {world} --sessions 50" for world in WORLDS),
}
"""Command lines, each with the options that are tried on it; None for all of the command."""


@pytest.mark.slow
@pytest.mark.parametrize("situation", SITUATIONS)
def test_an_option_has_an_effect_or_is_refused_whatever_the_input_and_the_method(bench: Bench, situation: str) -> None:
    assert "\n".join(faults(bench, situation, SITUATIONS[situation])) == ""


def test_every_option_is_tried_or_said_to_be_about_how_the_work_is_done() -> None:
    for command in COMMANDS:
        trials = trials_of(command)
        names = set(options_of(command))
        assert names - set(trials) == set(HOW_NOT_WHAT) & names
