"""Logs without queries, where each document is compared with itself: what does not go with them."""

from posbias.cli.options.columns import ColumnOptions
from posbias.cli.options.reading import ReadingOptions
from posbias.cli.work.refusals import Refusal, refuse
from posbias.core.counts.plan import StatisticsPlan

_ONE_EACH = (
    "compares the documents of a page, and without queries (--no-query) each is compared with itself only. Name what "
    "pages have in common, such as the slot, with --query COLUMN instead"
)


def check_no_query(
    columns: ColumnOptions, reading: ReadingOptions, plan: StatisticsPlan, sessions_for: str | None
) -> None:
    """Find options that mean nothing where a log has no queries.

    Args:
        columns: which column plays which role.
        reading: how the log is read.
        plan: what is counted.
        sessions_for: the option that needs whole pages, if there is one.

    Raises:
        UsageError: there is one.
    """
    refusals: list[Refusal] = [
        (columns.query, "--query", "--no-query says that the log has none. Leave one of them out"),
        (plan.model.needs_session, f"--model {plan.model.name}", _ONE_EACH),
        (sessions_for, sessions_for, _ONE_EACH),
        (reading.duplicate_docs == "first", "--duplicate-docs first", "cannot be combined with --no-query. Use keep"),
    ]
    refuse(refusals)
