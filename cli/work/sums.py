"""Tables that add up impressions and clicks: what does not go with them."""

from posbias.cli.options.columns import ColumnOptions
from posbias.cli.options.reading import ReadingOptions
from posbias.cli.work.refusals import Refusal, refuse
from posbias.core.counts.plan import StatisticsPlan


def check_sums(columns: ColumnOptions, reading: ReadingOptions, plan: StatisticsPlan, sessions_for: str | None) -> None:
    """Find options that mean nothing where rows add up impressions.

    Args:
        columns: which column plays which role.
        reading: how the table is read.
        plan: what is counted.
        sessions_for: the option that needs whole pages, if there is one.

    Raises:
        UsageError: there is one.
    """
    of_pages = "needs whole pages, which a table of sums (--impressions) does not hold. Leave it out, or give the log"
    refusals: list[Refusal] = [
        (
            reading.click_counts,
            "--click-counts",
            "takes several clicks for one, but a sum counts all. Leave it out",
        ),
        (columns.weight_column, "--weight-column", "--impressions says already what a row stands for. Leave it out"),
        (columns.session, "--session", "the rows of a table of sums (--impressions) add up many pages. Leave it out"),
        (
            reading.impression_where,
            "--impression-where",
            "a row of a table of sums is no event. Leave it out",
        ),
        (reading.clicks, "--clicks", "in a table of sums (--impressions), --click names their number. Leave it out"),
        (reading.input_format not in {"auto", "flat"}, f"--input-format {reading.input_format}", _ROWS),
        (plan.model.needs_session, f"--model {plan.model.name}", of_pages),
        (sessions_for, sessions_for, of_pages),
    ]
    refuse(refusals)


_ROWS = "a row of a table of sums (--impressions) is one query, document and position. Leave it out"
