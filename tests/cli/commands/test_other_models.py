"""A fit whose model the clicks contradict says which other click model predicts them."""

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import polars as pl
import pytest

from posbias.core.browsing.batch import PageBatch
from posbias.core.models import get_click_model
from posbias.core.simulation.options import SimulationOptions
from posbias.core.simulation.simulate import simulate

RunPosbias = Callable[..., CompletedProcess[str]]
N_POSITIONS = 8
WORLD = SimulationOptions(
    n_sessions=12_000, n_queries=60, docs_per_query=12, n_positions=N_POSITIONS, ranker_strength=1.0, seed=5
)
SHARED = {
    "continuation": 0.9,
    "continuation_after_skip": 0.9,
    "continuation_after_irrelevant_click": 0.8,
    "continuation_after_relevant_click": 0.2,
}


def log_of(name: str, path: Path) -> Path:
    """A log whose ranker follows attractiveness, with the clicks of a model."""
    rng, model = np.random.default_rng(1), get_click_model(name)
    simulated = simulate(WORLD)
    truth = simulated.attractiveness.with_row_index("unit")
    rows = simulated.log.join(truth, on=["query", "doc"], how="left", maintain_order="left")
    shape = rows.height // N_POSITIONS, N_POSITIONS
    n_units = truth.height
    parameters = {
        "attractiveness": np.append(np.clip(truth["attractiveness"].to_numpy(), 0.02, 0.9), 0.5),
        "satisfaction": rng.uniform(0.2, 0.9, n_units + 1),
        "examination": 1 / np.maximum(np.arange(N_POSITIONS + 1), 1.0),
    } | {key: np.array(value) for key, value in SHARED.items()}
    if name == "dcm":
        parameters["continuation"] = np.linspace(0.5, 0.9, N_POSITIONS + 1)
    pages = PageBatch(
        unit=rows["unit"].cast(pl.Int64).to_numpy().reshape(shape),
        position=rows["position"].cast(pl.Int64).to_numpy().reshape(shape),
        click=np.zeros(shape, dtype=np.bool_),
        shown=np.ones(shape, dtype=np.bool_),
        weight=np.ones(shape[0]),
    )
    clicks = model.sample(parameters, pages, rng)
    columns = ("session", "query", "doc", "position")
    rows.select(*columns, click=pl.Series(clicks.ravel().astype(np.int8))).write_parquet(path)
    return path


@pytest.mark.parametrize("name", ["cm", "dcm", "ccm", "dbn", "sdbn"])
@pytest.mark.slow_after(1)
def test_a_position_based_fit_of_a_cascade_does_not_pass_in_silence(
    name: str, tmp_path: Path, run_in_process: RunPosbias
) -> None:
    result = run_in_process("fit", log_of(name, tmp_path / "log.parquet"), "-o", tmp_path / "fit")
    assert result.returncode == 1
    found = json.loads((tmp_path / "fit" / "manifest.json").read_text())["other_models"]
    models = {model["name"]: model for model in found["models"]}
    gains = {model: entry["gain"] for model, entry in models.items()}
    best = found["models"][0]["name"]
    assert best in {"cm", "dcm", "ccm", "dbn", "sdbn"}  # of which some hold others as special cases
    assert gains[name] > max(gains[best] - 2 * models[best]["std_error"], 3 * models[name]["std_error"])
    assert f"{best} predicts held-out clicks best" in " ".join(result.stderr.split())


def test_a_position_based_fit_of_position_based_clicks_looks_at_no_other_model(
    tmp_path: Path, run_in_process: RunPosbias
) -> None:
    run_in_process("fit", log_of("pbm", tmp_path / "log.parquet"), "-o", tmp_path / "fit")
    manifest = json.loads((tmp_path / "fit" / "manifest.json").read_text())
    assert "other_models" not in manifest


def test_no_compare_looks_at_no_other_model(tmp_path: Path, run_in_process: RunPosbias) -> None:
    log = log_of("dbn", tmp_path / "log.parquet")
    run_in_process("fit", log, "--no-compare", "-o", tmp_path / "fit")
    assert "other_models" not in json.loads((tmp_path / "fit" / "manifest.json").read_text())
