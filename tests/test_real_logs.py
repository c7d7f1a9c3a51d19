"""Real logs, with values that other implementations gave. The logs may not ship: skipped where they are not."""

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import polars as pl
import pytest

RunPosbias = Callable[..., CompletedProcess[str]]

YANDEX_PROPENSITIES = [1, 0.720, 0.599, 0.497, 0.375, 0.326, 0.303, 0.245, 0.256, 0.241]
YANDEX_ERRORS = [0, 0.0641, 0.0812, 0.0578, 0.0747, 0.0844, 0.0930, 0.1156, 0.1752, 0.1940]
YANDEX_LAST_INTERVAL = (0.138, 0.420)

# PyClick's position-based model: 50 iterations, both priors worth 2 impressions of mean 0.5.
PYCLICK_EXAMINATION = [
    0.8111968979698991,
    0.5591595000160118,
    0.4635114515146113,
    0.3858843422438791,
    0.2931764952817315,
    0.2595037711148582,
    0.24201520390913392,
    0.1959917004675364,
    0.204440946550151,
    0.19010272097678382,
]
LIKE_PYCLICK = (
    *("--method", "joint", "--examination-prior", "0.5:2", "--attractiveness-prior", "0.5:2"),
    *("--max-iterations", "50", "--tolerance", "0", "--no-acceleration"),
)


@pytest.fixture(scope="module")
def yandex(shared_data: Path) -> Path:
    """Return the Yandex log."""
    return shared_data / "yandex_web_search.parquet"


def fitted(run: CompletedProcess[str], folder: Path, *exit_codes: int) -> pl.DataFrame:
    assert run.returncode in exit_codes, run.stderr
    return pl.read_parquet(folder / "propensities.parquet")


@pytest.mark.slow
def test_yandex_propensities_errors_and_interval_are_those_of_an_independent_implementation(
    yandex: Path, run_in_process: RunPosbias, tmp_path: Path
) -> None:
    run = run_in_process("fit", yandex, "-o", tmp_path / "fit")
    table = fitted(run, tmp_path / "fit", 0)

    assert table["position"].to_list() == list(range(1, 11))
    np.testing.assert_allclose(table["propensity"], YANDEX_PROPENSITIES, atol=1e-3)
    np.testing.assert_allclose(table["std_error"], YANDEX_ERRORS, atol=0.5e-4)
    assert table.select("ci_low", "ci_high").row(-1) == pytest.approx(YANDEX_LAST_INTERVAL, abs=0.5e-3)
    assert table.select("ci_low", "ci_high").row(0) == (1, 1)
    assert "as wide as with 4 queries of equal size" in " ".join(run.stderr.split())


@pytest.mark.slow
def test_yandex_user_browsing_cells_are_all_identified_and_one_is_seen_more_than_the_first(
    yandex: Path, run_in_process: RunPosbias, tmp_path: Path
) -> None:
    run = run_in_process("fit", yandex, "--model", "ubm", "-o", tmp_path / "fit")
    table = fitted(run, tmp_path / "fit", 0)
    assert "Position matters less for popular results than for others" in run.stderr

    assert table.height == 55
    assert table["identified"].all()
    assert table["propensity"].null_count() == 0
    assert table.filter(position=9, previous_click=8)["propensity"].item() > 1
    assert table["examination"].to_numpy().max() == pytest.approx(1)


def test_joint_em_is_pyclicks_to_9_digits(yandex: Path, run_in_process: RunPosbias, tmp_path: Path) -> None:
    run = run_in_process("fit", yandex, *LIKE_PYCLICK, "-o", tmp_path / "fit")
    table = fitted(run, tmp_path / "fit", 1)  # 1: 50 iterations are not convergence

    np.testing.assert_allclose(table["examination"], PYCLICK_EXAMINATION, atol=1e-9)
    assert "ran for the requested 50 iterations" in " ".join(run.stderr.split())
    assert table["std_error"].null_count() == table.height


@pytest.mark.slow
def test_yandex_weights_of_a_session_are_1_by_the_propensity_of_its_clicks(
    yandex: Path, run_in_process: RunPosbias, tmp_path: Path
) -> None:
    run = run_in_process("run", yandex, "--layout", "session", "-o", tmp_path / "run")
    table = fitted(run, tmp_path / "run", 0)
    rows = pl.concat(pl.read_parquet(part) for part in (tmp_path / "run" / "training" / "rows").glob("*.parquet"))

    log = pl.read_parquet(yandex).join(table.select("position", "propensity"), on="position")
    expected = log.with_columns(weight=pl.when(pl.col("click") == 1).then(1 / pl.col("propensity")).otherwise(1.0))
    keys = ["session", "position"]
    assert rows.height == log.height
    np.testing.assert_allclose(rows.sort(keys)["weight"], expected.sort(keys)["weight"], rtol=1e-12)


@pytest.mark.parametrize("policy", ["random", "bts"])
@pytest.mark.slow
def test_where_no_position_effect_shows_every_interval_contains_1(
    policy: str, shared_data: Path, run_in_process: RunPosbias, tmp_path: Path
) -> None:
    log = pl.read_parquet(shared_data / "open_bandit_zozo.parquet").filter(pl.col("policy") == policy)
    log.write_parquet(tmp_path / "log.parquet")
    words = ("--query", "campaign", "--doc", "item_id", "-o", tmp_path / "fit")
    table = fitted(run_in_process("fit", tmp_path / "log.parquet", *words), tmp_path / "fit", 0, 1)

    known = table.drop_nulls(["ci_low", "ci_high"])
    assert table["position"].to_list() == [1, 2, 3]
    assert (known["ci_low"] <= 1).all()
    assert (known["ci_high"] >= 1).all()


@pytest.mark.slow
def test_open_bandit_as_a_whole_shows_no_position_effect(
    shared_data: Path, run_in_process: RunPosbias, tmp_path: Path
) -> None:
    words = ("--query", "campaign", "--doc", "item_id", "-o", tmp_path / "fit")
    table = fitted(
        run_in_process("fit", shared_data / "open_bandit_zozo.parquet", *words), tmp_path / "fit", 0, 1
    ).drop_nulls(["ci_low", "ci_high"])

    assert table.height > 1
    assert (table["ci_low"] <= 1).all()
    assert (table["ci_high"] >= 1).all()
