"""Logs as other tools write them are read by the command that `check` gives, to the rows that they hold."""

import json
import shlex
from pathlib import Path

import polars as pl
import pytest
from command_results import Run
from make_logs import FORMS, QUERIES, Page, draw_pages

WITHOUT_QUERIES = ("mind", "metarank_feed")
PAGES = draw_pages()


def expected(form: str) -> dict[tuple[str, str, int], tuple[int, int]]:
    """Impressions and clicks by query, document and position, under the ids that the form has."""
    number = {doc: str(100 + at) for at, doc in enumerate(sorted({doc for page in PAGES for doc in page.docs}))}
    counts: dict[tuple[str, str, int], tuple[int, int]] = {}
    for page in PAGES:
        for at, doc, click in page.rows:
            key = _named(form, page, doc, number), at
            shown, clicked = counts.get((*key[0], at), (0, 0))
            counts[*key[0], at] = shown + 1, clicked + click
    return counts


def _named(form: str, page: Page, doc: str, number: dict[str, str]) -> tuple[str, str]:
    if form in WITHOUT_QUERIES:
        return doc, doc
    if form == "yandex":
        return str(QUERIES.index(page.query)), number[doc]
    return page.query, f"{doc} Größe" if form == "semicolons" else doc


def counted(statistics: Path) -> dict[tuple[str, str, int], tuple[int, int]]:
    """What `collect` counted."""
    parts = [path for path in statistics.rglob("*.parquet") if path.stat().st_size]
    rows = pl.concat([pl.read_parquet(path, hive_partitioning=False) for path in parts])
    sums = rows.group_by("query", "doc", "position").agg(pl.col("impressions", "clicks").sum())
    return {(str(query), str(doc), at): (shown, clicks) for query, doc, at, shown, clicks in sums.iter_rows()}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.slow_after(1)
def test_the_command_that_check_gives_reads_the_rows_of_the_log(run_in_process: Run, tmp_path: Path, form: str) -> None:
    files = FORMS[form](PAGES)
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    looked = run_in_process("check", *files, "--json", cwd=tmp_path)
    assert looked.returncode == 0, looked.stdout + looked.stderr
    job, *words = json.loads(looked.stdout)["command"]
    assert job == "run"
    on_paper = run_in_process("check", *files, cwd=tmp_path)
    assert on_paper.stdout.splitlines()[1] == f"next: {shlex.join(['posbias', job, *words, '-o', 'result'])}"
    ran = run_in_process("run", *words, "-o", "result", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    read = run_in_process("collect", *words, "-o", "statistics", cwd=tmp_path)
    assert read.returncode == 0, read.stderr
    assert counted(tmp_path / "statistics") == expected(form)
