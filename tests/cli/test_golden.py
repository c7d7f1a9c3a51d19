"""What the commands give is what they gave: exit codes, words and figures of a matrix of commands and logs.

`python tests/cli/test_golden.py` (with `tests/support` on PYTHONPATH) writes `golden.json` anew, after a change that is
meant; read the difference. Numbers are left out of words; of tables the sum of each column is kept, of manifests a sum
for each section.
"""

import json
import math
import re
import shlex
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import chdir
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, cast

import golden
import numpy as np
import polars as pl
import pytest
from command_results import invoke
from drafts import drafted

GIVEN = Path(__file__).with_name("golden.json")
PRECISION = {
    r"^(learner|scored).* (score|gain|splits)$|learning_curve|manifest.json learner|from_rows": math.inf,
    r"^exported manifest": math.inf,
    r"^(learner|scored|features)": 0.05,
    r"^(dbn-of-dbn|cascade|models|of-click-model|weighed-by-dbn)|other_models": 0.05,
    r"^(joint|priors|weights-of|clicked-groups|judgments|compared )|joint|reasons|estimate propensities": 1e-5,
    r"^clustered .*position_effect": 0.02,  # a p-value by numerical integration, of two clusters
    "": 1e-9,
}
"""How far a sum may move, relatively, on another processor: by the first pattern that its command and place match.

What trees and networks learn has no digit that every processor gives: only probabilities are held, loosely, and that
the rest is there. EM stops by a bound, click models where their priors change by half a percent. All else is exact or
converged: it moves by 1e-10 at most where every result of NumPy moves in its last bit.
"""

Figures = dict[str, Any]

ODD = {"nan": math.nan, "minus": -math.inf}
NETWORKS = ("logistic", "dla", "pal-sum")
EVALUATE = "evaluate {pbm} --propensities {run_pbm}"
WEIGHT = "weight {pbm} --propensities {run_pbm}"
TRAIN = "train {pbm} --propensities {run_pbm} --features features.parquet"
RUN_WHOLE = ("pbm", "ubm", "dbn", "devices", "segments", "fixed", "learning")
ELSEWHERE = ("sample in buckets", "sample ubm")
"""Commands of `golden.py` that take long, and whose kind is below on a smaller log."""
RUNS = {
    **{f"of click model {name}": f"fit {{dbn}} --model {name}" for name in ("gctr", "rctr", "dctr", "rdctr")},
    **{f"of click model {name}": f"fit {{dbn}} --model {name}" for name in ("dcm", "ccm", "sdbn")},
    **{
        f"simulated by {name}": f"simulate --model {name} --sessions 200 --queries 9" for name in ("tpbm", "ccm", "dcm")
    },
    "simulated from labels": "simulate --labels labels.csv --sessions 300 --positions 3 --ranker weak",
    "simulated with everything": "simulate --sessions 300 --queries 9 --positions 5 --depth .8 --swap 1-3 --segments 2 "
    "--randomized-share .2 --theta-shock .1 --readiness .5,1.5 --attractiveness-scale .6 --device .5 --device 1 --json",
    "checked as json": "check {pbm} --json",
    "checked by ubm": "check {ubm} --model ubm",
    "checked contexts": "check {devices} --context device --timestamp timestamp",
    "alone": "fit {devices} --context device --shrink none",
    "by session": "fit {pbm} --cluster session",
    "by pair": "fit {pbm} --cluster pair",
    "bootstrapped": "fit {pbm} --bootstrap 20 --seed 3",
    "clustered": "fit {segments} --cluster-column segment",
    "arms": "fit {segments} --arm segment",
    "all pairs": "fit {pbm} --method allpairs",
    "reference": "fit {pbm} --reference 3",
    "smooth": "fit {sparse} --shape smooth",
    "cut": "fit {pbm} --max-position 4",
    "daily": "fit {learning} --timestamp timestamp --period day",
    "features": "fit {segments} --method features --feature segment",
    "priors": "fit {sparse} --method joint --attractiveness-prior .3:5 --examination-prior .5:4",
    "in buckets by ubm": "run {ubm} --model ubm --memory 256MiB --layout session",
    "csv": "run {csv} --csv --context device",
    "text": "fit {text} --separator ; --decimal , --true yes --false no --position rank",
    "nested": "fit {nested} --list-separator |",
    "clicks apart": "fit {unclicked} --clicks {clicks}",
    "bad rows": "fit {faulty} --on-bad-rows drop",
    "twice on a page": "fit {twice} --duplicate-docs first",
    "days of a store": "collect {learning} --timestamp timestamp --period day",
    "decayed": "fit {days_of_a_store} --decay 0.9",
    "with context": "collect {devices} --context device --randomized-where device=0",
    "ubm counted": "collect {ubm} --model ubm",
    "ubm from counts": "fit {ubm_counted}",
    "one day": "collect {pbm} --date 2026-01-05 --into store",
    "another day": "collect {swaps} --date 2026-01-06 --into store",
    "a day again": "collect {pbm} --date 2026-01-06 --into store",
    "fit of a store": "fit store",
    "other counts": "collect {segments}",
    "info": "collect {days_of_a_store} --info",
    "info as json": "collect {statistics} --info --json",
    "each value of a segment": "fit {segments} --for-each segment --no-compare",
    **{
        f"weighed for {form}": f"{WEIGHT} --layout {layout} --format {form} --features numbers.parquet"
        for layout, form in (("clicked-group", "xgboost"), ("session", "lightgbm"), ("pairs", "catboost"))
    },
    "for ranklib": f"{WEIGHT} --layout judgments --format ranklib --features numbers.parquet",
    **{
        f"without a click in {layout}": f"weight {{never}} --propensities {{run_pbm}} --layout {layout}"
        for layout in ("pointwise", "session", "judgments")
    },
    "with features": f"{WEIGHT} --features features.parquet --format lightgbm --validation .2",
    "replicates": "weight {pbm} --propensities {run_pbm} --layout-options replicates=3",
    "expected labels": "weight {pbm} --propensities {run_pbm} --layout-options negatives=posterior",
    "coec": (
        "weight {pbm} --propensities {run_pbm} --layout judgments --layout-options rate=coec --layout-options grades=3"
    ),
    "ips": "weight {pbm} --propensities {run_pbm} --layout judgments --layout-options rate=ips --min-propensity .3",
    "power of one's own": "weight {pbm} --propensities power:1 --layout-options group=query --layout clicked-group",
    "table of one's own": "weight {pbm} --propensities own.csv --layout session",
    "weighed by ubm": "weight {ubm} --propensities {ubm_of_ubm} --layout pairs",
    "weighed by dbn": "weight {dbn} --propensities {dbn_of_dbn} --layout judgments",
    **{
        f"learner {name}": f"{TRAIN} --learner {name} --learner-options trees=8"
        for name in ("pbm", "gbrank", "lambdarank", "ipw-dcg")
    },
    **{
        f"learner {name}": f"{TRAIN} --learner {name} --learner-options trees=8".replace(
            " --propensities {run_pbm}", ""
        )
        for name in ("naive", "position-feature", "regression-em")
    },
    **{f"learner {name}": f"train {{pbm}} --features numbers.parquet --learner {name}" for name in NETWORKS},
    **{
        f"learner {name}": f"train {{pbm}} --learner {name}" + (" --propensities {run_pbm}" if name != "mf" else "")
        for name in ("mf", "propensity-mf")
    },
    "learner factors": "train {pbm} --learner factors --propensities {run_pbm} --learner-options regularization=10",
    "exported": "export {learner_pbm} --engine opensearch --categories codes",
    "scored": "score features.parquet --model {learner_pbm}",
    "evaluated": f"{EVALUATE} --scores a=scores.parquet --scores b=other.parquet --bound .95",
    "evaluated by query": f"{EVALUATE} --scores a=scores.parquet --candidates query -k 5",
    "evaluated by judgments": f"{EVALUATE} --scores scores.parquet --judgments judged.csv",
    "models by judgments": "evaluate {dbn} --models pbm,dbn --judgments judged.csv --test {ubm}",
    "explored by device": "explore {each_device}/device=0 --pages 500",
    "explored contexts": "explore {contexts} --pages 500 --top 3 --json",
    "compared counts": "compare {statistics} {other_counts}",
    "compared and written": "compare {run_pbm} {smooth} --max-change 0.2",
    "compared by day": "compare {days_of_a_store} --by day",
    "drawn": "report {run_pbm} {contexts} -o drawn.html",
    "a picture": "report {run_pbm} -o picture.svg",
    "shown as markdown": "show {contexts} --format markdown",
    "shown as json": "show {statistics} --format json",
    "shown rows": "show {replicates}",
    "shown models": "show {models}",
    "shown model": "show {learner_pbm}",
    "shown evaluation": "show {evaluated} --format csv",
    "all help": "run --help-all",
    "help of evaluate": "evaluate --help",
}
"""Further commands, each with `-o` of its name; `{name}` is the result of an earlier one, or a log."""

SLOW = {
    *("run-ubm", "run-dbn", "run-devices", "run-segments", "run-learning"),  # fitted below, each by itself
    *(f"check-{name}" for name in ("steep", "flat", "ubm", "dbn", "segments", "readiness", "swaps", "fixed")),
    *("of-click-model-dcm", "of-click-model-ccm", "models-by-judgments", "in-buckets-by-ubm"),
    *("zozo", "monotone", "daily", "by-pair", "all-pairs", "each-value-of-a-segment", "explored", "explored-by-device"),
    *("alone", "arms", "clustered", "drawn", "explored-contexts", "learner-mf", "learner-propensity-mf"),
}
"""Commands of which others of their kind, or on another log, are among the fast ones, which read no result of these."""

_SESSIONS = re.compile(r"--sessions \d+")
_NUMBER = re.compile(r"-?[\d.,]*\d(e[+-]?\d+)?%?")
_LINES = re.compile(r"[─━│┃┏┓┗┛┡┩╇┳┻┴┬├┤┼╭╮╰╯]+")
_CHANGING = re.compile(
    r"seconds|digest|version|created|started|finished|host|memory|checksum|bytes|files|inputs|sources"
    r"|iterations|evaluations|passes"
)


@dataclass
class Made:
    """What the commands gave, and where logs and results are; a command is run when it is asked for, if not before."""

    folder: Path
    samples: Path
    places: dict[str, str] = field(default_factory=dict[str, str])
    figures: dict[str, Figures] = field(default_factory=dict[str, Figures])

    def __post_init__(self) -> None:
        self.folder.mkdir()
        whole = {f"run {name}": f"run {{{name}}} --layout session --validation 0.2" for name in RUN_WHOLE}
        looked_at = {f"check {name}": f"check {{{name}}}" for name in golden.SIMULATED}
        shared = {name: command for name, command in golden.RUNS.items() if name not in ELSEWHERE}
        commands = {**whole, **looked_at, **shared, **RUNS}
        self.commands = {name.replace(" ", "-").replace("'", ""): command for name, command in commands.items()}
        with chdir(self.folder):
            for name, options in golden.SIMULATED.items():
                positions = "" if "--positions" in options else " --positions 5"
                golden.run(name, f"simulate {_SESSIONS.sub('--sessions 1000', options)}{positions} -o {name}")
                self.places[name] = f"{name}/log.parquet"
            self.places |= {"samples": str(self.samples)} | _written()

    def of(self, name: str) -> Figures:
        """What a command gave."""
        if name not in self.figures:
            words = self.commands[name].format(out=name, **self.places).removesuffix(f" -o {name}")
            silent = words.split()[0] in {"check", "show"} or "--info" in words or "--help" in words
            place = "" if silent or " -o " in words or "--into" in words else f" -o {name}"
            with chdir(self.folder):
                golden.run(name, words + place)
                self.places[name.replace("-", "_")] = name
                self.figures[name] = _figures(name)
        return self.figures[name]


def _written() -> dict[str, str]:
    """Write logs of other forms, features, scores and judgments; the logs by name."""
    log, devices = pl.read_parquet("pbm/log.parquet"), pl.read_parquet("devices/log.parquet")
    devices.head(9000).write_csv("devices.csv")
    words = log.head(6000).rename({"position": "rank"}).drop("timestamp")
    click = pl.when(pl.col("click") == 1).then(pl.lit("yes")).otherwise(pl.lit("no"))
    words.with_columns(click=click).write_csv("text.csv", separator=";")
    texts = pl.col("doc", "position", "click").cast(pl.String).str.join("|")
    log.group_by("session", "query", maintain_order=True).agg(texts).write_csv("nested.csv")
    log.drop("click").write_parquet("unclicked.parquet")
    log.filter(pl.col("click") == 1).select("session", "doc").write_parquet("clicks.parquet")
    row = pl.int_range(pl.len())
    log.with_columns(pl.col("position") - 1, price=0.5).write_parquet("raised.parquet")
    log.with_columns(click=0).write_parquet("never.parquet")
    place, session = pl.col("position") - 1, pl.col("session")
    log.select(
        pl.exclude("position"), slot=place % 4 + 1, serp_page=place // 4 + 1, from_0=place // 4, deep="position"
    ).with_columns(
        *(pl.when(session % 2 == 0).then(value).otherwise(1.0).alias(name) for name, value in ODD.items()),
        long=pl.lit("long " * 50),
        user=session % 400,
    ).write_parquet("paged.parquet")
    Path("loop").symlink_to("loop")
    Path("many").mkdir()
    Path("many/loop").symlink_to("../loop")
    log.filter(pl.col("position") == 1).with_columns(odd=session % 2).write_parquet("tops.parquet")
    odd = {"money": pl.col("rank_a") + 0.5, "kind": pl.col("doc"), "born": pl.date(1990, 1, 1)}
    drafted(1, 100, queries=20).with_columns(**odd).write_parquet("draft.parquet")
    log.with_columns(click=pl.when(row % 97 == 5).then(7).otherwise("click")).write_parquet("faulty.parquet")
    log.with_columns(doc=pl.when(row % 50 == 1).then(pl.col("doc").shift()).otherwise("doc")).write_parquet(
        "twice.parquet"
    )
    drawn = pl.when(pl.col("session") % 10 == 0).then(pl.lit("random")).otherwise(pl.lit("usual"))
    devices.with_columns(device=pl.format("phone {}", "device"), policy=drawn).write_parquet("marked.parquet")
    pairs = log.select("query", "doc").unique().sort("query", "doc")
    number, hashed = pl.col("doc") + 31 * pl.col("query"), (pl.col("doc") * 7919 + pl.col("query") * 104729) % 1009
    features = pairs.select("query", "doc", f1=number % 7, f2=(hashed / 1009), f3=pl.format("c{}", number % 3))
    features.write_parquet("features.parquet")
    features.drop("f3").write_parquet("numbers.parquet")
    scores = pairs.select("query", "doc", score=hashed / 1009)
    scores.write_parquet("scores.parquet")
    scores.with_columns(pl.col("doc") + 1000).write_parquet("others.parquet")
    scores.with_columns(pl.col("query") + 1000).write_parquet("elsewhere.parquet")
    pl.concat([scores, scores.head(1)]).write_parquet("doubled.parquet")
    scores.with_columns(score=pl.when(row != 1).then("score")).write_csv("nan.csv")
    unnamed = (pl.when(row != at).then(name).alias(name) for name, at in (("query", 5), ("doc", 2)))
    scores.with_columns(*unnamed, relevance=1).write_csv("unnamed.csv")
    scores.select("query", "doc", seen=pl.date(2026, 1, 1)).write_parquet("days.parquet")
    pairs.select("query", "doc", score=number % 13 / 13).write_parquet("other.parquet")
    pairs.select("query", "doc", relevance=number % 5).write_csv("judged.csv")
    pl.DataFrame({"position": range(1, 11), "propensity": [1 / k for k in range(1, 11)]}).write_csv("own.csv")
    grades = pl.DataFrame({"query": [n // 4 for n in range(120)], "doc": list(range(120))})
    grades.with_columns(
        label=pl.col("doc") % 4, length=(pl.col("doc") * 7) % 11, age=(pl.col("doc") * 5) % 13
    ).write_csv("labels.csv")
    for name, text in tomllib.loads(GIVEN.with_name("refused.toml").read_text(encoding="utf-8")).items():
        Path(name).write_text(text, encoding="latin-1")
    names = {"csv": "devices.csv", "text": "text.csv", "nested": "nested.csv"}
    logs = ("unclicked", "clicks", "faulty", "twice", "marked", "raised", "never", "tops", "draft", "paged")
    return names | {name: f"{name}.parquet" for name in logs}


def _figures(name: str) -> Figures:
    """What a command printed, and what is in its tables and its manifest."""
    text = Path(f"{name}.txt").read_text(encoding="utf-8")
    code = int(re.findall(r"^exit code (\d+)$", text, re.MULTILINE)[0])
    words = _LINES.sub(" ", text.partition("\nexit code ")[2].partition("\n")[2])
    if words.startswith("{"):  # JSON, as the manifest below has it
        words = words.partition("\n--- stderr")[2]
    found: Figures = {"exit code": code, "words": " ".join(_NUMBER.sub("#", words).split())}
    for path in sorted(Path(name).rglob("*.parquet")):
        found[str(path.relative_to(name))] = _of_table(pl.read_parquet(path))
    for path in sorted(Path(name).rglob("manifest.json")):
        found[str(path.relative_to(name))] = dict(_of_sections(json.loads(path.read_text(encoding="utf-8"))))
    return found


def _of_table(table: pl.DataFrame) -> Figures:
    found: Figures = {"rows": table.height}
    for column in table.iter_columns():
        if _CHANGING.search(column.name):
            continue
        if column.dtype.is_numeric():
            numbers = column.drop_nulls().cast(pl.Float64).to_numpy()
            found[column.name] = [len(numbers), float(numbers[np.isfinite(numbers)].sum())]
        else:
            found[column.name] = [column.drop_nulls().len(), column.n_unique()]
    return found


def _of_sections(manifest: dict[str, Any]) -> Iterator[tuple[str, list[float]]]:
    """Of each section, how many numbers it holds, and the sum of x / (1 + |x|)."""
    for key, section in manifest.items():
        parts = cast("dict[str, Any]", section).items() if isinstance(section, dict) else [("", section)]
        for part, value in parts:
            leaves = [leaf for leaf in _leaves(value) if math.isfinite(leaf)]
            if leaves and not _CHANGING.search(f"{key} {part}"):
                yield f"{key} {part}".strip(), [len(leaves), sum(leaf / (1 + abs(leaf)) for leaf in leaves)]


def _leaves(value: Any) -> Iterator[float]:  # noqa: ANN401 - JSON
    if isinstance(value, dict):
        named = cast("dict[str, Any]", value)
        yield from chain.from_iterable(_leaves(own) for key, own in named.items() if not _CHANGING.search(key))
    elif isinstance(value, list):
        yield from chain.from_iterable(map(_leaves, cast("list[Any]", value)))
    elif isinstance(value, int | float):
        yield float(value)


def precision(place: str) -> float:
    """How far the value at a place may move."""
    return next(value for pattern, value in PRECISION.items() if re.search(pattern, place))


def held(values: Figures, place: str) -> Figures:
    """The values as they are recorded: of those that hold no digit, that they are there."""
    return {
        key: held(cast("Figures", value), f"{place} {key}")
        if isinstance(value, dict)
        else value
        if precision(f"{place} {key}") < math.inf
        else True
        for key, value in values.items()
    }


def differences(given: Any, found: Any, place: str) -> Iterator[str]:  # noqa: ANN401 - JSON
    """Where two figures differ by more than their precision."""
    if isinstance(given, dict) and isinstance(found, dict):
        before, now = cast("Figures", given), cast("Figures", found)
        for key in sorted({*before, *now}):
            yield from differences(before.get(key), now.get(key), f"{place} {key}")
    elif given is True and found is not None:
        return
    elif isinstance(given, list) and isinstance(found, list):
        given, found = cast("list[float]", given), cast("list[float]", found)
        if given[0] != found[0] or not math.isclose(
            given[1], found[1], rel_tol=precision(place), abs_tol=precision(place)
        ):
            yield f"{place}: {given} before, {found} now"
    elif given != found:
        yield f"{place}: {given!r} before, {found!r} now"


EXPECTED: dict[str, Figures] = json.loads(GIVEN.read_text(encoding="utf-8")) if GIVEN.exists() else {}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands are run."""
    return tmp_path_factory.mktemp("golden") / "golden"


@pytest.fixture(scope="module")
def made(folder: Path, sample_logs: Path) -> Made:
    """What the commands give, and where: of all but the slow ones, in their order."""
    made = Made(folder, sample_logs)
    for name in made.commands:
        if name not in SLOW:
            made.of(name)
    return made


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in EXPECTED]
)
def test_a_command_gives_what_it_gave(made: Made, name: str) -> None:
    assert list(differences(EXPECTED[name], made.of(name), name)) == []


REFUSED = dict(line.split(" -> ") for line in GIVEN.with_name("refused.txt").read_text(encoding="utf-8").splitlines())
"""Command lines, each with what its error says; the small files that they name are in `refused.toml`."""


@pytest.mark.slow_after(220)
@pytest.mark.parametrize("command", REFUSED)
def test_what_cannot_be_done_is_refused_and_nothing_is_written(
    folder: Path, made: Made, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(folder)
    words = shlex.split(command.format(**made.places))
    output = () if {"check", "show", "-o", "--output", "--into", "--info"} & {*words} else ("-o", "out")
    before = {path.name for path in folder.iterdir()}
    done = invoke(*words, *output, code=2)

    assert not done.stdout
    assert REFUSED[command] in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert {path.name for path in folder.iterdir()} == before


def test_every_command_has_its_values(made: Made) -> None:
    assert sorted(made.commands) == sorted(EXPECTED)
    assert set(EXPECTED) > SLOW


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        everything = Made(Path(place) / "golden", golden.SAMPLES)
        values = {name: held(everything.of(name), name) for name in everything.commands}
    GIVEN.write_text(f"{json.dumps(values, indent=0, ensure_ascii=False)}\n", encoding="utf-8")
    sys.stdout.write(f"{len(values)} commands\n")
