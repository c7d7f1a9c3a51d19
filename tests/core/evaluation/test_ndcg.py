"""NDCG by judgments: that of trec_eval, through ir_measures."""

from importlib import import_module
from typing import Any

import numpy as np
import polars as pl
import pytest

from posbias.core.evaluation.clicked import RANKING, SCORE, ndcg_by_query, rank_lists

ir_measures: Any = import_module("ir_measures")


@pytest.fixture(scope="module")
def judgments() -> pl.DataFrame:
    """Graded judgments: some below 0, a query without relevant ones, some documents that no list has."""
    rng = np.random.default_rng(0)
    rows = [(f"q{query}", f"d{doc}", float(rng.integers(-1, 4))) for query in range(6) for doc in range(12)]
    rows += [("q6", f"d{doc}", 0.0) for doc in range(3)] + [("q7", "d1", 1.0)]
    return pl.DataFrame(rows, schema=["query", "doc", "relevance"], orient="row")


@pytest.mark.parametrize("depth", [1, 5, 10, 100])
def test_ndcg_is_that_of_ir_measures(judgments: pl.DataFrame, depth: int) -> None:
    rng = np.random.default_rng(1)
    rows = [(f"q{q}", f"d{doc}", float(rng.integers(0, 5))) for q in range(7) for doc in rng.permutation(20)[:15]]
    run = pl.DataFrame(rows, schema=["query", "doc", "score"], orient="row")
    lists = rank_lists(run.select(pl.lit(1, pl.UInt16).alias(RANKING), "query", "doc", pl.col("score").alias(SCORE)))
    found = ndcg_by_query(lists, judgments, 2, depth)
    qrels = [ir_measures.Qrel(q, d, int(r)) for q, d, r in judgments.rows()]
    theirs = [ir_measures.ScoredDoc(q, d, s) for q, d, s in run.rows()]
    expected = {
        entry.query_id: entry.value for entry in ir_measures.iter_calc([ir_measures.nDCG @ depth], qrels, theirs)
    }
    assert dict(found.iter_rows()) == pytest.approx(expected, abs=1e-12)
    assert found["1"].mean() == pytest.approx(
        ir_measures.calc_aggregate([ir_measures.nDCG @ depth], qrels, theirs)[ir_measures.nDCG @ depth]
    )
