"""Judgment lists: the queries, then one line for each query and document."""

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

datasets: Any = import_module("sklearn.datasets")  # without types


def test_lines_hold_grade_query_features_and_ids(sample: Callable[..., Any], tmp_path: Path) -> None:
    rows = sample("judgments")
    rows.write("ranklib", tmp_path)
    values, grades, queries = datasets.load_svmlight_file(
        str(tmp_path / "judgments.txt"), n_features=5, zero_based=False, query_id=True
    )
    present = ~np.isnan(rows.numbers)
    np.testing.assert_array_equal(values.toarray()[present], rows.numbers[present])
    assert values.nnz == present.sum()
    np.testing.assert_array_equal(grades, rows.rows["grade"].to_numpy())
    np.testing.assert_array_equal(queries, rows.rows["group"].to_numpy() + 1)


def test_a_list_without_features_has_the_form_of_the_plugins_examples(
    sample: Callable[..., Any], tmp_path: Path
) -> None:
    rows = sample("judgments", features=False)
    lines = (rows.write("ranklib", tmp_path) / "judgments.txt").read_text().splitlines()
    n_groups = rows.rows["group"].n_unique()
    heads = [re.fullmatch(r"# qid:(\d+): (.*)", line) for line in lines[:n_groups]]
    assert [head[1] for head in heads if head] == [str(k + 1) for k in range(n_groups)]
    assert {head[2] for head in heads if head} == {f"red shoes #{k} " for k in range(n_groups // 2)}
    found = [re.fullmatch(r"(\d)\s+qid:(\d+)\s+#\s+(\w+)\t(.*)", line) for line in lines[n_groups:]]
    assert [line[3] for line in found if line] == [str(doc) for doc in rows.rows["doc"]]


def test_ids_of_several_columns_are_json(sample: Callable[..., Any], tmp_path: Path) -> None:
    rows = sample("judgments", features=False)
    several = rows.rows.with_columns(doc=pl.struct(shop=pl.lit("a#b"), item="doc"))
    text = (type(rows)(rows.of, several).write("ranklib", tmp_path) / "judgments.txt").read_text()
    assert '# {"shop":"a#b","item":7}\tred shoes #0' in text


@pytest.mark.parametrize("features", [True, False])
def test_the_script_counts_judgments(
    features: bool,  # noqa: FBT001
    sample: Callable[..., Any],
    load: Callable[[Path], dict[str, Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    load(sample("judgments", features=features).write("ranklib", tmp_path))
    assert capsys.readouterr().out.startswith("320 judgments of 40 queries: ")
