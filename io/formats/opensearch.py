"""Judgments for OpenSearch's Search Relevance Workbench, as its import takes them (`IMPORT_JUDGMENT`)."""

from pathlib import Path
from typing import ClassVar

import polars as pl

from posbias.io.formats.judgment_lists import JudgmentListFormat, by_query, join_entries

_START = """{
"name": "posbias",
"description": "Judgments from clicks, corrected for position bias",
"type": "IMPORT_JUDGMENT",
"judgmentRatings": [
"""


class OpenSearchFormat(JudgmentListFormat):
    """`judgments.json`, the body of `PUT _plugins/_search_relevance/judgments`; it takes ratings as texts."""

    name = "opensearch"
    rank = 8
    file: ClassVar[str] = "judgments.json"
    module = "json"
    read: ClassVar[str] = (
        'grades = [of["rating"] for query in json.load(file)["judgmentRatings"] for of in query["ratings"]]'
    )

    def lines(self, judged: pl.DataFrame) -> pl.Series:
        """A line a query."""
        rated = by_query(judged, pl.struct("doc", pl.col("grade").cast(pl.String)), ("docId", "rating"))
        return "," + rated.select(pl.struct("query", "ratings").struct.json_encode()).to_series()

    def join(self, folder: Path) -> None:
        """Join the pieces into one array."""
        join_entries(folder, self.file, _START, "]\n}\n")

    about: ClassVar[str] = """# Judgments for OpenSearch's Search Relevance Workbench

`judgments.json` is the body of the request that imports judgments; `name` is what the workbench calls them. Each
query has its `ratings`, by `docId` (the `_id` in the index):

    curl -X PUT "$OPENSEARCH/_plugins/_search_relevance/judgments" -H 'Content-Type: application/json' \\
      --data-binary @judgments.json

Ratings are whole numbers from 0 (the workbench wants them as texts); what is above 0 is relevant to its precision.
`rows/` has the debiased rate of each judgment, its error and its counts, in the same order.
"""
