"""Results that come back on top for a user who clicked them: told by the user's column, and mended by first pages."""

import shlex
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from command_results import Run, manifest_of

from posbias.core.arrays.count_table import Flags, Floats, Integers

THETA: Floats = np.array([1.0, 0.7, 0.5, 0.4, 0.35, 0.3])
CODE = "clicked-results-return"


def log_of_users(*, comes_back: bool, seed: int = 1, n_pages: int = 6000) -> pl.DataFrame:
    """Pages of 400 users with three queries each; users differ in what they like."""
    rng, n_docs, n_shown = np.random.default_rng(seed), 9, len(THETA)
    likes = np.minimum(0.5 * rng.beta(1.2, 2, (30, 1, n_docs)) * np.exp(rng.normal(size=(1, 400, n_docs))), 0.95)
    user, score = rng.integers(0, 400, n_pages), rng.normal(size=(30, n_docs))
    query = rng.integers(0, 30, (400, 3))[user, rng.integers(0, 3, n_pages)]
    liked, docs, clicks = np.zeros((30, 400, n_docs)), list[Integers](), list[Flags]()
    for q, u in zip(query, user, strict=True):
        shown = np.argsort(-score[q] - 0.7 * rng.normal(size=n_docs) - 10 * comes_back * liked[q, u])[:n_shown]
        clicked = rng.random(n_shown) < THETA * likes[q, u, shown]
        liked[q, u, shown[clicked]] = 1
        docs.append(shown)
        clicks.append(clicked)
    page, position = np.divmod(np.arange(n_pages * n_shown), n_shown)
    columns = {"session": page, "user": user[page], "query": query[page], "doc": np.concatenate(docs)}
    log = pl.DataFrame({**columns, "position": position + 1, "click": np.concatenate(clicks).astype(np.int8)})
    return log.with_columns(time=pl.datetime(2026, 1, 5) + pl.duration(minutes=pl.col("session")))


def fitted(run: Run, folder: Path, *words: str) -> tuple[dict[str, dict[str, str]], Floats]:
    """The reasons of a fit by their code, and its propensities."""
    run("fit", "log.parquet", *words, "--no-compare", "-o", "out", "--force")
    reasons = {reason["code"]: reason for reason in manifest_of(folder / "out")["reasons"]}
    return reasons, pl.read_parquet(folder / "out" / "propensities.parquet")["propensity"].to_numpy()


@pytest.mark.slow
def test_results_that_return_for_who_clicked_them_stop_and_the_first_pages_give_the_truth(
    run_in_process: Run, tmp_path: Path
) -> None:
    log_of_users(comes_back=True).write_parquet(tmp_path / "log.parquet")

    reasons, wrong = fitted(run_in_process, tmp_path)
    words = shlex.split(reasons[CODE]["sentence"].partition("alone: ")[2].removesuffix("."))
    mended, right = fitted(run_in_process, tmp_path, *words)

    assert reasons[CODE]["severity"] == "stop"
    assert (wrong[1:] < 0.9 * THETA[1:]).all()
    assert CODE not in mended
    assert np.median(np.abs(right / THETA - 1)) < 0.1


@pytest.mark.parametrize("times", [True, False])
@pytest.mark.slow_after(1)
def test_users_whose_pages_do_not_follow_their_clicks_are_no_fault(
    run_in_process: Run, tmp_path: Path, *, times: bool
) -> None:
    log = log_of_users(comes_back=False, n_pages=3000)
    (log if times else log.drop("time")).write_parquet(tmp_path / "log.parquet")

    assert CODE not in fitted(run_in_process, tmp_path)[0]


@pytest.mark.slow
def test_pages_that_were_exported_twice_are_no_returning_results(run_in_process: Run, tmp_path: Path) -> None:
    log = log_of_users(comes_back=False).with_columns(user=pl.col("session") % 1000)
    pl.concat([log, log]).write_parquet(tmp_path / "log.parquet")

    assert CODE not in fitted(run_in_process, tmp_path, "--duplicate-docs", "first")[0]
