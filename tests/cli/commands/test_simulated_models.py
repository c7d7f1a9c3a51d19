"""`simulate --model M`, then `evaluate --models`: the model that drew the clicks predicts the held-out ones best."""

import json
from collections.abc import Callable
from subprocess import CompletedProcess

import pytest

from posbias.core.models import click_model_names

RunPosbias = Callable[..., CompletedProcess[str]]
WORLD = ("--sessions", "10000", "--queries", "50", "--docs-per-query", "12", "--attractiveness", "2:2")
FEW_CELLS = (
    "--sessions",
    "10000",
    "--queries",
    "5",
    "--attractiveness",
    "2:2",
)  # a rate each for a document and position


AT_RANDOM = (*WORLD, "--ranker-strength", "0")  # else most documents stand at few positions, and p and q are not told
ALL = click_model_names()
WIDER = {
    "gctr": set(ALL) - {"cm"},
    "rctr": {"pbm", "ubm", "tpbm", "rdctr"},
    "dctr": {"pbm", "ubm", "tpbm", "dcm", "ccm", "dbn", "sdbn", "rdctr"},
    "pbm": {"ubm", "tpbm", "rdctr"},
    "tpbm": {"rdctr"},
    "cm": {"dcm", "ccm", "dbn", "sdbn", "ubm"},
    "sdbn": {"dbn"},
}
"""Models that hold the one that drew the clicks as a special case: they may come out even, and not better."""


@pytest.mark.parametrize(
    "model", ["dbn", "pbm", "ubm", "dcm", "ccm", "tpbm", "dctr", "rctr", "rdctr", "gctr", "cm", "sdbn"]
)
@pytest.mark.slow_after(1)
def test_the_model_that_drew_the_clicks_predicts_them_best_of_all(run_in_process: RunPosbias, model: str) -> None:
    world = {"rdctr": FEW_CELLS, "tpbm": AT_RANDOM}.get(model, WORLD)
    assert run_in_process("simulate", *world, "--model", model, "-o", "sim").returncode == 0
    judged = run_in_process("evaluate", "sim/log.parquet", "--models", "all", "-o", "judged", "--json")
    rows = {row["model"]: row for row in json.loads(judged.stdout)["models"]}

    assert sorted(rows) == sorted(ALL)
    above = {name for name, row in rows.items() if row["log_likelihood"] > rows[model]["log_likelihood"]}
    assert above <= WIDER.get(model, set())
    assert not rows[model]["significant"]
