"""What a result says to a person: tables and sentences, from what has been computed."""

from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from posbias.core.estimators import Estimate
from posbias.core.fit import WANTED_CLICK_SHARE, Fit

_MOST_ROWS = 30
FEW_EFFECTIVE_CLUSTERS = 10


def rows_line(rows: dict[str, Any]) -> RenderableType:
    """What was read, and what was left out."""
    line = f"rows: {rows['read']:,} read"
    rejected: dict[str, int] = rows["rejected"]
    if rejected:
        reasons = ", ".join(f"{count:,} because {reason}" for reason, count in rejected.items())
        line += f", {sum(rejected.values()):,} left out ({reasons})"
    orphans = rows.get("clicks_without_impression", 0)
    return Text(line + (f"; {orphans:,} clicks without an impression" if orphans else ""))


def evidence_line(totals: dict[str, Any]) -> RenderableType:
    """What was counted."""
    return Text(
        f"log: {totals['impressions']:,.0f} impressions, {totals['clicks']:,.0f} clicks, {totals['queries']:,} queries, "
        f"{totals['pairs']:,} (query, doc) pairs, {totals['signatures']:,} of them different"
    )


def statistics_line(totals: dict[str, int | float]) -> RenderableType:
    """What was collected."""
    return Text(
        f"statistics: {totals['rows']:,} rows for {totals['impressions']:,.0f} impressions and {totals['clicks']:,.0f} clicks"
    )


def propensity_table(fit: Fit) -> RenderableType:
    """Propensities with their intervals, what joint EM says, and the evidence."""
    estimate = fit.estimate
    table = Table(title=f"propensities ({estimate.method}), relative to {_cell(fit, estimate.linkage.reference)}")
    columns = fit.propensities.columns[: fit.propensities.columns.index("impressions")]
    for name in (
        *columns,
        "impressions",
        "ctr",
        "propensity",
        "95 % interval",
        "joint EM",
        "linking clicks",
        "remark",
    ):
        table.add_column(name.replace("_", " "), justify="left" if name == "remark" else "right")
    for row in fit.propensities.head(_MOST_ROWS).iter_rows(named=True):
        table.add_row(
            *(str(row[name]) for name in columns),
            f"{row['impressions']:,.0f}",
            _number(row["ctr"]),
            _number(row["propensity"]),
            _interval(row["ci_low"], row["ci_high"]),
            _number(row["joint_propensity"]),
            f"{row['linking_clicks']:,.0f}",
            row["reason"] or "",
        )
    left = fit.propensities.height - _MOST_ROWS
    if left > 0:
        table.caption = f"... and {left} more cells in propensities.parquet"
    return table


def weights_line(summary: dict[str, float | int | None]) -> RenderableType:
    """What the weights do to the log."""
    size = summary["effective_sample_size"]
    clicks = summary["clicks_weighted"] or 0
    worth = f", worth {size:,.0f} equally weighted ones" if size is not None else ""
    clipped = summary["clicks_clipped"]
    return Text(f"weights: {clicks:,.0f} clicks weighted{worth}" + (f"; {clipped:,.0f} clipped" if clipped else ""))


def fit_warnings(fit: Fit) -> list[str]:
    """What a reader must know before acting on the propensities."""
    estimate = fit.estimate
    said: list[str] = []
    if not estimate.converged:
        said.append(
            f"{estimate.method} did not converge in {estimate.iterations} iterations: do not use these numbers. "
            "Raise --max-iterations."
        )
    if fit.joint is not None and fit.joint is not estimate and not fit.joint.converged:
        said.append(f"joint EM, for comparison, did not converge in {fit.joint.iterations} iterations.")
    if estimate.linkage.reference != 0:
        said.append(
            f"{_cell(fit, 0)} cannot be compared with other cells; propensities are relative to "
            f"{_cell(fit, estimate.linkage.reference)}."
        )
    lost = int((~estimate.linkage.identified).sum())
    if lost:
        said.append(
            f"{lost} of {len(estimate.linkage.identified)} cells are not identified (see `reason`): "
            f"no number is given for them. Identified cells hold {fit.click_share:.1%} of the clicks"
            + (", too few to rely on." if fit.click_share < WANTED_CLICK_SHARE else ".")
        )
    return said + _cluster_warnings(estimate)


def _cluster_warnings(estimate: Estimate) -> list[str]:
    known = estimate.effective_clusters[estimate.std_error > 0]
    if not len(known) or known.min() >= FEW_EFFECTIVE_CLUSTERS:
        return []
    return [
        f"few or very unequal queries: the errors rest on about {known.min():.0f} equal queries where they are fewest, "
        "so the intervals are wide for a reason. More queries would help, more sessions of the same ones hardly."
    ]


def weight_warnings(summary: dict[str, float | int | None]) -> list[str]:
    """What a reader must know before training on the files."""
    lost = summary["clicks_without_propensity"]
    if not lost:
        return []
    return [f"{lost:,} clicks lie in cells without a propensity and are left out of the training files."]


def _cell(fit: Fit, number: int) -> str:
    columns = fit.propensities.columns[: fit.propensities.columns.index("impressions")]
    row = fit.propensities.row(number, named=True)
    return ", ".join(f"{name.replace('_', ' ')} {row[name]}" for name in columns)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}" if value >= 0.01 else f"{value:.2g}"  # noqa: PLR2004


def _interval(low: float | None, high: float | None) -> str:
    if low is None:
        return "-" if high is None else f"below {_number(high)}"
    return f"{_number(low)} to {_number(high)}"
