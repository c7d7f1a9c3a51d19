"""Pages of a log on this machine: which of them break the contract, and what is left without them."""

from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl

from posbias.core.log.duplicates import mark_repeats
from posbias.core.log.guards import PageEnds, count_page_ends, sum_page_ends
from posbias.core.log.impressions import REJECTED
from posbias.core.log.pages import PageFault
from posbias.core.schema import SESSION
from posbias.io.engines.buckets import bucket_of_query, row_counts
from posbias.io.engines.contract import ROWS, SAMPLED_ROWS, rows_by_reason
from posbias.io.log.log import Log, good_rows


@dataclass(frozen=True)
class JudgedPages:
    """What is known of pages.

    Attributes:
        faulty: `session`, `rows` and `rejected` of those that are faulty.
        ends: where the others end.
    """

    faulty: pl.DataFrame
    ends: PageEnds


def judge(shares: Iterable[pl.LazyFrame]) -> JudgedPages:
    """What is known of the `pages` of a log, which are collected share by share."""
    faulty, ends = list[pl.DataFrame](), list[pl.DataFrame]()
    for share in shares:
        judged = share.collect(engine="streaming")
        faulty.append(judged.filter(pl.col(REJECTED) > 0).select(SESSION, ROWS, REJECTED))
        ends.append(count_page_ends(judged.lazy()).collect())
    return JudgedPages(pl.concat(faulty), sum_page_ends(ends))


def in_sample(log: Log, n_buckets: int) -> pl.Expr:
    """Whether a row is of the pages that are checked where not all are."""
    return pl.col(SESSION).is_not_null() & _is_checked(log, n_buckets)


def keeps_session(log: Log, n_buckets: int) -> pl.Expr:
    """Whether a row is of the pages that are looked at: of the first bucket, and of a sample of all."""
    return pl.col(SESSION).is_not_null() & _is_kept(log, n_buckets)


def is_looked_at(log: Log, n_buckets: int) -> pl.Expr:
    """Whether a row is of any of these pages."""
    return pl.col(SESSION).is_not_null() & (_is_kept(log, n_buckets) | _is_checked(log, n_buckets))


def _is_checked(log: Log, n_buckets: int) -> pl.Expr:
    return pl.col(SESSION).hash() % max(n_buckets, log.estimated_rows // SAMPLED_ROWS) == 0


def _is_kept(log: Log, n_buckets: int) -> pl.Expr:
    kept = pl.col(SESSION).hash() % max(1, log.estimated_rows // SAMPLED_ROWS) == 0
    return kept if log.page_rules.several_queries else kept | (bucket_of_query(n_buckets) == 0)


def each_doc_once(impressions: pl.LazyFrame, *, whole_pages: bool) -> tuple[pl.DataFrame, dict[str, int]]:
    """Impressions with each document once a page, and the rows that are left out, by reason."""
    marked = mark_repeats(impressions, clicks_above_matter=whole_pages).collect()
    repeats = rows_by_reason(row_counts(marked.lazy()).filter(pl.col(REJECTED) > 0).collect())
    return good_rows(marked.lazy()).collect(), repeats


def affected_pages(shown: pl.LazyFrame, faulty_rows: pl.LazyFrame, faulty: pl.DataFrame) -> pl.DataFrame:
    """The pages that lost a row, other than the faulty ones, with the number of their good rows."""
    lost = shown.join(faulty_rows.select(SESSION).unique(), on=SESSION, how="semi")
    others = lost.join(faulty.lazy().select(SESSION), on=SESSION, how="anti")
    code = pl.lit(int(PageFault.FAULTY_ROW), pl.UInt8).alias(REJECTED)
    return others.group_by(SESSION).agg(pl.col(ROWS).sum()).with_columns(code).collect()


def without_pages(impressions: pl.LazyFrame, faulty: pl.DataFrame) -> pl.LazyFrame:
    """The rows of other pages."""
    return impressions.join(faulty.lazy().select(SESSION), on=SESSION, how="anti")
