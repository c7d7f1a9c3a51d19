"""Logs without queries: each document is compared with itself over positions."""

from pathlib import Path

import polars as pl
import pytest
from command_results import Posbias, Refused


@pytest.fixture
def slots(log: pl.DataFrame, tmp_path: Path) -> Path:
    """Return a log of a recommender: sessions, documents and positions alone."""
    path = tmp_path / "slots.parquet"
    log.drop("query").write_parquet(path)
    return path


def test_without_queries_each_document_is_its_own_query(
    posbias: Posbias, log: pl.DataFrame, slots: Path, tmp_path: Path
) -> None:
    log.drop("session").with_columns(query="doc").write_parquet(tmp_path / "own.parquet")
    found = posbias("collect", slots, "--no-query").statistics
    assert found.equals(posbias("collect", tmp_path / "own.parquet").statistics)
    assert found["query"].equals(found["doc"].rename("query"))


def test_pages_are_checked_although_their_documents_are_queries_of_their_own(
    refused: Refused, log: pl.DataFrame, tmp_path: Path
) -> None:
    twice = pl.concat([log, log.head(1).with_columns(position=pl.lit(9, pl.Int32))]).drop("query")
    twice.write_parquet(tmp_path / "slots.parquet")
    stderr = refused("fit", tmp_path / "slots.parquet", "--no-query")
    assert "1 x the session shows a document twice" in stderr
    assert "several queries" not in stderr
