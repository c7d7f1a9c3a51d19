"""What a result says of itself: its verdicts and warnings, and the figures behind it."""

from msgspec import UNSET

from posbias.core.fit.model_tests import ModelTests
from posbias.io.fits.verdicts import clicks_above_in_words
from posbias.io.reports.elements import Block, Points, Section, Table, table
from posbias.io.reports.read import ReportedResult


def summary_section(result: ReportedResult) -> Section:
    """The section."""
    blocks: list[Block] = []
    if result.said.warnings:
        blocks.append(Points(result.said.warnings, warn=True))
    if result.said.verdicts:
        blocks.append(Points(result.said.verdicts))
    tests = None if result.said.estimate is UNSET else result.said.estimate.model_tests
    if tests is not None and tests.by_clicks_above:
        blocks.append(_clicks_above(tests))
    blocks.append(table("In figures", ("", ""), figures_of(result).items()))
    return Section("summary", "What it says", tuple(blocks))


def _clicks_above(tests: ModelTests) -> Table:
    """Clicks by the number of clicks above, against those of the same documents on other pages."""
    rows = [
        (clicks_above_in_words(row), row.impressions, row.observed_clicks, row.expected_clicks, row.ratio, *interval)
        for row in tests.by_clicks_above
        for interval in [row.interval or (None, None)]
    ]
    where = "at the same position" if tests.averages_users else "in the same cell"
    caption = f"Clicks against those of the same documents {where} on other pages; intervals for queries like these"
    columns = "clicks above", "impressions", "clicks", "expected clicks", "observed / expected", "from", "to"
    return table(caption, columns, rows)


def figures_of(result: ReportedResult) -> dict[str, object]:
    """What there is to know of a result at a glance, by what it is."""
    said, found = result.said, dict[str, object]()
    found["written by"] = f"posbias {said.command}"
    if said.counted is not UNSET:
        found["click model"] = said.counted.model
    if said.estimate is not UNSET:
        estimate = said.estimate
        found["method"] = estimate.method if estimate.shape is UNSET else f"{estimate.method}, shape {estimate.shape}"
        found["converged"] = estimate.converged
        found["cells with a propensity"] = f"{estimate.cells_identified:,} of {estimate.cells:,}"
        found["clicks in them"] = f"{estimate.click_share_identified:.1%}"
        if estimate.clusters is not UNSET and estimate.errors_by is not UNSET:
            found["errors clustered by"] = f"{estimate.errors_by} ({estimate.clusters:,})"
    counts = said.totals or said.statistics
    found |= {name: counts[name] for name in ("impressions", "clicks", "queries", "pairs") if name in counts}
    if said.days is not UNSET:
        days = said.days
        found["days"] = days.first if days.number == 1 else f"{days.first} to {days.last}, {days.number:,} days"
    return found
