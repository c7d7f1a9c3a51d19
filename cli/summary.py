"""What a result says to a person: tables and sentences, from what has been computed."""

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from posbias.core.estimators import Estimate
from posbias.core.fit import WANTED_CLICK_SHARE, Fit
from posbias.core.schema import IMPRESSIONS

_MOST_ROWS = 30
_MOST_REMARKS = 10
FEW_EFFECTIVE_CLUSTERS = 10
_THREE_DECIMALS = 0.01


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
        f"log: {totals['impressions']:,.0f} impressions, {totals['clicks']:,.0f} clicks, "
        f"{totals['queries']:,} queries, {totals['pairs']:,} (query, doc) pairs"
    )


def statistics_line(totals: dict[str, int | float]) -> RenderableType:
    """What was collected."""
    return Text(
        f"statistics: {totals['rows']:,} rows for {totals['impressions']:,.0f} impressions "
        f"and {totals['clicks']:,.0f} clicks"
    )


def propensity_table(fit: Fit) -> RenderableType:
    """Propensities with their intervals, what joint EM says, and the evidence; it fits into 80 columns."""
    estimate = fit.estimate
    references = " and ".join(_cell(fit, number) for number in estimate.linkage.references.tolist())
    title = f"propensities by the {estimate.method} method, relative to {references}"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    names = [name.replace("_", "\n") for name in _cell_columns(fit)]
    for name in (*names, "impressions", "clicks", "propensity", "95 % interval", "joint EM", "linking\nclicks"):
        table.add_column(name, justify="right", no_wrap=True)
    rows = fit.propensities.to_dicts()
    for row in rows[:_MOST_ROWS]:
        table.add_row(
            *(str(row[name]) for name in _cell_columns(fit)),
            f"{row['impressions']:,.0f}",
            f"{row['clicks']:,.0f}",
            _number(row["propensity"]),
            _interval(row["ci_low"], row["ci_high"]),
            _number(row["joint_propensity"]),
            f"{row['linking_clicks']:,.0f}",
        )
    if len(rows) > _MOST_ROWS:
        table.caption = (
            f"... and {len(rows) - _MOST_ROWS} more cells in propensities.parquet (--csv writes CSV as well)"
        )
    remarks = [f"{_cell(fit, number)}: {row['reason']}" for number, row in enumerate(rows) if row["reason"]]
    if len(remarks) > _MOST_REMARKS:
        remarks = [*remarks[:_MOST_REMARKS], f"... and {len(remarks) - _MOST_REMARKS} more, see `reason`"]
    return Group(table, *map(Text, remarks)) if remarks else table


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
    if not estimate.converged and fit.unchecked:
        said.append(
            f"{estimate.method} did not converge: it ran the {estimate.iterations} iterations that were asked for, and "
            "convergence was not checked (tolerance 0)."
        )
    elif not estimate.converged:
        said.append(
            f"{estimate.method} did not converge in {estimate.iterations} iterations: do not use these numbers. "
            "Raise --max-iterations."
        )
    if fit.joint is not None and fit.joint is not estimate and not fit.joint.converged:
        said.append(f"joint EM, for comparison, did not converge in {fit.joint.iterations} iterations.")
    if not estimate.linkage.identified[0]:
        said.append(
            f"{_cell(fit, 0)} cannot be compared with other cells; propensities are relative to "
            f"{_cell(fit, int(estimate.linkage.references[0]))}."
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
    sentence = (
        f"few or very unequal queries: the intervals rest on what only {known.min():.0f} equal queries would say. "
        "More queries would make them narrower, more sessions of the same ones hardly."
    )
    return [sentence]


def weight_warnings(summary: dict[str, float | int | None]) -> list[str]:
    """What a reader must know before training on the files."""
    lost = summary["clicks_without_propensity"]
    if not lost:
        return []
    return [f"{lost:,} clicks lie in cells without a propensity and are left out of the training files."]


def _cell(fit: Fit, number: int) -> str:
    row = fit.propensities.row(number, named=True)
    return ", ".join(f"{name.replace('_', ' ')} {row[name]}" for name in _cell_columns(fit))


def _cell_columns(fit: Fit) -> list[str]:
    return fit.propensities.columns[: fit.propensities.columns.index(IMPRESSIONS)]


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if value >= _THREE_DECIMALS else f"{value:.2g}"


def _interval(low: float | None, high: float | None) -> str:
    if low is None:
        return "-" if high is None else f"below {_number(high)}"
    return f"{_number(low)} - {_number(high)}"
