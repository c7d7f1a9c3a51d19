"""Rankings and judgments: opened, and evaluated by the clicks of a log."""

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
"""The fields of a line."""

_SCORES = "Name a table of query, doc and score, such as the scores.parquet of `posbias train` or `score`."
_JUDGMENTS = "Name TREC qrels, or a table of query, doc and relevance."
_RELEVANCE_NAMES = (clicked.RELEVANCE, "rel", "label", "grade", "judgment")
_TABLES = (".parquet", ".pq", ".csv", ".tsv", ".tab", ".ndjson", ".jsonl", ".arrow", ".ipc", ".feather")
_RANKS = ("rank", "ranks", "ranking")
_VALUE, _RANK = "posbias_value", "posbias_given_rank"
_LOOKED_AT, _DEEPEST = 1 << 17, 100  # rows of a ranking whose order is looked at, and how far apart two may be
_MUCH_OPPOSED, _MUCH_TIED = 0.01, 0.05  # share of pairs: hardly any rounding turns round, and some make scores equal

Opened = tuple[tuple[Source, ...], pl.LazyFrame]
"""Files, and rows of `query` and `doc` in the types of the log, with the numbers and ranks that the files give them."""


@dataclass(frozen=True)
class Rankings:
    """Opened rankings."""

    names: tuple[str, ...]  # of each, in the order of the command line
    files: tuple[str, ...]  # where each stands
    sources: tuple[Source, ...]  # all files
    order: Order  # what is the score: that of the files, or less their rank
    rows: pl.LazyFrame  # `RANKING` (from 1), `query`, `doc`, `SCORE` (null where it is no number), `SCORE_REST`
    compared: tuple[pl.LazyFrame, ...]  # of each, its first rows: the same, and `_RANK`, null where it has none

    def in_doubt(self) -> Iterator[Reason]:
        """Rankings whose scores contradict their ranks, or are equal for many documents of a query."""
        for name, rows in zip(self.names, self.compared, strict=True):
            score = pl.struct(clicked.SCORE, clicked.SCORE_REST).rank("dense").cast(pl.Int64).alias(clicked.SCORE)
            listed = rows.drop_nulls(clicked.SCORE).select(pl.col(QUERY).rank("dense").cast(pl.Int64), score, _RANK)
            with reading(self.sources):
                query, value, rank = listed.sort(QUERY, clicked.SCORE, descending=[False, True]).collect().to_numpy().T
            found = np.zeros(4)
            for apart in range(1, min(_DEEPEST, len(query))):
                same, equal = query[apart:] == query[:-apart], value[apart:] == value[:-apart]
                step, tied = rank[apart:] - rank[:-apart], same & equal  # nan where there are no ranks
                found += [of.sum() for of in (same, tied, tied & (np.abs(step) > 0), same & ~equal & (step < 0))]
            pairs, tied, with_ranks, opposed = (float(number) for number in found)
            if self.order == "score" and opposed > _MUCH_OPPOSED * pairs:
                yield reason("order-in-doubt", {"ranking": name, "share": opposed / pairs})
            if tied > _MUCH_TIED * pairs:
                case = "order-in-doubt.tied" if with_ranks and self.order == "score" else "order-in-doubt.tied-alone"
                yield reason(case, {"ranking": name, "share": tied / pairs}, order=self.order)


def open_rankings(given: RankingOptions, roles: Roles, id_types: Mapping[str, pl.DataType]) -> Rankings:
    """Open tables of scores and TREC runs. A run with several tags is as many rankings, each named by its tag.

    Args:
        given: the files; the name that a run is given goes before each of several tags.
        roles: the columns of the log.
        id_types: the types of `query` and `doc` in canonical impressions.

    Raises:
        LogFormatError: a file is missing, or cannot be read.
        SchemaError: a column is missing, or ids cannot meet those of the log.
        UsageError: two rankings have one name, or one has that of the log's own.
    """
    names, files, sources, frames = list[str](), list[str](), list[Source](), list[pl.LazyFrame]()
    order = given.order
    known, what = (_RANKS, "rank of a document") if order == "rank" else (("score",), "score of a document")
    score = (-pl.col(_RANK), pl.lit(0.0)) if order == "rank" else (pl.col(_VALUE), pl.col(clicked.SCORE_REST))

    def add(option: str, name: str, file: str, rows: pl.LazyFrame) -> None:
        if name == LOGGED:
            raise UsageError(f"{option}: {LOGGED!r} is the log's own ranking. Say another name: NAME=FILE.")
        if name in names:
            raise UsageError(f"{option}: another ranking is called {name!r}. Say another name: NAME=FILE.")
        names.append(name)
        files.append(file)
        number = pl.lit(len(names), pl.UInt16).alias(clicked.RANKING)
        frames.append(
            rows.select(number, QUERY, DOC, score[0].alias(clicked.SCORE), score[1].alias(clicked.SCORE_REST), _RANK)
        )

    for option in given.scores or ():
        name, file = split_name(option)
        of_file, rows = _open_table(file, roles, id_types, _SCORES, known, what)
        sources += of_file
        add(f"--scores {option}", name or name_of(file), file, rows)
    for option in given.rankings or ():
        name, file = split_name(option)
        of_file, rows = _open_trec(file, RUN, roles, id_types)
        with reading(of_file):
            tags = rows.select(pl.col("tag").unique()).collect(engine="streaming")["tag"].sort().to_list()
        for tag in tags:
            of_tag = (tag if name is None else f"{name}-{tag}") if len(tags) > 1 else name or name_of(file)
            sources += of_file
            add(f"--rankings {option}", of_tag, file, rows.filter(pl.col("tag") == tag))
    rows, compared = pl.concat(frames).drop(_RANK), tuple(frame.head(_LOOKED_AT) for frame in frames)
    return Rankings(tuple(names), tuple(files), tuple(sources), order, rows, compared)


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
    """Scores that were read are numbers, and no document stands twice in a list.

    Args:
        scores: `RANKING`, `query`, `doc`, `SCORE` of whole queries.
        rankings: where they come from.

    Raises:
        SchemaError: one is no number, or one stands twice.
    """
    for number, (name, file) in enumerate(zip(rankings.names, rankings.files, strict=True), start=1):
        _check_rows(scores.filter(pl.col(clicked.RANKING) == number), clicked.SCORE, f"{file} ({name})", rankings.order)


def _check_rows(rows: pl.DataFrame, column: str, where: str, what: str) -> None:
    """Check that a column holds finite numbers, and that each document stands once in a query."""
    value, keys = pl.col(column), (QUERY, DOC)
    broken = rows.filter(value.is_null() | ~value.is_finite())
    if broken.height:
        raise SchemaError(
            f"{where}: {broken.height:,} rows have no {what} that is a finite number, e.g. "
            f"that of {_described(broken)}. Mend these rows, or leave them out."
        )
    twice = rows.filter(pl.struct(keys).is_duplicated())
    if twice.height:
        raise SchemaError(
            f"{where}: {twice.n_unique(keys):,} documents appear more than once in a query, e.g. {_described(twice)}. "
            "Write each once."
        )


def _described(rows: pl.DataFrame) -> str:
    first = rows.sort(QUERY, DOC).row(0, named=True)
    return f"query {first[QUERY]!r}, doc {first[DOC]!r}"


def _open_table(
    file: str, roles: Roles, id_types: Mapping[str, pl.DataType], instead: str, known: Sequence[str], what: str
) -> Opened:
    """A table of `query`, `doc` and a number, whose column is known by its name without regard to case.

    Raises:
        SchemaError: there is no query, or no such column, or several.
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
    _check_named(table)
    numbers = _numbers(value.str.strip_chars() if dtype == pl.String else value)
    rank = next((pl.col(name) for name in table.names if name.lower() in _RANKS), pl.lit(None))
    given = rank.cast(pl.Float64, strict=False).alias(_RANK)
    return table.sources, table.raw.select(*(key.alias(role) for role, key in table.keys.items()), *numbers, given)


def _check_named(table: KeyedTable) -> None:
    """Raise SchemaError if a row lacks its query or its document: whatever it says would be left out."""
    keys = [name for name in table.schema if name not in table.names]
    for source in table.sources:
        with reading([source]):
            nameless = scan_with_place(source).filter(pl.any_horizontal(pl.col(keys).is_null()))
            number, first = nameless.select(pl.len(), pl.col(ROW).min()).collect(engine="streaming").row(0)
        if number:
            raise SchemaError(
                f"{source.path}: {number:,} rows have no {' or no '.join(keys)}, e.g. row {first}. Mend these rows, or "
                "leave them out."
            )


def _numbers(value: pl.Expr) -> tuple[pl.Expr, pl.Expr]:
    """Numbers, or texts of them, as `_VALUE` (null for others) and `SCORE_REST`."""
    number, whole = value.cast(pl.Float64, strict=False), value.cast(pl.Int128, strict=False)
    rest = (whole - number.cast(pl.Int128, strict=False)).cast(pl.Float64).fill_null(0.0)
    return number.alias(_VALUE), rest.alias(clicked.SCORE_REST)


def _open_trec(name: str, fields: tuple[str, ...], roles: Roles, id_types: Mapping[str, pl.DataType]) -> Opened:
    """A file of TREC on disk, whose lines have these fields.

    Raises:
        LogFormatError: there is no such file, a line has other fields, or ids of the log have several columns.
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
    rows = _fields_of(source, name, fields)
    for role, names in ((QUERY, roles.query), (DOC, roles.doc)):
        if len(names) > 1:
            raise LogFormatError(
                f"{name}: the {role} of the log has {len(names)} columns ({', '.join(names)}), and a TREC file has one "
                "field for it. Give a table instead."
            )
    keys = [as_key(role, pl.String(), id_types[role], str(place)).alias(role) for role in (QUERY, DOC)]
    rank = pl.col("rank").cast(pl.Float64, strict=False).alias(_RANK)
    given = (*_numbers(pl.col("score")), rank) if fields == RUN else _numbers(pl.col(clicked.RELEVANCE))
    return (source,), rows.with_columns(*keys, *given)


def _fields_of(source: Source, name: str, fields: tuple[str, ...]) -> pl.LazyFrame:
    """The fields of the lines of a file, as text; lines without any are left out."""
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


_MOST_ROWS_AT_ONCE = 1 << 21  # of pages: they and their copies take about 500 MB
_OTHER_SEED = 1  # so that pieces of a bucket are no buckets


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
    """Evaluate rankings on the clicks of a log; return the sums, theta by cell, and whether positions are ranks.

    Args:
        read: the log, with its sessions.
        plan: how the fit counted.
        rankings: them.
        propensities: to weigh clicks by.
        theta: as it was fitted, with its errors.
        least: the propensity at which weights are clipped.
        options: how they are judged.
        engine: where the rows are.
        progress: where stages are reported.

    Raises:
        SchemaError: a ranking has no document of the log, one of its scores is no number, or stands twice.
        UsageError: positions begin anew on a page, and say neither ranks nor, in lists with names, the page's order.
    """
    folder = engine.scratch / "rankings"
    folder.mkdir(mode=0o700)
    in_memory = read.buckets.in_memory
    looked = list(read.buckets.map(partial(_look, plan=plan, folder=None if in_memory else folder)))
    counts = add_up_weights(pl.concat(cells for _, cells, _, _ in looked), plan.cell_columns)
    cells = counts.sort(plan.cell_order).select(plan.cell_columns)
    propensity = propensities_of_cells(cells, propensities, PROPENSITY).fill_null(np.nan).to_numpy()
    weights = clicked.CellWeights(cells, propensity, least)
    with progress.stage("reading rankings"):
        keys = [queries.scan() for *_, queries in looked]
        routed = route_rows(rankings.rows, (QUERY,), rankings.sources, keys, folder / "lists", engine.memory)
    lists = {number: part for (number, *_), part in zip(looked, routed, strict=True)}
    n_pages = sum(pages for _, _, pages, _ in looked)
    named = any(cells.schema[name] == pl.String for name in plan.cell)  # lists, whose order on the page is not known
    by_rank = True
    try:
        check_positions(counts, plan, n_pages, 1.01)
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
        if totals.rest.unscored_impressions[number] >= totals.rest.impressions:
            raise SchemaError(
                f"{file}: {name} has a score for no document that the log shows. Write its ids as in the log."
            )
    return Evaluation(totals, options, covariance_of_theta(cells, propensities, theta)), weights, by_rank


def check_positions(cells: pl.DataFrame, plan: StatisticsPlan, pages: float, most: float) -> None:
    """Raise UsageError if pages show several results at one position, in several cells: a rank is then no position.

    Args:
        cells: the cell columns and `impressions`.
        plan: of these.
        pages: how many there are.
        most: results at one position of a page that are no error, about 1.
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
    """NDCG of each ranking by judged query; see `ndcg_by_query`.

    Raises:
        SchemaError: a score is no number, or stands twice.
    """
    queries = judgments.select(QUERY).unique()
    with reading(rankings.sources):
        scores = rankings.rows.join(queries.lazy(), on=QUERY, how="semi").collect(engine="streaming")
    check_scores(scores, rankings)
    return clicked.ndcg_by_query(clicked.ranked(scores), judgments, options.n_rankings, options.depth)


def _look(
    number: int, impressions: pl.LazyFrame, plan: StatisticsPlan, folder: Path | None
) -> tuple[int, pl.DataFrame, float, KeptFrame]:
    """The first pass over a part: its number, cells, pages (or the sum of their weights) and queries."""
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
    """The second pass over a part: the sums of its queries."""
    scores = lists[number].collect()
    check_scores(scores, rankings)
    by_list = clicked.ranked(scores)
    pieces = (clicked.rows_of_pages(piece, plan, weights) for piece in _pieces(impressions))
    shown: Iterable[tuple[pl.DataFrame, pl.DataFrame]] = ((rows, clicked.pages_by_query(rows)) for rows in pieces)
    if options.candidates != "page":
        counted = [(clicked.counted_rows(rows), of_rows) for rows, of_rows in shown]
        by_query = pl.concat(of_rows for _, of_rows in counted).group_by(QUERY, maintain_order=True).sum()
        shown = [(clicked.counted_rows(pl.concat(rows for rows, _ in counted)), by_query)]
    parts = [clicked.query_sums(clicked.shown_of(rows, of_rows), by_list, weights, options) for rows, of_rows in shown]
    return Totals.of(clicked.merged(parts), by_list, options, pages)


def _pieces(impressions: pl.LazyFrame) -> Iterator[pl.DataFrame]:
    """The pages of a part, in pieces where a frequent query makes it large."""
    n_pieces = max(1, -(-impressions.select(pl.len()).collect().item() // _MOST_ROWS_AT_ONCE))
    key = pl.col(SESSION).hash(_OTHER_SEED) % n_pieces
    for piece in range(n_pieces):
        yield (impressions.filter(key == piece) if n_pieces > 1 else impressions).collect(engine="streaming")
