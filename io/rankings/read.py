"""Rankings and judgments, opened: tables and files of TREC, their ids in the types of the log."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from posbias.core.errors import LogFormatError, SchemaError, UsageError
from posbias.core.evaluation.ndcg import RANKING, RELEVANCE, SCORE
from posbias.core.schema import DOC, QUERY, Roles
from posbias.io.features.table import KeyedTable, as_key, read_keys
from posbias.io.log.quoting import resolve_quotes
from posbias.io.log.scan import LINE, ROW, reading, scan_lines
from posbias.io.log.sources import Source, find_sources, named_paths
from posbias.io.rankings.names import check_names, name_of, split_name
from posbias.io.results.stored import check_file

RUN, QRELS = ("query", "q0", "doc", "rank", "score", "tag"), ("query", "iteration", "doc", "relevance")
"""The fields of a line."""

_WHAT: dict[tuple[str, ...], str] = {RUN: "a line of a TREC run", QRELS: "a line of TREC qrels"}


@dataclass(frozen=True)
class TrecFile:
    """An opened file.

    Attributes:
        source: it.
        rows: its fields, as text; lines without any are left out.
    """

    source: Source
    rows: pl.LazyFrame


def open_trec(name: str, fields: tuple[str, ...]) -> TrecFile:
    """A file whose lines have these fields.

    Raises:
        LogFormatError: there is no such file, or a line has other fields.
    """
    source = _source(name)
    lines = scan_lines(source).with_columns(pl.col(LINE).str.strip_chars().str.strip_prefix("\ufeff"))
    lines = lines.filter(pl.col(LINE) != "")
    said = " ".join(fields)
    groups = "".join(rf"(?P<{field}>\S+)\s+" for field in fields[:-1]) + rf"(?P<{fields[-1]}>\S+)"
    found = pl.col(LINE).str.extract_groups(f"^{groups}$")
    try:
        others = lines.filter(found.struct.field(fields[0]).is_null()).head(1).collect(engine="streaming")
        is_empty = not lines.head(1).collect(engine="streaming").height
    except (pl.exceptions.PolarsError, OSError) as error:
        raise LogFormatError(f"{name}: cannot be read as text: {str(error).splitlines()[0]}.") from error
    if is_empty:
        raise LogFormatError(f"{name}: holds no line. {_WHAT[fields][:1].upper()}{_WHAT[fields][1:]} is {said}.")
    if others.height:
        number, line = others.select(ROW, LINE).row(0)
        raise LogFormatError(
            f"{name}: line {number} is not {_WHAT[fields]} ({said}): {line[:80]}. Is it a table? Then give "
            "it a name that says so, such as .csv or .parquet."
        )
    return TrecFile(source, lines.select(found.alias(LINE)).unnest(LINE))


def _source(name: str) -> Source:
    """One file.

    Raises:
        LogFormatError: there is none, or several.
    """
    places = named_paths(name)
    if len(places) != 1:
        raise LogFormatError(f"{name}: {'no such file' if not places else 'more than one file'}. Name one file.")
    place = places[0]
    if not isinstance(place, Path):
        raise LogFormatError(f"{name}: a TREC file is read from disk only. Copy it, or give a table.")
    if not place.is_file():
        raise LogFormatError(f"{name}: is not a file. Name a file of TREC.")
    state = place.stat()
    if state.st_size == 0:
        raise LogFormatError(f"{name}: the file is empty (0 bytes).")
    return Source(place, "tsv", (), state.st_size, state.st_mtime_ns)


_SCORES = "Name a table of query, doc and score, such as the scores.parquet of `posbias train` or `score`."
_JUDGMENTS = "Name TREC qrels, or a table of query, doc and relevance."
_RELEVANCE_NAMES = (RELEVANCE, "rel", "label", "grade", "judgment")
_TABLES = (".parquet", ".pq", ".csv", ".tsv", ".tab", ".ndjson", ".jsonl", ".arrow", ".ipc", ".feather")


@dataclass(frozen=True)
class Rankings:
    """Opened rankings.

    Attributes:
        names: of each, in the order of the command line.
        files: where each stands.
        sources: all files.
        rows: `RANKING` (from 1), `query`, `doc`, `SCORE` (null where it is no number).
    """

    names: tuple[str, ...]
    files: tuple[str, ...]
    sources: tuple[Source, ...]
    rows: pl.LazyFrame


@dataclass(frozen=True)
class _One:
    name: str
    file: str
    option: str
    sources: tuple[Source, ...]
    rows: pl.LazyFrame


def open_rankings(
    scores: Sequence[str], runs: Sequence[str], roles: Roles, id_types: Mapping[str, pl.DataType]
) -> Rankings:
    """Open tables of scores and TREC runs. A run with several tags is as many rankings, each named by its tag.

    Args:
        scores: tables `query`, `doc`, `score`, each `FILE` or `NAME=FILE`.
        runs: TREC runs, likewise; a name that is said goes before each of several tags.
        roles: the columns of the log.
        id_types: the types of `query` and `doc` in canonical impressions.

    Raises:
        LogFormatError: a file is missing, or cannot be read.
        SchemaError: a column is missing, or ids cannot meet those of the log.
        UsageError: two rankings have one name.
    """
    found = [_of_table(said, roles, id_types) for said in scores]
    for said in runs:
        found += _of_run(said, roles, id_types)
    check_names([one.name for one in found], [one.option for one in found])
    rows = [
        one.rows.select(pl.lit(number, pl.UInt16).alias(RANKING), QUERY, DOC, SCORE)
        for number, one in enumerate(found, start=1)
    ]
    sources = tuple(source for one in found for source in one.sources)
    return Rankings(tuple(one.name for one in found), tuple(one.file for one in found), sources, pl.concat(rows))


def _of_table(said: str, roles: Roles, id_types: Mapping[str, pl.DataType]) -> _One:
    name, file = split_name(said)
    table = _open_table(file, roles, id_types, _SCORES)
    value = _value_column(table, (SCORE.removeprefix("posbias_"),), "score of a document")
    rows = table.raw.select(*(key.alias(role) for role, key in table.keys.items()), _number(table, value).alias(SCORE))
    return _One(name or name_of(file), file, f"--scores {said}", table.sources, rows)


def _of_run(said: str, roles: Roles, id_types: Mapping[str, pl.DataType]) -> list[_One]:
    name, file = split_name(said)
    run = open_trec(file, RUN)
    keys = _trec_keys(run, roles, id_types, file)
    with reading([run.source]):
        tags = run.rows.select(pl.col("tag").unique()).collect(engine="streaming")["tag"].sort().to_list()
    score = pl.col("score").cast(pl.Float64, strict=False).alias(SCORE)
    several = len(tags) > 1
    return [
        _One(
            name=(tag if name is None else f"{name}-{tag}") if several else name or name_of(file),
            file=file,
            option=f"--rankings {said}",
            sources=(run.source,),
            rows=run.rows.filter(pl.col("tag") == tag).select(*keys, score),
        )
        for tag in tags
    ]


def read_judgments(file: str, roles: Roles, id_types: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Judgments: `query`, `doc`, `relevance` (Float64).

    Args:
        file: a table with these columns, or TREC qrels, whatever else its name is.
        roles: the columns of the log.
        id_types: the types of `query` and `doc` in canonical impressions.

    Raises:
        LogFormatError: it is missing, or cannot be read.
        SchemaError: a column is missing, a relevance is no number, or a document is judged twice.
    """
    if _is_table(file):
        table = _open_table(file, roles, id_types, _JUDGMENTS)
        value = _value_column(table, _RELEVANCE_NAMES, "relevance of a document")
        relevance, sources = _number(table, value), table.sources
        rows = table.raw.select(*(key.alias(role) for role, key in table.keys.items()), relevance.alias(RELEVANCE))
    else:
        qrels = open_trec(file, QRELS)
        keys, sources = _trec_keys(qrels, roles, id_types, file), (qrels.source,)
        rows = qrels.rows.select(*keys, pl.col(RELEVANCE).cast(pl.Float64, strict=False))
    with reading(sources):
        judged = rows.filter(pl.col(QUERY).is_not_null(), pl.col(DOC).is_not_null()).collect(engine="streaming")
    if not judged.height:
        raise SchemaError(f"{file}: holds no judgment whose ids could be those of the log.")
    check_numbers(judged, RELEVANCE, file)
    _check_once(judged, (QUERY, DOC), file)
    return judged


def check_scores(scores: pl.DataFrame, rankings: Rankings) -> None:
    """Scores that were read are numbers, and no document stands twice in a list.

    Args:
        scores: `RANKING`, `query`, `doc`, `SCORE` of whole queries.
        rankings: where they come from.

    Raises:
        SchemaError: one is no number, or one stands twice.
    """
    for number, name in enumerate(rankings.names, start=1):
        own, where = scores.filter(pl.col(RANKING) == number), f"{rankings.files[number - 1]} ({name})"
        check_numbers(own, SCORE, where)
        _check_once(own, (QUERY, DOC), where)


def check_numbers(rows: pl.DataFrame, column: str, where: str) -> None:
    """See that a column holds finite numbers.

    Raises:
        SchemaError: it does not.
    """
    value = pl.col(column)
    broken = rows.filter(value.is_null() | ~value.is_finite())
    if broken.height:
        raise SchemaError(
            f"{where}: {broken.height:,} rows have no {column.removeprefix('posbias_')} that is a finite number, e.g. "
            f"that of {_described(broken)}. Mend these rows, or leave them out."
        )


def _check_once(rows: pl.DataFrame, keys: Sequence[str], where: str) -> None:
    twice = rows.filter(pl.struct(keys).is_duplicated())
    if twice.height:
        raise SchemaError(
            f"{where}: {twice.n_unique(keys):,} documents stand more than once in a query, e.g. {_described(twice)}. "
            "Write each once."
        )


def _described(rows: pl.DataFrame) -> str:
    first = rows.sort(QUERY, DOC).row(0, named=True)
    return f"query {first[QUERY]!r}, doc {first[DOC]!r}"


def _is_table(file: str) -> bool:
    return file.lower().removesuffix(".gz").removesuffix(".zst").endswith(_TABLES)


def _open_table(file: str, roles: Roles, id_types: Mapping[str, pl.DataType], instead: str) -> KeyedTable:
    if not file:
        raise UsageError("--scores: names no file.")
    table = read_keys(resolve_quotes(find_sources([file], instead))[0], roles, id_types)
    for source in table.sources:
        if isinstance(source.path, Path):
            check_file(source.path)
    if QUERY not in table.keys:
        raise SchemaError(
            f"{table.where}: no column says which query a row is about. Name it as the log does: "
            f"{', '.join(roles.query)}. The columns are: {', '.join(table.schema)}."
        )
    return table


def _value_column(table: KeyedTable, known: Sequence[str], what: str) -> str:
    """The column of a number, by its name without regard to case.

    Raises:
        SchemaError: there is none, or several.
    """
    found = [name for name in table.names if name.lower() in known]
    if len(found) != 1:
        said = f"{', '.join(found)} could each be" if found else "no column is"
        raise SchemaError(f"{table.where}: {said} the {what} ({known[0]}). The columns are: {', '.join(table.schema)}.")
    dtype = table.schema[found[0]]
    if not (dtype.is_numeric() or isinstance(dtype, pl.String)):
        raise SchemaError(f"{table.where}: column {found[0]!r} holds {dtype}; it must hold numbers.")
    return found[0]


def _number(table: KeyedTable, name: str) -> pl.Expr:
    column = pl.col(name)
    column = column.str.strip_chars() if table.schema[name] == pl.String else column
    return column.cast(pl.Float64, strict=False)


def _trec_keys(
    file: TrecFile, roles: Roles, id_types: Mapping[str, pl.DataType], where: str
) -> tuple[pl.Expr, pl.Expr]:
    """The ids of a TREC file in the types of the log.

    Raises:
        LogFormatError: ids of the log have several columns.
    """
    for role, names in ((QUERY, roles.query), (DOC, roles.doc)):
        if len(names) > 1:
            raise LogFormatError(
                f"{where}: the {role} of the log has {len(names)} columns ({', '.join(names)}), and a TREC file has "
                "one field for it. Give a table instead."
            )
    query, doc = (as_key(role, pl.String(), id_types[role], str(file.source.path)).alias(role) for role in (QUERY, DOC))
    return query, doc
