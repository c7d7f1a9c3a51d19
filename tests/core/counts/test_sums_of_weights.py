"""Sums of weights: the same to the last bit whatever the order of rows, in one bucket or several."""

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import polars as pl
import pytest

from posbias.core.counts.counting_plan import add_up_weights, count_weights

KEYS = ("query", "doc", "position")
WORLD = ("--sessions", "2000", "--queries", "15", "--docs-per-query", "6", "--positions", "5")


def rows(n: int = 5_000) -> pl.DataFrame:
    rng = np.random.default_rng(0)
    keys = {name: rng.integers(0, 4, n) for name in KEYS}
    return pl.DataFrame({**keys, "weight": rng.lognormal(0, 5, n), "click": rng.integers(0, 2, n)})


def test_the_order_of_rows_changes_no_bit() -> None:
    found = count_weights(rows().lazy(), KEYS)

    for seed in range(5):
        assert count_weights(rows().sample(fraction=1, shuffle=True, seed=seed).lazy(), KEYS).equals(found)
    by_hand = rows().group_by(KEYS).agg(pl.col("weight").sum()).sort(KEYS)["weight"]
    assert found["impressions"].to_numpy() == pytest.approx(by_hand.to_numpy(), rel=1e-12)
    assert found.select(KEYS).rows() == sorted(set(rows().select(KEYS).rows()))


def test_parts_add_up_to_the_same_in_any_order() -> None:
    parts = [count_weights(part.lazy(), KEYS) for part in rows().iter_slices(700)]

    assert add_up_weights(pl.concat(parts), KEYS).equals(add_up_weights(pl.concat(reversed(parts)), KEYS))


@pytest.mark.parametrize("model", ["pbm", "ubm"])
@pytest.mark.parametrize("layout", ["pointwise", "session"])
@pytest.mark.slow
def test_a_weighted_log_gives_the_same_bytes_in_any_order_and_in_any_buckets(
    run_in_process: Callable[..., CompletedProcess[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    layout: str,
) -> None:
    assert run_in_process("simulate", *WORLD, "-o", "sim").returncode == 0
    log = pl.read_parquet(tmp_path / "sim/log.parquet")
    log = log.with_columns(w=pl.Series(np.random.default_rng(1).lognormal(0, 1, log.height)))
    log.write_parquet(tmp_path / "log.parquet")
    log.sample(fraction=1, shuffle=True, seed=3).write_parquet(tmp_path / "shuffled.parquet", row_group_size=1_000)
    words = ("--weight-column", "w", "--model", model, "--layout", layout, "--no-compare")

    def tables(name: str, out: str) -> list[pl.DataFrame]:
        assert run_in_process("run", name, *words, "-o", out).returncode in {0, 1}
        names = ("propensities.parquet", "attractiveness.parquet")
        return [pl.read_parquet(tmp_path / out / name) for name in names]

    first, *others = [tables("log.parquet", "a"), tables("log.parquet", "b"), tables("shuffled.parquet", "c")]
    for other in others:
        assert all(one.equals(two) for one, two in zip(first, other, strict=True))
    monkeypatch.setattr("posbias.io.engines.engine.fewest_parts", lambda *_: 5)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    in_buckets = [tables("log.parquet", "d"), tables("shuffled.parquet", "e")]
    assert all(one.equals(two) for one, two in zip(*in_buckets, strict=True))
