"""Which sessions of a log on Spark cannot be one results page."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import polars as pl

from posbias.core.log.duplicates import mark_repeats
from posbias.core.log.guards import PAGE_ENDS, PageEnds, count_page_ends, sum_page_ends
from posbias.core.log.impressions import REJECTED
from posbias.core.log.pages import LAST_CLICKED, PAGE_CLICKS, USUAL_PAGES, PageFault, PageRules, pages
from posbias.core.schema import SESSION
from posbias.io.engines.contract import PAGES, ROWS
from posbias.io.engines.kept_frames import SparkFrame
from posbias.io.engines.spark_types import packed, spark_schema
from posbias.io.engines.spark_worker import from_batches, on_rows


@dataclass(frozen=True)
class PagesOnSpark:
    """The sessions of impressions.

    Attributes:
        impressions: canonical impressions.
        schema: their names and types in Polars.
        n_parts: number of partitions.
        rules: what a page may be.
    """

    impressions: SparkFrame
    schema: pl.Schema
    n_parts: int
    rules: PageRules = USUAL_PAGES

    def judged(self, one_in: int) -> SparkFrame:
        """The `pages` of one in so many sessions."""
        functions: Any = import_module("pyspark.sql.functions")
        sampled = self.impressions
        if one_in > 1:
            sampled = sampled.filter(functions.pmod(functions.xxhash64(SESSION), functions.lit(one_in)) == 0)
        rules, made = self.rules, self._of_pages

        def work(frame: pl.LazyFrame) -> pl.LazyFrame:
            return packed(pages(frame, rules), made)

        whole = sampled.repartition(self.n_parts, SESSION)
        return whole.mapInArrow(on_rows(work, self.schema), spark_schema(made))

    def examples(self, faulty: SparkFrame) -> pl.DataFrame:
        """One session for each reason."""
        return from_batches(faulty.dropDuplicates([REJECTED]).toArrow().to_batches(), self._of_pages)

    def ends(self, judged: SparkFrame) -> PageEnds:
        """Where those of `judged` pages end that are not faulty."""

        def work(frame: pl.LazyFrame) -> pl.LazyFrame:
            return packed(count_page_ends(frame), PAGE_ENDS)

        found = judged.mapInArrow(on_rows(work, self._of_pages), spark_schema(PAGE_ENDS))
        return sum_page_ends([from_batches(found.toArrow().to_batches(), PAGE_ENDS)])

    @property
    def _of_pages(self) -> pl.Schema:
        counts = dict.fromkeys((ROWS, PAGE_CLICKS, LAST_CLICKED), pl.Int64())
        return pl.Schema({SESSION: self.schema[SESSION], **counts, REJECTED: pl.UInt8()})


def marked_repeats(impressions: SparkFrame, schema: pl.Schema, *, clicks_above_matter: bool) -> SparkFrame:
    """Impressions, each session in one partition, marked by `mark_repeats`."""
    marked = pl.Schema({**schema, REJECTED: pl.UInt8()})

    def work(frame: pl.LazyFrame) -> pl.LazyFrame:
        return packed(mark_repeats(frame, clicks_above_matter=clicks_above_matter), marked)

    return impressions.mapInArrow(on_rows(work, schema), spark_schema(marked))


def affected(judged: SparkFrame, faulty_rows: SparkFrame) -> SparkFrame:
    """The pages that lost a row, other than the faulty ones, with the number of their good rows."""
    functions: Any = import_module("pyspark.sql.functions")
    lost = judged.filter(f"{REJECTED} = 0").join(faulty_rows.select(SESSION), on=SESSION, how="left_semi")
    return lost.withColumn(REJECTED, functions.lit(int(PageFault.FAULTY_ROW)).cast("smallint"))


def count_faults(faulty: SparkFrame) -> pl.DataFrame:
    """Number of `pages` and their `rows` by `rejected`, of faulty pages."""
    found = faulty.groupBy(REJECTED).agg({"*": "count", ROWS: "sum"}).collect()
    counts = [(row[REJECTED], row["count(1)"], row[f"sum({ROWS})"]) for row in found]
    schema = {REJECTED: pl.Int64, PAGES: pl.Int64, ROWS: pl.Int64}
    return pl.DataFrame(counts, schema=schema, orient="row").sort(REJECTED)
