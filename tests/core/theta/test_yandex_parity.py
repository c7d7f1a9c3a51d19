"""The numbers that the real web search log must give: published by PyClick, or found by independent implementations."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from small_logs import dense_table

from posbias.core.arrays.count_table import CountTable, Integers, Members, compress
from posbias.core.counts.sufficient_statistics import Strata
from posbias.core.standard_errors.cluster import cluster_errors
from posbias.core.theta.conditional import find_linkage, fit_conditional
from posbias.core.theta.joint import JointOptions, fit_joint

N_POSITIONS = 10
AS_PYCLICK = JointOptions(max_iterations=50, tolerance=0.0, accelerate=False)

# PyClick's PBM, positions 1 to 10.
PBM_EXAMINATION = [
    0.8111968979698991, 0.5591595000160118, 0.4635114515146113, 0.3858843422438791, 0.2931764952817315,
    0.2595037711148582, 0.24201520390913392, 0.1959917004675364, 0.204440946550151, 0.19010272097678382,
]  # fmt: skip

# PyClick's UBM (50 iterations), one row per position, the previous click from none to the position above.
UBM_EXAMINATION = [
    [0.8169362009325962],
    [0.489660610833718, 0.7119494792890394],
    [0.4041937256183743, 0.3031735577773976, 0.7000689968794134],
    [0.3461044859261775, 0.17422264921229313, 0.3367235000521108, 0.6664721402320927],
    [0.21220844419031823, 0.12804858452843054, 0.21080622898339677, 0.32155130230425394, 0.6236112830143327],
    [0.13651972982047222, 0.08899553545157068, 0.12414352451144801, 0.23469949818649932, 0.38922117697088776,
     0.7544672790484522],
    [0.11955629361877142, 0.06380913331679548, 0.10900284282184729, 0.1708302166923144, 0.2582265906052861,
     0.4375545500807317, 0.8751257856260777],
    [0.0818044597731613, 0.03726547925714156, 0.06886872758928686, 0.10430179719577581, 0.1581982701041904,
     0.26190290353513684, 0.46632915448474, 0.8497454507179035],
    [0.08259208654477619, 0.03689440372346839, 0.054245316957274685, 0.07497141012171445, 0.14675843661401533,
     0.2321274917635289, 0.3621557360895457, 0.5606923257826747, 0.9492120626089814],
    [0.06268399943447642, 0.03223278615397308, 0.04248811603300615, 0.07209693513505756, 0.08980770403305224,
     0.15326342860420275, 0.284906459299694, 0.36705855003697946, 0.5949470325698475, 0.9062915900768171],
]  # fmt: skip


@pytest.fixture(scope="module")
def log(shared_data: Path) -> pl.DataFrame:
    """Return the log with the cell of each impression: `pbm` and `ubm`, numbered from 0."""
    clicked = pl.when(pl.col("click") == 1).then(pl.col("position")).otherwise(0)
    before = clicked.shift(1, fill_value=0).over("session")
    return (
        pl.read_parquet(shared_data / "yandex_web_search.parquet")
        .with_columns(pl.col("position").cast(pl.Int64))
        .sort("session", "position")
        .with_columns(previous=before)
        .with_columns(previous=pl.col("previous").cum_max().over("session"))
        .with_columns(pbm=pl.col("position") - 1, ubm=ubm_cell(pl.col("position"), pl.col("previous")))
    )


def ubm_cell(position: pl.Expr, previous: pl.Expr) -> pl.Expr:
    return position * (position - 1) // 2 + previous


def counted(log: pl.DataFrame, cell: str, n_cells: int) -> tuple[CountTable, Integers]:
    """The counts per pair and cell, and the query of each pair."""
    log = log.with_columns(pair=pl.struct("query", "doc").rank("dense").cast(pl.Int64) - 1)
    rows = log.group_by("pair", cell).agg(n=pl.len(), c=pl.col("click").cast(pl.Int64).sum())
    counts = np.zeros((2, log["pair"].n_unique(), n_cells))
    at = rows["pair"].to_numpy(), rows[cell].to_numpy()
    counts[0][at] = rows["n"].to_numpy()
    counts[1][at] = rows["c"].to_numpy()
    query = log.group_by("pair").agg(pl.col("query").first()).sort("pair")["query"].rank("dense")
    return dense_table(counts[0], counts[1]), query.to_numpy().astype(np.int64)


@pytest.fixture(scope="module")
def positions(log: pl.DataFrame) -> tuple[CountTable, Integers]:
    """Return PBM's counts, and the query of each pair."""
    return counted(log, "pbm", N_POSITIONS)


@pytest.fixture(scope="module")
def browsing(log: pl.DataFrame) -> CountTable:
    """Return UBM's counts."""
    return counted(log, "ubm", N_POSITIONS * (N_POSITIONS + 1) // 2)[0]


def test_conditional_propensities_errors_and_interval(positions: tuple[CountTable, Integers]) -> None:
    pairs, query = positions
    table, signature = compress(pairs)
    linkage = find_linkage(table)
    fit = fit_conditional(table, linkage)
    errors = cluster_errors(fit, Strata(table, Members(signature, query)))
    theta = [1, 0.720, 0.599, 0.497, 0.375, 0.326, 0.303, 0.245, 0.256, 0.241]
    std_error = [0, 0.0641, 0.0812, 0.0578, 0.0747, 0.0844, 0.0930, 0.1156, 0.1752, 0.1940]
    np.testing.assert_allclose(fit.theta, theta, atol=1e-3)
    np.testing.assert_allclose(errors.std_error, std_error, atol=1e-4)
    np.testing.assert_allclose(errors.effective_clusters[1:], 4, atol=0.5)
    np.testing.assert_allclose([errors.low[9], errors.high[9]], [0.138, 0.420], atol=1e-3)
    assert fit.converged
    assert errors.n_clusters == 20


def test_all_cells_of_the_user_browsing_model_are_identified(browsing: CountTable) -> None:
    linkage = find_linkage(browsing)
    fit = fit_conditional(browsing, linkage)
    assert linkage.identified.all()
    assert fit.converged
    assert fit.theta[9 * 8 // 2 + 8] > 1


def test_fifty_plain_steps_are_pyclicks_pbm(positions: tuple[CountTable, Integers]) -> None:
    fit = fit_joint(compress(positions[0])[0], AS_PYCLICK)
    np.testing.assert_allclose(fit.examination, PBM_EXAMINATION, rtol=0, atol=1e-11)
    assert (fit.iterations, fit.evaluations, fit.converged) == (50, 50, False)


def test_fifty_plain_steps_are_pyclicks_ubm(browsing: CountTable) -> None:
    fit = fit_joint(compress(browsing)[0], AS_PYCLICK)
    np.testing.assert_allclose(fit.examination, np.concatenate(UBM_EXAMINATION), rtol=0, atol=1e-11)
