"""Judgments for the ranking evaluation API (`_rank_eval`) of Elasticsearch, which OpenSearch has as well."""

from pathlib import Path
from typing import ClassVar

import polars as pl

from posbias.io.formats.judgment_lists import JudgmentListFormat, by_query, join_entries

_START = """{
"metric": {"dcg": {"k": 10, "normalize": true}},
"templates": [{"id": "search", "template": {"inline": {"query": {"multi_match": {"query": "{{query}}"}}}}}],
"requests": [
"""


class ElasticsearchFormat(JudgmentListFormat):
    """`rank_eval.json`, the body of `POST INDEX/_rank_eval`: metric, template of the search, a request a query."""

    name = "elasticsearch"
    rank = 9
    takes = ("search_index",)
    file: ClassVar[str] = "rank_eval.json"
    module = "json"
    read: ClassVar[str] = (
        'grades = [of["rating"] for request in json.load(file)["requests"] for of in request["ratings"]]'
    )

    def lines(self, judged: pl.DataFrame) -> pl.Series:
        """A line a query."""
        rated = by_query(judged, pl.struct("index", "doc", "grade"), ("_index", "_id", "rating"))
        request = pl.struct(
            pl.col("query").alias("id"),
            pl.lit("search").alias("template_id"),
            pl.struct("query").alias("params"),
            "ratings",
        )
        return "," + rated.select(request.struct.json_encode()).to_series()

    def join(self, folder: Path) -> None:
        """Join the pieces into one array."""
        join_entries(folder, self.file, _START, "]\n}\n")

    about: ClassVar[str] = """# Judgments for the ranking evaluation API of Elasticsearch and OpenSearch

`rank_eval.json` is a request to evaluate a search by: NDCG@10 of every query, under the query's own text as its
`id`, with the grades of its documents (`_id` in the index that `--search-index` named; an alias does not do, as
hits are told apart by the index that they come from).

    curl -X POST "$ELASTICSEARCH/INDEX/_rank_eval" -H 'Content-Type: application/json' --data-binary @rank_eval.json

Put your own search in the place of the template's `multi_match`; it finds the text of the query as `{{query}}`. A
request of many queries may exceed `http.max_content_length` (100 MB): lines are one query each, so that it is
easily parted. `rows/` has the debiased rate of each judgment, its error and its counts, in the same order.
"""
