"""Rankings and judgments: read from tables or TREC files, and evaluated by the clicks of a log."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from posbias.core.choices import Order
from posbias.core.counts.counting_plan import StatisticsPlan, add_up_weights, count_cells
from posbias.core.errors import LogFormatError, SchemaError, UsageError
from posbias.core.evaluation import clicked
from posbias.core.evaluation.estimates import Evaluation, Totals
from posbias.core.fit.propensities import PROPENSITY, ThetaEstimate
from posbias.core.schema import DOC, IMPRESSIONS, POSITION, QUERY, SESSION, WEIGHT, Roles
from posbias.io.engines.engine import Engine, ReadLog
from posbias.io.log.scan import LINE, ROW, reading, resolve_quotes, scan_lines, scan_with_place
from posbias.io.log.sources import Source, find_sources, named_paths
from posbias.io.options import RankingOptions
from posbias.io.places.temporary import KeptFrame, keep
from posbias.io.progress import Progress
from posbias.io.ranking_names import LOGGED, name_of, split_name
from posbias.io.results.conclusions import Reason, reason
from posbias.io.results.manifest import check_table_digest
from posbias.io.training.feature_parts import route_rows
from posbias.io.training.feature_tables import KeyedTable, as_key, read_keys
from posbias.io.training.laid_out import covariance_of_theta, propensities_of_cells

RUN, QRELS = ("query", "q0", "doc", "rank", "score", "tag"), ("query", "iteration", "doc", "relevance")
"""Fields of a line of a TREC run, and of TREC qrels."""

_SCORES = "Name a table of query, doc and score, such as the scores.parquet of `posbias train` or `score`."
_JUDGMENTS = "Name TREC qrels, or a table of query, doc and relevance."
_RELEVANCE_NAMES = (clicked.RELEVANCE, "rel", "label", "grade", "judgment")
_TABLES = (".parquet", ".pq", ".csv", ".tsv", ".tab", ".ndjson", ".jsonl", ".arrow", ".ipc", ".feather")
_RANKS = ("rank", "ranks", "ranking")
_VALUE, _RANK = "posbias_value", "posbias_given_rank"
_COMPARED_ROWS, _LARGEST_DISTANCE = 1 << 17, 100  # rows of a ranking whose order is checked, and distance of a pair
_MUCH_OPPOSED, _MUCH_TIED = 0.01, 0.05  # shares of pairs above which to warn; rounding makes ties, but hardly inverts

_Opened = tuple[tuple[Source, ...], pl.LazyFrame]
"""Files, and rows of `query` and `doc` in the types of the log, `_VALUE`, `SCORE_REST` and `_RANK`."""


@dataclass(frozen=True)
class Rankings:
    """_Opened rankings, in the order of the command line."""

    names: tuple[str, ...]
    files: tuple[str, ...]  # file of each ranking
    sources: tuple[Source, ...]  # all files
    order: Order  # whether SCORE is the score of the file, or minus its rank
    rows: pl.LazyFrame  # `RANKING` (from 1), `query`, `doc`, `SCORE` (null if not a number), `SCORE_REST`
    compared: tuple[pl.LazyFrame, ...]  # first rows of each, with `_RANK`, null if the file has none

    def in_doubt(self) -> Iterator[Reason]:
        """Warn about scores that contradict the ranks of the file, or that tie many pairs of a query."""
        for name, rows in zip(self.names, self.compared, strict=True):
            score = pl.struct(clicked.SCORE, clicked.SCORE_REST).rank("dense").cast(pl.Int64).alias(clicked.SCORE)
            listed = rows.drop_nulls(clicked.SCORE).select(pl.col(QUERY).rank("dense").cast(pl.Int64), score, _RANK)
            with reading(self.sources):
                query, value, rank = listed.sort(QUERY, clicked.SCORE, descending=[False, True]).collect().to_numpy().T
            counts = np.zeros(4)
            for apart in range(1, min(_LARGEST_DISTANCE, len(query))):
                same, equal = query[apart:] == query[:-apart], value[apart:] == value[:-apart]
                step, tied = rank[apart:] - rank[:-apart], same & equal  # NaN without ranks
                kinds = same, tied, tied & (np.abs(step) > 0), same & ~equal & (step < 0)
                counts += [np.count_nonzero(kind) for kind in kinds]
            pairs, tied, with_ranks, opposed = counts.tolist()
            if self.order == "score" and opposed > _MUCH_OPPOSED * pairs:
                yield reason("order-in-doubt", {"ranking": name, "share": opposed / pairs})
            if tied > _MUCH_TIED * pairs:
                case = "order-in-doubt.tied" if with_ranks and self.order == "score" else "order-in-doubt.tied-alone"
                yield reason(case, {"ranking": name, "share": tied / pairs}, order=self.order)


def open_rankings(given: RankingOptions, roles: Roles, id_types: Mapping[str, pl.DataType]) -> Rankings:
    """Open tables of scores and TREC runs; each tag of a run is a ranking.

    Args:
        given: the files. A ranking is named by its option, tag or file; one of several tags by name and tag.
        roles: columns of the log.
        id_types: types of `query` and `doc` in canonical impressions.

    Raises:
        LogFormatError: a file is missing or unreadable.
        SchemaError: a column is missing, or ids cannot be converted to the types of the log.
        UsageError: two rankings have one name, or one is named as the log's own.
    """
    names, files, sources, frames = list[str](), list[str](), list[Source](), list[pl.LazyFrame]()
    order = given.order
    known, what = (_RANKS, "rank of a document") if order == "rank" else (("score",), "score of a document")
    by_rank, by_score = (-pl.col(_RANK), pl.lit(0.0)), (pl.col(_VALUE), pl.col(clicked.SCORE_REST))
    score, rest = by_rank if order == "rank" else by_score

    def add(option: str, name: str, file: str, rows: pl.LazyFrame) -> None:
        if name == LOGGED:
            raise UsageError(f"{option}: {LOGGED!r} is the log's own ranking. Say another name: NAME=FILE.")
        if name in names:
            raise UsageError(f"{option}: another ranking is called {name!r}. Say another name: NAME=FILE.")
        names.append(name)
        files.append(file)
        number = pl.lit(len(names), pl.UInt16).alias(clicked.RANKING)
        values = score.alias(clicked.SCORE), rest.alias(clicked.SCORE_REST), pl.col(_RANK)
        frames.append(rows.select(number, QUERY, DOC, *values))

    for option in given.scores or ():
        name, file = split_name(option)
        opened, rows = _open_table(file, roles, id_types, _SCORES, known, what)
        sources += opened
        add(f"--scores {option}", name or name_of(file), file, rows)
    for option in given.rankings or ():
        name, file = split_name(option)
        opened, rows = _open_trec(file, RUN, roles, id_types)
        with reading(opened):
            tags = rows.select(pl.col("tag").unique()).collect(engine="streaming")["tag"].sort().to_list()
        for tag in tags:
            tagged = (tag if name is None else f"{name}-{tag}") if len(tags) > 1 else name or name_of(file)
            sources += opened
            add(f"--rankings {option}", tagged, file, rows.filter(pl.col("tag") == tag))
    rows, compared = pl.concat(frames).drop(_RANK), tuple(frame.head(_COMPARED_ROWS) for frame in frames)
    return Rankings(tuple(names), tuple(files), tuple(sources), order, rows, compared)


def read_judgments(file: str, roles: Roles, id_types: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Read judgments: `query`, `doc`, `relevance` (Float64).

    Args:
        file: a table with these columns; TREC qrels if its name does not end as that of a table.
        roles: columns of the log.
        id_types: types of `query` and `doc` in canonical impressions.

    Raises:
        LogFormatError: the file is missing or unreadable.
        SchemaError: a column is missing, a relevance is not a finite number, or a document is judged twice.
    """
    if file.lower().removesuffix(".gz").removesuffix(".zst").endswith(_TABLES):
        sources, rows = _open_table(file, roles, id_types, _JUDGMENTS, _RELEVANCE_NAMES, "relevance of a document")
    else:
        sources, rows = _open_trec(file, QRELS, roles, id_types)
    rows = rows.select(QUERY, DOC, pl.col(_VALUE).alias(clicked.RELEVANCE))
    with reading(sources):
        judged = rows.filter(pl.col(QUERY).is_not_null(), pl.col(DOC).is_not_null()).collect(engine="streaming")
    if not judged.height:
        raise SchemaError(f"{file}: holds no judgment whose ids could be those of the log.")
    _check_rows(judged, clicked.RELEVANCE, file, clicked.RELEVANCE)
    return judged


def check_scores(scores: pl.DataFrame, rankings: Rankings) -> None:
    """Check that scores are finite numbers, and that no document is repeated in a list.

    Args:
        scores: `RANKING`, `query`, `doc`, `SCORE` of whole queries.
        rankings: the rankings that they are from.

    Raises:
        SchemaError: a score is not a finite number, or a document is repeated.
    """
    for number, (name, file) in enumerate(zip(rankings.names, rankings.files, strict=True), start=1):
        _check_rows(scores.filter(pl.col(clicked.RANKING) == number), clicked.SCORE, f"{file} ({name})", rankings.order)


def _check_rows(rows: pl.DataFrame, column: str, where: str, what: str) -> None:
    """Raise SchemaError unless a column is finite and each document occurs once per query."""
    value, keys = pl.col(column), (QUERY, DOC)
    broken = rows.filter(value.is_null() | ~value.is_finite())
    if broken.height:
        raise SchemaError(
            f"{where}: {broken.height:,} rows have no {what} that is a finite number, e.g. "
            f"that of {_example(broken)}. Mend these rows, or leave them out."
        )
    twice = rows.filter(pl.struct(keys).is_duplicated())
    if twice.height:
        raise SchemaError(
            f"{where}: {twice.n_unique(keys):,} documents appear more than once in a query, e.g. {_example(twice)}. "
            "Write each once."
        )


def _example(rows: pl.DataFrame) -> str:
    first = rows.sort(QUERY, DOC).row(0, named=True)
    return f"query {first[QUERY]!r}, doc {first[DOC]!r}"


def _open_table(
    file: str, roles: Roles, id_types: Mapping[str, pl.DataType], instead: str, known: Sequence[str], what: str
) -> _Opened:
    """Open a table of `query`, `doc` and a number, in a column named as one of `known` in any case.

    Raises:
        SchemaError: the query column is missing, the column of numbers is missing or ambiguous, or ids are null.
        UsageError: the name is empty.
    """
    if not file:
        raise UsageError("--scores: names no file.")
    table = read_keys(resolve_quotes(find_sources([file], instead))[0], roles, id_types)
    for source in table.sources:
        if isinstance(source.path, Path):
            check_table_digest(source.path)
    columns = f"The columns are: {', '.join(table.schema)}."
    if QUERY not in table.keys:
        raise SchemaError(
            f"{table.where}: no column says which query a row is about. Name it as the log does: "
            f"{', '.join(roles.query)}. {columns}"
        )
    matches = [name for name in table.names if name.lower() in known]
    if len(matches) != 1:
        several = f"{', '.join(matches)} could each be" if matches else "no column is"
        raise SchemaError(f"{table.where}: {several} the {what} ({known[0]}). {columns}")
    dtype, value = table.schema[matches[0]], pl.col(matches[0])
    if not (dtype.is_numeric() or isinstance(dtype, pl.String)):
        raise SchemaError(f"{table.where}: column {matches[0]!r} holds {dtype}; it must hold numbers.")
    _check_keys(table, id_types)
    numbers = _numbers(value.str.strip_chars() if dtype == pl.String else value)
    rank = next((pl.col(name) for name in table.names if name.lower() in _RANKS), pl.lit(None))
    given = rank.cast(pl.Float64, strict=False).alias(_RANK)
    return table.sources, table.raw.select(*(key.alias(role) for role, key in table.keys.items()), *numbers, given)


def _check_keys(table: KeyedTable, id_types: Mapping[str, pl.DataType]) -> None:
    """Raise SchemaError if a row lacks its query or its document, or its document cannot be an id of the log."""
    keys = [name for name in table.schema if name not in table.names]
    nameless, row = pl.any_horizontal(pl.col(keys).is_null()), pl.col(ROW)
    foreign = ~nameless & _is_foreign(table.keys, id_types)
    for source in table.sources:
        counts = (value for flag in (nameless, foreign) for value in (flag.sum(), row.filter(flag).min()))
        with reading([source]):
            found = scan_with_place(source).select(value.alias(str(at)) for at, value in enumerate(counts))
            number, first, others, other = found.collect(engine="streaming").row(0)
        if number:
            raise SchemaError(
                f"{source.path}: {number:,} rows have no {' or no '.join(keys)}, e.g. row {first}. Mend these rows, or "
                "leave them out."
            )
        if others:
            raise _foreign_documents(f"{source.path}", f"{others:,} rows", f"row {other}", id_types)


def _is_foreign(keys: Mapping[str, pl.Expr], id_types: Mapping[str, pl.DataType]) -> pl.Expr:
    """Whether a document cannot be an id of the log, and its query can: it would be left out of its list."""
    known = {
        role: pl.all_horizontal(key.struct.field(part.name).is_not_null() for part in dtype.fields)
        if isinstance(dtype := id_types[role], pl.Struct)
        else key.is_not_null()
        for role, key in keys.items()
    }
    return known[QUERY] & ~known[DOC]


def _foreign_documents(where: str, number: str, example: str, id_types: Mapping[str, pl.DataType]) -> SchemaError:
    return SchemaError(
        f"{where}: {number} have a document that cannot be an id of this log ({id_types[DOC]}), e.g. {example}. Write "
        "ids as in the log, also those of new documents, or read the log with ids that are text."
    )


def _numbers(value: pl.Expr) -> tuple[pl.Expr, pl.Expr]:
    """Cast numbers or text to `_VALUE` (Float64, null if not a number) and `SCORE_REST`, the rest of large integers."""
    number, whole = value.cast(pl.Float64, strict=False), value.cast(pl.Int128, strict=False)
    rest = (whole - number.cast(pl.Int128, strict=False)).cast(pl.Float64).fill_null(0.0)
    return number.alias(_VALUE), rest.alias(clicked.SCORE_REST)


def _open_trec(name: str, fields: tuple[str, ...], roles: Roles, id_types: Mapping[str, pl.DataType]) -> _Opened:
    """Open a TREC file on disk whose lines have these fields.

    Raises:
        LogFormatError: the file is missing or empty, a line has other fields, or ids of the log have several columns.
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
    source = Source(place, "tsv", (), state.st_size, state.st_mtime_ns)
    rows = _split_lines(source, name, fields)
    for role, names in ((QUERY, roles.query), (DOC, roles.doc)):
        if len(names) > 1:
            raise LogFormatError(
                f"{name}: the {role} of the log has {len(names)} columns ({', '.join(names)}), and a TREC file has one "
                "field for it. Give a table instead."
            )
    keys = {role: as_key(role, pl.String(), id_types[role], str(place)) for role in (QUERY, DOC)}
    foreign = rows.filter(_is_foreign(keys, id_types)).select(pl.len(), pl.col(DOC).first())
    number, example = foreign.collect(engine="streaming").row(0)
    if number:
        raise _foreign_documents(name, f"{number:,} lines", repr(example), id_types)
    rank = pl.col("rank").cast(pl.Float64, strict=False).alias(_RANK)
    given = (*_numbers(pl.col("score")), rank) if fields == RUN else _numbers(pl.col(clicked.RELEVANCE))
    return (source,), rows.with_columns(*(key.alias(role) for role, key in keys.items()), *given)


def _split_lines(source: Source, name: str, fields: tuple[str, ...]) -> pl.LazyFrame:
    """Split the lines of a file into text fields; skip empty lines."""
    lines = scan_lines(source).with_columns(pl.col(LINE).str.strip_chars().str.strip_prefix("\ufeff"))
    lines = lines.filter(pl.col(LINE) != "")
    a_line, described = f"line of {'a TREC run' if fields == RUN else 'TREC qrels'}", " ".join(fields)
    groups = "".join(rf"(?P<{field}>\S+)\s+" for field in fields[:-1]) + rf"(?P<{fields[-1]}>\S+)"
    fields_of_line = pl.col(LINE).str.extract_groups(f"^{groups}$")
    try:
        others = lines.filter(fields_of_line.struct.field(fields[0]).is_null()).head(1).collect(engine="streaming")
        is_empty = not lines.head(1).collect(engine="streaming").height
    except (pl.exceptions.PolarsError, OSError) as error:
        raise LogFormatError(f"{name}: cannot be read as text: {str(error).splitlines()[0]}.") from error
    if is_empty:
        raise LogFormatError(f"{name}: holds no line. A {a_line} is {described}.")
    if others.height:
        number, line = others.select(ROW, LINE).row(0)
        raise LogFormatError(
            f"{name}: line {number} is not a {a_line} ({described}): {line[:80]}. Is it a table? Then give it a name "
            "that says so, such as .csv or .parquet."
        )
    return lines.select(fields_of_line.alias(LINE)).unnest(LINE)


_MOST_ROWS_AT_ONCE = 1 << 21  # about 500 MB with copies
_OTHER_SEED = 1  # of the hash by which a bucket is divided; buckets are made by another one


def evaluate_rankings(
    read: ReadLog,
    plan: StatisticsPlan,
    rankings: Rankings,
    propensities: pl.DataFrame,
    theta: ThetaEstimate,
    least: float,
    options: clicked.RankingMeasures,
    engine: Engine,
    progress: Progress,
) -> tuple[Evaluation, clicked.CellWeights, bool]:
    """Evaluate rankings on the clicks of a log, in two passes over its parts.

    Args:
        read: the log, with its sessions.
        plan: plan of the fit.
        rankings: opened rankings.
        propensities: table to weigh clicks by.
        theta: the fitted theta, with its errors.
        least: propensity at which weights are clipped.
        options: measures and candidates.
        engine: runs over parts.
        progress: receives stages.

    Returns:
        The evaluation, theta by cell, and whether positions are ranks of the page.

    Raises:
        SchemaError: a ranking has no document of the log, or a score is not a finite number or is repeated.
        UsageError: results of a page share a position, and candidates are not `page` or lists have names.
    """
    folder = engine.scratch / "rankings"
    folder.mkdir(mode=0o700)
    in_memory = read.buckets.in_memory
    counted = list(read.buckets.map(partial(_count, plan=plan, folder=None if in_memory else folder)))
    counts = add_up_weights(pl.concat(cells for _, cells, _, _ in counted), plan.cell_columns)
    cells = counts.sort(plan.cell_order).select(plan.cell_columns)
    propensity = propensities_of_cells(cells, propensities, PROPENSITY).fill_null(np.nan).to_numpy()
    weights = clicked.CellWeights(cells, propensity, least)
    with progress.stage("reading rankings"):
        keys = [queries.scan() for *_, queries in counted]
        routed = route_rows(rankings.rows, (QUERY,), rankings.sources, keys, folder / "lists", engine.memory)
    lists = {number: part for (number, *_), part in zip(counted, routed, strict=True)}
    n_pages = sum(pages for _, _, pages, _ in counted)
    named = any(cells.schema[name] == pl.String for name in plan.cell)  # lists in unknown order on the page
    by_rank = True
    try:
        check_ranks(counts, plan, n_pages, 1.01)
    except UsageError:
        if options.candidates != "page" or named:
            raise
        by_rank = False
    work = partial(_sums, plan=plan, weights=weights, options=options, pages=n_pages, rankings=rankings, lists=lists)
    with progress.stage("evaluating", read.buckets.number) as stage:
        parts = read.buckets.map(work)
        totals = next(parts)
        stage.advance()
        for part in parts:
            totals += part
            stage.advance()
    for number, (name, file) in enumerate(zip(rankings.names, rankings.files, strict=True), start=1):
        if totals.pooled.unscored_impressions[number] >= totals.pooled.impressions:
            raise SchemaError(
                f"{file}: {name} has a score for no document that the log shows. Write its ids as in the log."
            )
    return Evaluation(totals, options, covariance_of_theta(cells, propensities, theta)), weights, by_rank


def check_ranks(cells: pl.DataFrame, plan: StatisticsPlan, pages: float, most: float) -> None:
    """Raise UsageError if pages show several results at one position, in several cells, so that it is not a rank.

    Args:
        cells: the cell columns and `impressions`.
        plan: plan of the cells.
        pages: number of pages.
        most: largest tolerated mean number of results at a position of a page, about 1.
    """
    shown = cells.group_by(POSITION).agg(pl.col(IMPRESSIONS).sum() / pages).sort(POSITION)
    several = shown.filter(pl.col(IMPRESSIONS) > most)
    if plan.cell and not plan.position_bins and several.height:
        raise UsageError(
            f"a page has {several[IMPRESSIONS][0]:.2g} results at position {several[POSITION][0]}, in several cells "
            f"({', '.join(plan.cell)}), and a ranking has one document at each rank. Name the column with the place in "
            "the order of the whole page as --position, in the fit and here, beside these as --cell."
        )


def judged_lists(rankings: Rankings, judgments: pl.DataFrame, options: clicked.RankingMeasures) -> pl.DataFrame:
    """Compute NDCG of each ranking by judged query; see `ndcg_by_query`.

    Raises:
        SchemaError: a score is not a finite number, or is repeated.
    """
    queries = judgments.select(QUERY).unique()
    with reading(rankings.sources):
        scores = rankings.rows.join(queries.lazy(), on=QUERY, how="semi").collect(engine="streaming")
    check_scores(scores, rankings)
    return clicked.ndcg_by_query(clicked.rank_lists(scores), judgments, options.n_rankings, options.depth)


def _count(
    number: int, impressions: pl.LazyFrame, plan: StatisticsPlan, folder: Path | None
) -> tuple[int, pl.DataFrame, float, KeptFrame]:
    """First pass over a part: return its number, counts by cell, number (or weight) of pages, and queries."""
    queries = impressions.select(QUERY).unique().collect(engine="streaming")
    if plan.weighted:
        weights = impressions.group_by(SESSION).agg(pl.col(WEIGHT).cast(pl.Float64).mean()).collect(engine="streaming")
        pages = float(weights.sort(SESSION)[WEIGHT].sum())
    else:
        pages = float(impressions.select(pl.col(SESSION).n_unique()).collect(engine="streaming").item())
    return number, count_cells(impressions, plan), pages, keep(queries, folder, f"queries-{number:05d}")


def _sums(
    number: int,
    impressions: pl.LazyFrame,
    plan: StatisticsPlan,
    weights: clicked.CellWeights,
    options: clicked.RankingMeasures,
    pages: float,
    rankings: Rankings,
    lists: dict[int, pl.LazyFrame],
) -> Totals:
    """Second pass over a part: sum its queries."""
    scores = lists[number].collect()
    check_scores(scores, rankings)
    by_list = clicked.rank_lists(scores)
    pieces = (clicked.page_impressions(piece, plan, weights) for piece in _pieces(impressions))
    shown: Iterable[tuple[pl.DataFrame, pl.DataFrame]] = ((rows, clicked.pages_by_query(rows)) for rows in pieces)
    if options.candidates != "page":
        counted = [(clicked.cell_counts(rows), pages) for rows, pages in shown]
        by_query = pl.concat(pages for _, pages in counted).group_by(QUERY, maintain_order=True).sum()
        shown = [(clicked.cell_counts(pl.concat(rows for rows, _ in counted)), by_query)]
    parts = [
        clicked.query_sums(clicked.page_rows(rows, by_query), by_list, weights, options) for rows, by_query in shown
    ]
    return Totals.of(clicked.merge_query_sums(parts), by_list, options, pages)


def _pieces(impressions: pl.LazyFrame) -> Iterator[pl.DataFrame]:
    """Collect the pages of a part, in pieces of about `_MOST_ROWS_AT_ONCE` rows."""
    n_pieces = max(1, -(-impressions.select(pl.len()).collect().item() // _MOST_ROWS_AT_ONCE))
    key = pl.col(SESSION).hash(_OTHER_SEED) % n_pieces
    for piece in range(n_pieces):
        yield (impressions.filter(key == piece) if n_pieces > 1 else impressions).collect(engine="streaming")
