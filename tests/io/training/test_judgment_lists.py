"""Judgments for the tools of search teams: each file is what the tool documents that it takes, whatever ids hold."""

import csv
import json
import re
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import polars as pl
import pytest
from training_sample import Sample, load, make_sample

from posbias.core.errors import SchemaError
from posbias.io.training import get_format

ODD = (
    'red shoes, "size 9"',
    "100%",
    "two\nlines\tand a tab",
    "ünï\u00a0中\u2003",
    "<script>{{x}}</script>",
    "a\\b",
    "%20",
)
FILES = {
    "qrels": "judgments.qrels",
    "opensearch": "judgments.json",
    "elasticsearch": "rank_eval.json",
    "quepid": "ratings.csv",
}

datasets: Any = import_module("sklearn.datasets")  # without types
ir_measures: Any = import_module("ir_measures")  # likewise
Write = Callable[[str], tuple[Path, dict[tuple[str, str], int]]]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return a function that writes odd judgments in a format; it returns the file and the grades."""

    def write_in(form: str) -> tuple[Path, dict[tuple[str, str], int]]:
        rows = make_sample("judgments", features=False)
        query = pl.format("{} {}", pl.col("group").replace_strict(dict(enumerate(ODD)), default="shoes"), "group")
        odd = rows.rows.with_columns(query=query, doc=pl.format("{} {}", pl.lit(ODD[0]), pl.int_range(pl.len())))
        folder = Sample(replace(rows.of, search_index="products-1"), odd).write(form, tmp_path / form)
        grades = {(q, d): grade for q, d, grade in odd.select("query", "doc", "grade").iter_rows()}
        assert len(grades) == odd.height > 300
        return folder / FILES[form], grades

    return write_in


def test_ir_measures_reads_the_qrels_and_finds_the_same_ids(write: Write) -> None:
    file, grades = write("qrels")

    read = list(ir_measures.read_trec_qrels(str(file)))

    assert {(unquote(of.query_id), unquote(of.doc_id)): of.relevance for of in read} == grades
    assert {of.iteration for of in read} == {"0"}
    best = [ir_measures.ScoredDoc(of.query_id, of.doc_id, of.relevance) for of in read]
    assert ir_measures.calc_aggregate([ir_measures.nDCG @ 10], read, best)[ir_measures.nDCG @ 10] == pytest.approx(1)


def test_opensearch_takes_a_list_of_ratings_as_text_by_query(write: Write) -> None:
    file, grades = write("opensearch")

    body = json.loads(file.read_text(encoding="utf-8"))

    assert set(body) == {"name", "description", "type", "judgmentRatings"}
    assert body["type"] == "IMPORT_JUDGMENT"
    entries = body["judgmentRatings"]
    assert all(set(entry) == {"query", "ratings"} for entry in entries)
    assert len({entry["query"] for entry in entries}) == len(entries)
    ratings = [(entry["query"], of) for entry in entries for of in entry["ratings"]]
    assert all(set(of) == {"docId", "rating"} and isinstance(of["rating"], str) for _, of in ratings)
    assert {(query, of["docId"]): int(of["rating"]) for query, of in ratings} == grades


def test_elasticsearch_takes_a_request_by_query_that_fills_the_template(write: Write) -> None:
    file, grades = write("elasticsearch")

    body = json.loads(file.read_text(encoding="utf-8"))

    assert set(body) == {"metric", "templates", "requests"}
    (template,) = body["templates"]
    assert set(template) == {"id", "template"}
    requests = body["requests"]
    assert all(set(request) == {"id", "template_id", "params", "ratings"} for request in requests)
    assert {request["template_id"] for request in requests} == {template["id"]}
    assert len({request["id"] for request in requests}) == len(requests)
    assert all(request["params"] == {"query": request["id"]} for request in requests)
    ratings = [(request["id"], of) for request in requests for of in request["ratings"]]
    assert all(set(of) == {"_index", "_id", "rating"} and of["_index"] == "products-1" for _, of in ratings)
    assert {(query, of["_id"]): of["rating"] for query, of in ratings} == grades


def test_quepid_takes_three_columns_a_rating_a_line(write: Write) -> None:
    file, grades = write("quepid")
    text = file.read_text(encoding="utf-8")

    read = list(csv.DictReader(text.splitlines()))

    assert text.splitlines()[0] == "query,docid,rating"
    assert {(row["query"], row["docid"]): int(row["rating"]) for row in read} == {
        (query.replace("\n", " "), doc): grade for (query, doc), grade in grades.items()
    }


@pytest.mark.parametrize("form", FILES)
def test_the_script_counts_what_was_written(form: str, write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    file, grades = write(form)

    load(file.parent)

    counts = [f"{list(grades.values()).count(grade):,} of grade {grade}" for grade in sorted(set(grades.values()))]
    assert capsys.readouterr().out == f"{len(grades):,} judgments: {', '.join(counts)}\n"
    assert FILES[form] in (file.parent / "load.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("form", FILES)
@pytest.mark.parametrize("column", ["query", "doc"])
def test_what_has_no_name_is_refused(form: str, column: str, tmp_path: Path) -> None:
    rows = make_sample("judgments", features=False)
    text = pl.col(column).cast(pl.String)
    for nothing in (None, ""):
        unnamed = pl.when(pl.int_range(pl.len()) == 200).then(pl.lit(nothing)).otherwise(text).alias(column)
        with pytest.raises(SchemaError, match=f"a judgment is of a {column} without a name"):
            Sample(rows.of, rows.rows.with_columns(unnamed)).write(form, tmp_path)


def test_ids_of_several_columns_are_json(tmp_path: Path) -> None:
    rows = make_sample("judgments", features=False)
    several = rows.rows.with_columns(doc=pl.struct(shop=pl.lit("a,b"), item="doc"))
    folder = Sample(rows.of, several).write("quepid", tmp_path)

    first = (folder / "ratings.csv").read_text(encoding="utf-8").splitlines()[:2]

    assert json.loads(next(csv.DictReader(first))["docid"]) == {"shop": "a,b", "item": 0}
    text = (Sample(rows.of, several).write("ranklib", tmp_path) / "judgments.txt").read_text()
    assert '# {"shop":"a,b","item":7}\tred shoes #0' in text


def test_elasticsearch_asks_for_the_index() -> None:
    assert [form for form in FILES if get_format(form).takes] == ["elasticsearch"]


def test_lines_of_ranklib_hold_grade_query_features_and_ids(tmp_path: Path) -> None:
    rows = make_sample("judgments")
    rows.write("ranklib", tmp_path)
    values, grades, queries = datasets.load_svmlight_file(
        str(tmp_path / "judgments.txt"), n_features=5, zero_based=False, query_id=True
    )
    present = ~np.isnan(rows.numbers)
    np.testing.assert_array_equal(values.toarray()[present], rows.numbers[present])
    assert values.nnz == present.sum()
    np.testing.assert_array_equal(grades, rows.rows["grade"].to_numpy())
    np.testing.assert_array_equal(queries, rows.rows["group"].to_numpy() + 1)


def test_a_list_of_ranklib_without_features_has_the_form_of_the_plugins_examples(tmp_path: Path) -> None:
    rows = make_sample("judgments", features=False)
    lines = (rows.write("ranklib", tmp_path) / "judgments.txt").read_text().splitlines()
    n_groups = rows.rows["group"].n_unique()
    heads = [re.fullmatch(r"# qid:(\d+): (.*)", line) for line in lines[:n_groups]]
    assert [head[1] for head in heads if head] == [str(k + 1) for k in range(n_groups)]
    assert {head[2] for head in heads if head} == {f"red shoes #{k} " for k in range(n_groups // 2)}
    found = [re.fullmatch(r"(\d)\s+qid:(\d+)\s+#\s+(\w+)\t(.*)", line) for line in lines[n_groups:]]
    assert [line[3] for line in found if line] == [str(doc) for doc in rows.rows["doc"]]


@pytest.mark.parametrize("features", [True, False])
def test_the_script_of_ranklib_counts_judgments(
    features: bool,  # noqa: FBT001
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    load(make_sample("judgments", features=features).write("ranklib", tmp_path))
    assert capsys.readouterr().out.startswith("320 judgments of 40 queries: ")
