"""What is made of a fit with `--cell`: weights, plans, comparisons, predictions."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from command_results import Output, invoke, manifest_of
from workshop import RunPosbias as Run

from posbias.core.arrays.count_table import Floats

N_POSITIONS, N_DOCS, N_QUERIES = 5, 8, 30
THETA = 1.0 / np.arange(1, N_POSITIONS + 1)
UNDER_BLOCK = THETA * np.linspace(0.45, 0.95, N_POSITIONS)


def blocks(seed: int, n_pages: int, under_block: Floats = UNDER_BLOCK) -> tuple[pl.DataFrame, Floats]:
    """Pages with a block above that moves documents, on 10 to 70 % of those of a query; and their attractiveness."""
    rng = np.random.default_rng(seed)
    gamma = rng.uniform(0.2, 0.9, (N_QUERIES, N_DOCS))
    query, share = rng.integers(0, N_QUERIES, n_pages), np.linspace(0.1, 0.7, N_QUERIES)
    block = rng.random(n_pages) < share[query]
    liked = np.where(block[:, np.newaxis], np.arange(N_DOCS), -np.arange(N_DOCS)) * 0.4
    shown = np.argsort(-(liked + rng.gumbel(size=(n_pages, N_DOCS))), axis=1)[:, :N_POSITIONS]
    examined = np.where(block[:, np.newaxis], under_block, THETA)
    click = rng.random(shown.shape) < examined * gamma[query[:, np.newaxis], shown]
    page = np.arange(n_pages).repeat(N_POSITIONS)
    log = pl.DataFrame({"session": page, "query": query[page], "doc": shown.ravel()}).with_columns(
        position=pl.Series(np.tile(np.arange(1, N_POSITIONS + 1), n_pages)),
        click=pl.Series(click.ravel().astype(np.int8)),
        block=pl.Series(np.where(block[page], "answer", "none")),
    )
    return log, gamma


def grid_of(log: pl.DataFrame) -> pl.DataFrame:
    return log.with_columns(row=(pl.col("position") - 1) // 2, column=(pl.col("position") - 1) % 2 + 1)


def true_weight() -> pl.Expr:
    theta = pl.Series(np.concatenate([THETA, UNDER_BLOCK]))
    at = pl.col("position") - 1 + N_POSITIONS * (pl.col("block") == "answer")
    return 1 / pl.lit(theta).gather(at)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a log, its fit, and the true propensities as a table."""
    folder = tmp_path_factory.mktemp("blocks")
    log, _ = blocks(1, 5_000)
    log.write_parquet(folder / "log.parquet")
    rows = [("none", THETA), ("answer", UNDER_BLOCK)]
    pl.concat(
        pl.DataFrame({"position": range(1, N_POSITIONS + 1), "block": block, "propensity": theta})
        for block, theta in rows
    ).write_csv(folder / "own.csv")
    words = ("--cell", "block", "--timestamp", "none", "--no-compare", "--quiet")
    invoke("fit", folder / "log.parquet", *words, "-o", folder / "fit")
    return folder


def test_weights_are_on_one_scale_and_pages_carry_the_number_of_the_cell(
    run_in_process: Run, place: Path, tmp_path: Path
) -> None:
    words = ("weight", place / "log.parquet", "--propensities", place / "fit", "--layout", "session")
    run_in_process(*words, "-o", "pages", code=0)
    log = pl.read_parquet(place / "log.parquet").select("session", "position", "block")
    rows = Output(tmp_path / "pages").training.join(log, on=["session", "position"])
    table = Output(place / "fit").propensities.with_row_index("row", 1)
    joined = rows.join(table, on=["position", "block"], suffix="_of_fit")
    assert (joined["cell_number"] == joined["row"]).all()
    assert joined["propensity"].equals(joined["propensity_of_fit"], null_equal=False)
    clicked = joined.filter(pl.col("click") == 1)
    np.testing.assert_allclose(clicked["weight"], 1 / clicked["propensity"])
    assert clicked.filter(position=1, block="answer")["weight"].mean() == pytest.approx(1 / 0.45, rel=0.2)
    assert "contexts-on-own-scales" not in {reason["code"] for reason in manifest_of(tmp_path / "pages")["reasons"]}


def test_lightgbm_has_a_position_for_each_cell(run_in_process: Run, place: Path, tmp_path: Path) -> None:
    log = pl.read_parquet(place / "log.parquet").filter(pl.col("session") < 300).with_columns(width=pl.col("doc"))
    log.write_parquet(tmp_path / "log.parquet")
    words = ("--propensities", place / "own.csv", "--cell", "block", "--layout", "session", "--feature", "width")
    run_in_process("weight", "log.parquet", *words, "--format", "lightgbm", "-o", "out")
    numbers = list(map(int, (tmp_path / "out" / "training" / "positions.txt").read_text().split()))
    expected = Output(tmp_path / "out").training["position"] + N_POSITIONS * (log["block"] == "answer").cast(pl.Int32)
    assert numbers == expected.to_list()


@pytest.mark.parametrize("counted", [False, True])
def test_a_table_of_ones_own_weighs_by_cell(run_in_process: Run, place: Path, tmp_path: Path, *, counted: bool) -> None:
    log, words = place / "log.parquet", ("--propensities", place / "own.csv")
    if counted:
        run_in_process("collect", log, "--cell", "block", "-o", "store", code=0)
        run_in_process("weight", "store", *words, "-o", "out")
    else:
        run_in_process("weight", log, *words, "--cell", "block", "-o", "out")
    weighed = pl.read_parquet(log).filter(pl.col("click") == 1).group_by("query", "doc").agg(true_weight().sum())
    clicked = Output(tmp_path / "out").training.filter(label=1).sort("query", "doc")
    np.testing.assert_allclose(clicked["weight"], weighed.sort("query", "doc")["literal"])


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("command", ["fit", "collect"])
def test_fits_and_statistics_are_compared_cell_by_cell(command: str, run_in_process: Run, tmp_path: Path) -> None:
    weaker = np.where(np.arange(N_POSITIONS) < 1, UNDER_BLOCK / 2, UNDER_BLOCK)
    for seed, name, under in ((5, "a", UNDER_BLOCK), (6, "b", weaker)):
        log, _ = blocks(seed, 4_000, under)
        log.write_parquet(tmp_path / f"{name}.parquet")
        words = ("--cell", "block", "--quiet", *(() if command == "collect" else ("--timestamp", "none")))
        run_in_process(command, f"{name}.parquet", *words, "-o", name)
    run_in_process("compare", "a", "b", "-o", "compared", code=0)
    table = pl.read_parquet(tmp_path / "compared" / "comparison.parquet")
    changed = table.filter(pl.col("p_value_joint") < 0.01)
    assert changed.select("position", "block").rows() == [(1, "answer")]
    assert changed["ratio"].item() == pytest.approx(0.5, rel=0.15)
    same = manifest_of(tmp_path / "compared")["comparison"]
    assert same["test"]["contrasts"] == 2 * N_POSITIONS - 1


@pytest.mark.slow
def test_a_swap_is_of_two_positions_under_the_same_block(place: Path, run_in_process: Run, tmp_path: Path) -> None:
    run_in_process("explore", place / "fit", "--pages", "5000", "-o", "plan", code=0)
    widths = pl.read_parquet(tmp_path / "plan" / "widths.parquet")
    assert (
        widths.select("position", "block").rows()
        == Output(place / "fit").propensities.select("position", "block").rows()
    )
    twice = widths.filter(pl.col("width") > 0)
    ratio = (twice["width_without_swaps"] / twice["width"]).to_numpy()  # of twice as many pages
    assert np.median(ratio) == pytest.approx(0.5**0.5, abs=0.04)
    said = manifest_of(tmp_path / "plan")["next"]
    assert "--cell block" in said


@pytest.mark.slow
@pytest.mark.parametrize("learner", ["pbm", "dla", "pal-product", "regression-em"])
def test_a_ranker_learns_what_documents_are_worth_whatever_block_stood_above(
    learner: str, place: Path, run_in_process: Run, tmp_path: Path
) -> None:
    _, gamma = blocks(1, 5_000)
    worth = pl.DataFrame({"query": np.repeat(np.arange(N_QUERIES), N_DOCS), "worth": gamma.ravel()})
    worth.insert_column(1, pl.Series("doc", np.tile(np.arange(N_DOCS), N_QUERIES)))
    worth.write_parquet(tmp_path / "features.parquet")
    words = ("train", place / "log.parquet", "--features", "features.parquet", "--learner", learner)
    run_in_process(*words, "--propensities", place / "fit", "-o", "ranker", code=0)
    scores = pl.read_parquet(tmp_path / "ranker" / "scores.parquet").join(worth, on=["query", "doc"])
    assert scores.select(pl.corr("score", "worth", method="spearman")).item() > 0.9
    if learner == "pbm":
        learnt = 1 / (1 + np.exp(-scores["score"].to_numpy()))
        assert np.abs(np.log(learnt / scores["worth"].to_numpy())).mean() < 0.08
    elif learner != "dla":  # which compares positions of one page
        own = pl.read_parquet(tmp_path / "ranker" / "learned_propensities.parquet").sort("block", "position")
        theta = own["propensity"].to_numpy()
        assert theta[0] / theta[N_POSITIONS] == pytest.approx(0.45, abs=0.12)


@pytest.mark.slow
def test_a_ranking_is_examined_under_the_blocks_that_pages_of_each_query_have(
    place: Path, run_in_process: Run, tmp_path: Path
) -> None:
    log, gamma = blocks(1, 5_000)
    worth = pl.DataFrame({"query": np.repeat(np.arange(N_QUERIES), N_DOCS), "score": gamma.ravel()})
    worth.insert_column(1, pl.Series("doc", np.tile(np.arange(N_DOCS), N_QUERIES)))
    worth.with_columns(pl.when(pl.col("query") < N_QUERIES // 2).then("score").otherwise(-pl.col("score"))).write_csv(
        tmp_path / "scores.csv"
    )
    words = ("predict", place / "log.parquet", "--propensities", place / "fit", "--timestamp", "none")
    run_in_process(*words, "--scores", "scores.csv", "-o", "predicted", code=0)
    pages = log.group_by("query", "block").agg(pl.col("session").n_unique()).sort("query", "block")
    best = -np.sort(-gamma, axis=1)
    best[N_QUERIES // 2 :] = np.sort(gamma, axis=1)[N_QUERIES // 2 :]
    there = {name: best[:, :N_POSITIONS] @ theta for name, theta in (("none", THETA), ("answer", UNDER_BLOCK))}
    clicks = sum(n * there[block][query] for query, block, n in pages.rows())
    shown = log.join(worth, on=["query", "doc"], maintain_order="left")
    expected = shown.select((pl.col("score") / true_weight()).sum()).item()
    of_ranking = pl.read_parquet(tmp_path / "predicted" / "predictions.parquet").row(0, named=True)
    assert of_ranking["ci_low"] < (clicks - expected) / 5_000 < of_ranking["ci_high"]
    assert of_ranking["difference"] == pytest.approx((clicks - expected) / 5_000, abs=0.02)


def test_rankings_are_judged_by_clicks_that_are_weighed_by_cell(
    place: Path, run_in_process: Run, tmp_path: Path
) -> None:
    log = pl.read_parquet(place / "log.parquet").with_columns(score=(pl.col("doc") * 7 + pl.col("query")) % N_DOCS)
    log.select("query", "doc", "score").unique().write_csv(tmp_path / "scores.csv")
    words = ("evaluate", place / "log.parquet", "--propensities", place / "own.csv", "--cell", "block")
    run_in_process(*words, "--scores", "scores.csv", "-o", "judged")
    rank = pl.col("score").rank("ordinal", descending=True).over("session")
    gain = log.select((pl.col("click") * true_weight() / (rank + 1).log(2)).sum() / pl.col("session").n_unique()).item()
    metrics = pl.read_parquet(tmp_path / "judged" / "metrics.parquet")
    ours = metrics.filter(metric="dcg", estimator="ips", ranking="scores")
    assert ours["value"].item() == pytest.approx(gain)


@pytest.mark.slow
def test_a_position_that_several_lists_have_is_no_rank(run_in_process: Run, tmp_path: Path) -> None:
    log, _ = blocks(1, 600)
    grid_of(log).drop("position").rename({"column": "position"}).write_parquet(tmp_path / "log.parquet")
    words = ("log.parquet",)
    run_in_process("fit", *words, "--cell", "row", "--no-compare", "-o", "fit", code=0)
    log.select("query", "doc", score="doc").unique().write_csv(tmp_path / "scores.csv")
    words = (*words, "--propensities", "fit", "--scores", "scores.csv", "-o", "out")
    for command in (("predict",), ("evaluate", "--candidates", "query")):
        done = run_in_process(*command, *words, code=2)
        assert "a page has 3 results at position 1, in several cells (row)" in " ".join(done.stderr.split())
    named = pl.col("row").cast(pl.String)  # as lists whose order on the page is not known
    grid_of(log).drop("position").rename({"column": "position"}).with_columns(named).write_parquet(
        tmp_path / "log.parquet"
    )
    run_in_process("fit", *words[:1], "--cell", "row", "--no-compare", "-o", "fit", "--force", code=0)
    run_in_process("evaluate", *words, code=2)


@pytest.mark.slow
def test_swaps_of_a_grid_are_of_places_of_the_page(run_in_process: Run, tmp_path: Path) -> None:
    log, _ = blocks(1, 600)
    grid_of(log).write_parquet(tmp_path / "log.parquet")
    words = ("fit", "log.parquet", "--timestamp", "none", "--cell", "row", "--cell", "column", "--no-compare")
    run_in_process(*words, "--cell-form", "free", "--position", "position", "-o", "fit")
    run_in_process("explore", "fit", "-o", "plan")
    swaps = pl.read_parquet(tmp_path / "plan" / "swaps.parquet")
    assert swaps.height == N_POSITIONS * (N_POSITIONS - 1) // 2
    unlike = swaps["std_error_after"].list.eval(pl.element().round(12)).n_unique()
    assert unlike == swaps.height  # each moves documents
    run_in_process(*words, "--cell-form", "product", "--position", "position", "-o", "product")
    done = run_in_process("explore", "product", "-o", "refused", code=2)
    assert "Swaps need --cell-form free" in " ".join(done.stderr.split())

    grid_of(log).drop("position").write_parquet(tmp_path / "log.parquet")
    run_in_process(*words, "--cell-form", "free", "-o", "lists", code=0)
    done = run_in_process("explore", "lists", "-o", "refused", code=2)
    assert "positions begin anew in each row" in " ".join(done.stderr.split())
