"""`simulate --model M`, then `evaluate --models`: the model that drew the clicks predicts the held-out ones best."""

import json
from collections.abc import Callable
from subprocess import CompletedProcess

import pytest

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


@pytest.mark.parametrize(
    ("model", "rivals"),
    [
        ("dbn", "sdbn,dcm,ubm,pbm"),
        ("dcm", "sdbn,ubm,pbm"),
        ("ccm", "sdbn,dcm,ubm,pbm"),
        ("tpbm", "pbm,ubm,dbn"),
        ("dctr", "rctr,gctr,cm,sdbn"),
        ("rctr", "gctr,dctr,pbm,ubm"),
        ("rdctr", "dctr,rctr,pbm,ubm"),
        ("gctr", "cm,dcm,sdbn"),
        ("cm", "pbm,dctr,ubm"),
        ("sdbn", "dcm,ccm,ubm,pbm"),
        ("pbm", "dctr,rctr,sdbn,dbn"),
        ("ubm", "pbm,dcm,dbn,sdbn"),
    ],
)
@pytest.mark.slow_after(1)
def test_the_model_that_drew_the_clicks_predicts_them_best(run_in_process: RunPosbias, model: str, rivals: str) -> None:
    world = FEW_CELLS if model == "rdctr" else WORLD
    assert run_in_process("simulate", *world, "--model", model, "-o", "sim").returncode == 0
    judged = run_in_process("evaluate", "sim/log.parquet", "--models", f"{rivals},{model}", "-o", "judged", "--json")
    models = [row["model"] for row in json.loads(judged.stdout)["models"]]

    assert sorted(models) == sorted([model, *rivals.split(",")])
    assert models[0] == model
