"""Yandex's web search without features: what the first half of each query's pages says of the clicks in the second.

Propensities, attractiveness and factors are those of `posbias fit` and `train` on the first half. "Log-likelihood" is
that of the later clicks per impression, with theta times what is said of the document; "IPS-DCG" is that of the later
pages, were they ordered by it, per page, clicks over theta. Pairs that the first half does not show are left out.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
from processes import POSBIAS
from value_worlds import DATA

YANDEX = DATA / "yandex_web_search.parquet"
_PAIR = ["query", "doc"]
_TINY = 1e-6

TRAINED = {
    "factors": ("factors",),
    "factors, --regularization 1": ("factors", "--regularization", "1"),
    "mf": ("mf",),
}


def later_clicks() -> Iterator[tuple[str, float | None, float, float]]:
    """What is said of the documents, log-likelihood per impression, IPS-DCG, and the share of impressions judged."""
    log = pl.read_parquet(YANDEX)
    pages = log.select("query", "session").unique(maintain_order=True)
    half = pages.with_columns(late=pl.int_range(pl.len()).over("query") >= pl.len().over("query") // 2)
    log = log.join(half, on=["query", "session"], maintain_order="left")
    early, late = log.filter(~pl.col("late")).drop("late"), log.filter("late")
    with tempfile.TemporaryDirectory(prefix="yandex-") as name:
        folder = Path(name)
        early.write_parquet(folder / "early.parquet")
        _posbias(folder, "fit", "-o", "fit")
        theta = pl.read_parquet(folder / "fit" / "propensities.parquet").select("position", theta="propensity")
        known = late.join(theta, on="position").with_columns(pl.col("position").cast(pl.Int64))
        for said, (gamma, is_probability) in _said(folder, early).items():
            judged = known.join(gamma.cast({"doc": known.schema["doc"]}), on=_PAIR)
            judged = judged.sort("session", "query", "position")
            share = judged.height / late.height
            yield said, _likelihood(judged) if is_probability else None, _dcg(judged), share


def _said(folder: Path, early: pl.DataFrame) -> dict[str, tuple[pl.DataFrame, bool]]:
    """What is said of each document, `query`, `doc`, `gamma`, and whether it is a probability of clicks if examined."""
    pairs = early.select(_PAIR).unique(maintain_order=True)
    fitted = pl.read_parquet(folder / "fit" / "attractiveness.parquet")
    rate = early.group_by(_PAIR).agg(gamma=pl.col("click").mean())
    found = {
        "one for all": (pairs.with_columns(gamma=pl.lit(fitted["attractiveness"].mean())), True),
        "click rate": (rate, True),
        "posterior mean": (fitted.select(*_PAIR, gamma="attractiveness"), True),
    }
    for name, (learner, *more) in TRAINED.items():
        theta = () if learner == "mf" else ("--propensities", "fit")
        _posbias(folder, "train", *theta, "--learner", learner, *more, "-o", name)
        scores = pl.read_parquet(folder / name / "scores.parquet")
        probability = scores["attractiveness"].null_count() == 0
        found[name] = scores.select(*_PAIR, gamma="attractiveness" if probability else "score"), probability
    return found


def _posbias(folder: Path, command: str, *words: str) -> None:
    done = subprocess.run(
        (sys.executable, *POSBIAS, command, "early.parquet", *words, "--quiet"),
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode not in {0, 1}:
        raise RuntimeError(done.stderr)


def _likelihood(rows: pl.DataFrame) -> float:
    chance = np.clip(rows["theta"].to_numpy() * rows["gamma"].to_numpy(), _TINY, 1 - _TINY)
    return float(np.where(rows["click"].to_numpy() > 0, np.log(chance), np.log1p(-chance)).mean())


def _dcg(rows: pl.DataFrame) -> float:
    rank = pl.col("gamma").rank("ordinal", descending=True).over("session", "query")
    gains = rows.select(gain=pl.col("click") / pl.col("theta"), rank=rank)
    pages = rows.select(pl.struct("session", "query").n_unique()).item()
    return float((gains["gain"].to_numpy() / np.log2(gains["rank"].to_numpy() + 1)).sum() / pages)
