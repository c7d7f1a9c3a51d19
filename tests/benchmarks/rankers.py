"""What a ranker from clicks is worth: NDCG@5 by the true labels of queries that it did not learn from.

    python tests/benchmarks/rankers.py [--settings once repeat real] [--only pbm naive] [--seeds 5] [--json FILE]
    python tests/benchmarks/rankers.py --unseen 40

once     every page is shown once: 2,600 queries of 20 documents with 30 features to learn from, 1,000 to be judged by
repeat   the same world, 130 queries, each shown on 20 pages whose order is drawn anew
real     judged documents of ../shared/data: LightGBM's lambdarank example, ClueWeb09, and DBpedia-Entity with features
         drawn from the labels (as sample_logs/web_search_features.parquet has them); pages of at most 20 documents,
         drawn anew, some 26,000 impressions; a third of the queries to be judged by

A page of a query is ordered by w y + (1 - w) U(0, 4), where y is the label from 0 to 4: the larger w, the more the
logging ranker knows that features do not. Position k is examined with 1 / k, what is examined is clicked with
.1 + .9 (2^y - 1) / 15. The log, the features and the judged documents are written as files. Learners of posbias run as
`posbias train`, given the true propensities unless their row says `fit`, and `posbias score`; other programs learn from
the same clicks, page by page, and all grow 100 trees of 15 leaves (or depth 4) at rate .1.

A row is a learner and a column a w: the mean over seeds, in brackets its standard error in thousandths. `--only` takes
the rows whose names contain one of the words. `--json` keeps the figures of all logs in a file: what it holds is in the
table, and is not measured again without `--again`.

`--unseen` draws so many worlds whose ranker, features, pages and examination are drawn, too, and judges what `auto`
chose and the gain over naive clicks that it printed by the true attractiveness of the same documents.
"""

import argparse
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from processes import table_console
from recovery import WRONG, posbias
from rich.box import SIMPLE_HEAD
from rich.table import Table
from small_logs import dense_table

from posbias.core.arrays.count_table import Integers
from posbias.core.choices import LearningOptions
from posbias.core.evaluation.clicked import DCG
from posbias.core.learners.auto import BLEND, HALF, MOST, choose, evaluate_learned, held_out_scores
from posbias.core.learners.learning import Features, LearningData, balance_weights

Floats = NDArray[np.floating[Any]]
Record = dict[str, Any]

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
WORLDS = {"once": ("once",), "repeat": ("repeat",), "real": ("LightGBM", "ClueWeb09", "DBpedia")}
KNOWN = (0, 0.2, 0.6, 0.8, 1)
"""What the ranker knows of the label: the weight w."""
DRAWN, TABLE_WIDTH = (*WORLDS["once"], *WORLDS["repeat"]), 180
DEEPEST = 10
DEPTH, SHOWN, JUDGED, THIRDS, LABELS = 5, 20, 1000, 3, "labels (lambdarank)"
IDS = ("query", "doc", "label")


# --- worlds ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Clicks:
    """A log, and what is known of documents: `query`, `doc`, `label` and features."""

    log: pl.DataFrame  # session, query, doc, position, click; sorted by session and position
    learnt: pl.DataFrame  # the documents of the log
    judged: pl.DataFrame  # those of other queries
    features: list[str]

    @property
    def pages(self) -> Floats:
        """How many impressions each page has."""
        return self.log.group_by("session", maintain_order=True).len()["len"].to_numpy()

    def shown(self) -> Floats:
        """The features of each impression."""
        rows = self.log.select("query", "doc").join(self.learnt, on=["query", "doc"], maintain_order="left")
        return self.of(rows)

    def of(self, documents: pl.DataFrame) -> Floats:
        """The features of documents."""
        return documents.select(self.features).to_numpy().astype(np.float32)


def drawn_documents(queries: int, rng: np.random.Generator) -> pl.DataFrame:
    """Queries of 20 documents: labels by six of 30 features, and by noise."""
    x = rng.normal(size=(queries, SHOWN, 30)) + rng.normal(size=(queries, 1, 30)) / 2
    score = x[..., 0] + 0.7 * x[..., 1] * x[..., 2] + np.maximum(x[..., 3], 0) - 0.5 * np.abs(x[..., 4])
    score += 0.5 * x[..., 5] + rng.normal(size=score.shape)
    label = np.digitize(score, np.quantile(score, [0.55, 0.8, 0.93, 0.985]))
    ids = {"query": np.arange(queries).repeat(SHOWN), "doc": np.arange(queries * SHOWN), "label": label.ravel()}
    return pl.DataFrame(ids | {f"f{number}": x[..., number].ravel().astype(np.float32) for number in range(30)})


def judged_documents(world: str, rng: np.random.Generator) -> pl.DataFrame:
    """Those of a file, with labels from 0 to 4."""
    (path,) = (path for path in DATA.glob("graded_*.parquet") if world.lower() in path.name)
    found = pl.read_parquet(path).rename({"query_id": "query", "doc_id": "doc"}).drop("split").sort("query", "doc")
    if world == "DBpedia":
        noise = {"text_match": 0.5, "link_score": 1.0}
        drawn = {name: found["label"].to_numpy() / 2 + sd * rng.normal(size=len(found)) for name, sd in noise.items()}
        found = found.with_columns(label=pl.col("label") * 2, **drawn, freshness=rng.random(len(found)))
    ids = (pl.col(name).rank("dense").cast(pl.Int64) for name in ("query", "doc"))
    return found.with_columns(*ids, pl.col("label").cast(pl.Int64))


def shown_pages(documents: pl.DataFrame, known: float, pages: int, rng: np.random.Generator) -> pl.DataFrame:
    """The log: each query on so many pages, each of 20 of its documents, drawn anew."""
    rows = documents.select(IDS).join(pl.DataFrame({"page": range(pages)}), how="cross")
    chance, noise, page = pl.Series(rng.random(len(rows))), pl.Series(rng.uniform(0, 4, len(rows))), ["query", "page"]
    rows = rows.with_columns(chance=chance, score=known * pl.col("label") + (1 - known) * noise + 1e-9 * chance)
    rows = rows.filter(pl.col("chance").rank("ordinal").over(page) <= SHOWN)
    rows = rows.with_columns(position=pl.col("score").rank("ordinal", descending=True).over(page).cast(pl.Int64))
    chance = (0.1 + 0.9 * (2.0 ** pl.col("label") - 1) / 15) / pl.col("position")
    rows = rows.with_columns(click=(pl.Series(rng.random(len(rows))) < chance).cast(pl.Int8))
    rows = rows.with_columns(session=pl.struct(page).rank("dense").cast(pl.Int64)).sort("session", "position")
    return rows.select("session", "query", "doc", "position", "click")


def drawn_clicks(world: str, known: float, seed: int) -> Clicks:
    """A log of a world."""
    rng = np.random.default_rng(seed)
    if world in WORLDS["real"]:
        documents = judged_documents(world, rng)
        queries = rng.permutation(documents["query"].unique().sort().to_numpy())
        apart = len(queries) // THIRDS
    else:
        queries, apart = np.arange((2600 if world == "once" else 130) + JUDGED), JUDGED
        documents = drawn_documents(len(queries), rng)
    to_judge = pl.col("query").is_in(queries[:apart].tolist())
    learnt, judged = documents.filter(~to_judge), documents.filter(to_judge)
    sizes = learnt.group_by("query").len()["len"].clip(upper_bound=SHOWN)
    impressions = 26_000 if world in WORLDS["real"] else 52_000
    pages = 1 if world == "once" else round(impressions / int(sizes.sum()))
    names = [name for name in documents.columns if name not in IDS]
    return Clicks(shown_pages(learnt, known, pages, rng), learnt, judged, names)


def ndcg(judged: pl.DataFrame, scores: Floats) -> float:
    """Mean NDCG@5, gain 2^y - 1, over the queries that have a relevant document."""
    gain = 2.0 ** pl.col("label") - 1

    def dcg(by: str) -> pl.Expr:
        top = gain.sort_by(by, descending=True).head(DEPTH)
        return (top / (pl.int_range(pl.len()).head(DEPTH) + 2).log(2)).sum()

    ranked = judged.with_columns(score=pl.Series(np.asarray(scores, dtype=np.float64)))
    by_query = ranked.group_by("query").agg(own=dcg("score"), best=dcg("label")).filter(pl.col("best") > 0)
    return float(by_query.select((pl.col("own") / pl.col("best")).mean()).item())


# --- learners --------------------------------------------------------------------------------------------------


def lambdarank(rows: Floats, labels: Floats, groups: Floats, position: Floats | None, clicks: Clicks) -> Floats:
    """LightGBM's lambdarank on rows in groups: the scores of the judged documents."""
    library: Any = import_module("lightgbm")
    data = library.Dataset(rows, labels, group=groups, position=position)
    trees = {"num_leaves": 15, "min_data_in_leaf": 20, "learning_rate": 0.1, "num_threads": 1, "verbosity": -1}
    return library.train({"objective": "lambdarank"} | trees, data, 100).predict(clicks.of(clicks.judged))


def lightgbm(clicks: Clicks, *, positions: bool = False) -> Floats:
    """On pages; with positions it estimates their biases and takes them away."""
    position = clicks.log["position"].to_numpy() - 1 if positions else None
    return lambdarank(clicks.shown(), clicks.log["click"].to_numpy(), clicks.pages, position, clicks)


def on_labels(clicks: Clicks) -> Floats:
    """On the true labels of the documents that are learnt from."""
    documents = clicks.learnt.sort("query", "doc")
    groups = documents.group_by("query", maintain_order=True).len()["len"].to_numpy()
    return lambdarank(clicks.of(documents), documents["label"].to_numpy(), groups, None, clicks)


def xgboost(clicks: Clicks, *, unbiased: bool = False) -> Floats:
    """XGBoost's rank:ndcg on pages; the place of a row in its group is its position."""
    library: Any = import_module("xgboost")
    asked = {"objective": "rank:ndcg", "eta": 0.1, "max_depth": 4, "nthread": 1, "lambdarank_unbiased": unbiased}
    data = library.DMatrix(clicks.shown(), clicks.log["click"].to_numpy(), group=clicks.pages)
    return library.train(asked, data, 100).predict(library.DMatrix(clicks.of(clicks.judged)))


def catboost(clicks: Clicks) -> Floats:
    """CatBoost's QueryRMSE on pages."""
    library: Any = import_module("catboost")
    data = library.Pool(clicks.shown(), clicks.log["click"].to_numpy(), group_id=clicks.log["session"].to_numpy())
    asked = {"loss_function": "QueryRMSE", "iterations": 100, "depth": 4, "learning_rate": 0.1, "thread_count": 1}
    model = library.CatBoost(asked | {"verbose": False, "allow_writing_files": False}).fit(data)
    return model.predict(clicks.of(clicks.judged))


PEERS: dict[str, Callable[[Clicks], Floats]] = {
    LABELS: on_labels,
    "LightGBM lambdarank": lightgbm,
    "LightGBM, position": lambda clicks: lightgbm(clicks, positions=True),
    "XGBoost rank:ndcg": xgboost,
    "XGBoost lambdarank_unbiased": lambda clicks: xgboost(clicks, unbiased=True),
    "CatBoost QueryRMSE": catboost,
}
OURS = {
    "auto": "",
    "distilled": "",
    "pbm": "",
    "pbm, fit": "",
    "naive": "",
    "regression-em": "",
    "position-feature": "",
    "lambdarank": "",
    "dla": "",
    "single-tower": "",
    "pal-product": "",
    "pal-sum": "",
    "pal-sum, dropout": "--learner-options observation_dropout=.5",
    "pal-sum, reversal": "--learner-options gradient_reversal=.5",
}
"""Options of `train`, by the row; before a comma stands the learner."""


def score(name: str, clicks: Clicks, folder: Path) -> Floats | None:
    """What a learner of posbias gives the judged documents; none where the log does not say theta."""
    log, documents, theta = (folder / f"{file}.parquet" for file in ("log", "learnt", "theta"))
    if not log.is_file():
        clicks.log.write_parquet(log)
        clicks.learnt.drop("label").write_parquet(documents)
        clicks.judged.drop("label").write_parquet(folder / "judged.parquet")
        position = np.arange(1, SHOWN + 1)
        pl.DataFrame({"position": position, "propensity": 1 / position}).write_parquet(theta)
    if name.endswith("fit"):  # which it cannot where no document moves
        theta = folder / "fit"
        if posbias("fit", log, "-o", theta, may_fail=True) == WRONG:
            return None
    ranker = (
        "--learner",
        name.split(",", maxsplit=1)[0],
        *OURS[name].split(),
        "--features",
        documents,
        "-o",
        folder / "ranker",
    )
    posbias("train", log, "--propensities", theta, *ranker, "--threads", "1")
    posbias("score", folder / "judged.parquet", "--model", folder / "ranker", "-o", folder / "scored")
    scores = pl.read_parquet(folder / "scored" / "scores.parquet").select("query", "doc", "score")
    return clicks.judged.join(scores, on=["query", "doc"], how="left", maintain_order="left")["score"].to_numpy()


def measured(task: tuple[int, str, float, list[str]]) -> list[Record]:
    """The NDCG of some learners on one log, by its seed, its world and w."""
    seed, world, known, names = task
    clicks, found = drawn_clicks(world, known, seed), list[Record]()
    with tempfile.TemporaryDirectory(prefix="rankers-") as folder:
        for name in names:
            start = time.process_time()
            scores = PEERS[name](clicks) if name in PEERS else score(name, clicks, Path(folder))
            if scores is not None:
                of_log = {"world": world, "w": known, "seed": seed, "learner": name}
                found.append(of_log | {"ndcg": ndcg(clicks.judged, scores), "seconds": time.process_time() - start})
    return found


# --- unseen worlds ---------------------------------------------------------------------------------------------


def drawn_world(rng: np.random.Generator) -> tuple[LearningData, Floats]:
    """A log of any kind, and the attractiveness of its documents."""
    queries, documents, features = (
        int(rng.choice([150, 400, 1000])),
        int(rng.integers(12, 31)),
        int(rng.integers(4, 12)),
    )
    x, tells = rng.standard_normal((queries, documents, features)), rng.random(features) < 0.5
    seen = x @ (tells * rng.uniform(0.2, 1, features)) + 0.7 * x[..., 0] * x[..., 1]
    logit = seen / seen.std() + rng.uniform(0, 1.5) * rng.standard_normal(seen.shape) - rng.uniform(0.5, 2.5)
    truth, wrong = 1 / (1 + np.exp(-logit)), rng.uniform(0, 1.5) * (rng.random() < 0.5) * x[..., rng.integers(features)]
    likes = rng.uniform(0, 1.5) * (logit - logit.mean()) / logit.std() + wrong
    popular = 1 / np.arange(1, queries + 1)
    more = rng.multinomial(int(rng.choice([5, 20])) * queries, popular / popular.sum())
    asked = np.arange(queries).repeat(1 + more * (rng.random() < 0.6))
    noise = rng.gumbel(size=(len(asked), documents)) * rng.uniform(0.2, 1)
    shown = np.argsort(-likes[asked] - noise, axis=1)[:, :DEEPEST]
    document, cell = (asked[:, np.newaxis] * documents + shown).ravel(), np.tile(np.arange(DEEPEST), len(asked))
    theta = np.asarray(np.arange(1, DEEPEST + 1) ** -rng.uniform(0.5, 1.3), np.float64)
    impressions, clicks = np.zeros((2, queries * documents, DEEPEST))
    np.add.at(impressions, (document, cell), 1)
    np.add.at(clicks, (document, cell), rng.random(len(document)) < theta[cell] * truth.ravel()[document])
    kept = impressions.any(axis=1)
    data = LearningData(
        query=np.arange(queries).repeat(documents)[kept],
        held_out=np.zeros(int(kept.sum()), np.bool_),
        counts=dense_table(impressions[kept], clicks[kept]),
        examination=theta,
        position=np.arange(1, DEEPEST + 1),
        features=Features(x.reshape(-1, features)[kept], tuple(f"f{number}" for number in range(features))),
    )
    return replace(data, weight=balance_weights(data, "sqrt")), truth.ravel()[kept]


def judged_choice(seed: int) -> Record | None:
    """Whether the choice of `auto` in a world was right; none where a log is too small."""
    data, truth = drawn_world(np.random.default_rng([seed, 11]))
    leaf = min(max(data.n_documents // 100, 10), 50)
    held_out = held_out_scores(data, LearningOptions(leaf_documents=leaf), lambda: None)
    if held_out is None:
        return None
    _, by_ranker, kappa = held_out
    choice, share = choose(held_out), min(kappa / (kappa + HALF), MOST)
    names = ["blend", *by_ranker]
    blend = (1 - share) * by_ranker[BLEND[0]] + share * by_ranker[BLEND[1]]
    scores = [blend, *by_ranker.values()]
    chosen = names.index(next(iter(choice.shares))) if choice.is_single else 0
    counts, query = data.weighted, data.query
    pages = np.zeros((int(query[-1]) + 1, DEEPEST))
    np.add.at(pages, (query[counts.unit_of_entry], counts.cell), counts.impressions)
    values = [true_dcg(query, truth, of, pages.max(axis=1)) for of in scores]
    best = int(np.argmax(values))
    error = (
        evaluate_learned(data, scores).difference(1 + best, 1 + chosen, DCG, "ips").std_error if best != chosen else 0.0
    )
    gain, _ = choice.gains["naive"]
    true_gain = values[chosen] - values[names.index("naive")]
    return {
        "right": values[best] - values[chosen] <= 2 * error,
        "lost": 1 - values[chosen] / values[best],
        "lost by naive": 1 - values[names.index("naive")] / values[best],
        "covered": gain.low <= true_gain <= gain.high,
        "chosen": names[chosen],
    }


def true_dcg(query: Integers, truth: Floats, scores: Floats, pages: Floats) -> float:
    """DCG@10 of a page by attractiveness, documents of each query ordered by scores."""
    order = np.lexsort((-scores, query))
    place = np.arange(len(order))
    rank = place - np.maximum.accumulate(np.where(np.diff(query[order], prepend=-1) != 0, place, 0))
    gains = np.where(rank < DEEPEST, truth[order] / np.log2(2 + rank), 0.0)
    return float(np.bincount(query[order], gains) @ pages / pages.sum())


def print_unseen(worlds: int) -> None:
    """Print how often `auto` was right."""
    found = [one for one in map(judged_choice, range(worlds)) if one is not None]

    def mean(name: str) -> float:
        return float(np.mean([one[name] for one in found]))

    chosen = Counter(one["chosen"] for one in found)
    print(f"{len(found)} worlds: {', '.join(f'{name} {times}' for name, times in chosen.most_common())}")
    print(f"the best, or not to be told from it (2 standard errors): {mean('right'):.1%}")
    print(f"the interval of the gain over naive clicks holds the true one: {mean('covered'):.1%}")
    print(f"DCG@10 lost to the best of each world: {mean('lost'):.2%}; by naive clicks {mean('lost by naive'):.2%}")


# --- tables ----------------------------------------------------------------------------------------------------


def table_of(worlds: Sequence[str], records: Sequence[Record]) -> Table:
    """A row a learner, a column a world and w."""
    found: dict[tuple[str, float], dict[str, dict[int, float]]] = {}
    for record in records:
        of_log = found.setdefault((record["world"], record["w"]), {})
        of_log.setdefault(record["learner"], {})[record["seed"]] = record["ndcg"]
    columns = [column for world in worlds for known in KNOWN if (column := (world, known)) in found]
    rows = {name: [_cell(found[column].get(name, {})) for column in columns] for name in (*PEERS, *OURS)}
    table = Table(box=SIMPLE_HEAD, padding=(0, 0))
    table.add_column("NDCG@5")
    for world, known in columns:
        table.add_column(f"{world if known == 0 else ''}\nw {known:g}", justify="right")
    for name, cells in rows.items():
        if any(cells):
            table.add_row(name, *cells)
    return table


def _cell(values: Mapping[int, float]) -> str:
    """The mean over seeds, and its standard error in thousandths."""
    if not values:
        return ""
    mean, number = np.mean(list(values.values())), len(values)
    error = f"({1000 * np.std(list(values.values()), ddof=1) / np.sqrt(number):.0f})" if number > 1 else ""
    return f"{mean:.3f}{error}".replace("0.", ".", 1)


def main() -> None:
    """Parse the command line, measure, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", nargs="*", choices=WORLDS, default=list(WORLDS))
    parser.add_argument("--only", nargs="*", default=[""], help="learners whose names contain one of these")
    parser.add_argument("--seeds", type=int, default=5, help="logs of each kind, seeds from 0 on")
    parser.add_argument("--json", type=Path, help="file of all figures, which those of this run are added to")
    parser.add_argument("--again", action="store_true", help="measure what the file holds, too")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--unseen", type=int, help="so many worlds of all kinds, and nothing else")
    asked = parser.parse_args()
    if asked.unseen:
        print_unseen(asked.unseen)
        return
    worlds = [world for setting in asked.settings for world in WORLDS[setting]]
    if "real" in asked.settings and not DATA.is_dir():
        raise SystemExit(f"the judged documents are not at {DATA}")
    names = [name for name in (*PEERS, *OURS) if any(word in name for word in asked.only)]
    kept: dict[tuple[Any, ...], Record] = {}
    if asked.json and asked.json.is_file():
        kept = {_key(record): record for record in json.loads(asked.json.read_text(encoding="utf-8"))}
    logs = [(seed, world, known) for seed in range(asked.seeds) for world in worlds for known in KNOWN]
    done = set[tuple[Any, ...]]() if asked.again else set(kept)
    tasks = [(*log, [name for name in names if (*log, name) not in done]) for log in logs]
    os.environ |= dict.fromkeys(("POLARS_MAX_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1")
    with ProcessPoolExecutor(asked.processes, get_context("spawn")) as pool:
        for records in pool.map(measured, [task for task in tasks if task[-1]]):
            kept |= {_key(record): record for record in records}
            if asked.json:
                text = ",\n".join(map(json.dumps, kept.values()))
                asked.json.write_text(f"[\n{text}\n]\n", encoding="utf-8")
    console = table_console()
    console.width = max(console.width, TABLE_WIDTH)
    for group in (DRAWN, WORLDS["real"]):
        if some := [world for world in group if world in worlds]:
            console.print(table_of(some, list(kept.values())))


def _key(record: Record) -> tuple[Any, ...]:
    return tuple(record[name] for name in ("seed", "world", "w", "learner"))


if __name__ == "__main__":
    main()
