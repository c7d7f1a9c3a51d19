"""Logs that a query makes of the named files: `--sql "SELECT ... FROM log"`, run by DuckDB.

The query sees the files as the view `log`, and nothing else: no other file, no network, no extension, no setting. Its
rows go to a Parquet file beside the temporary files, which is read as a log is.
"""

import glob
import json
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase
from typing import Any, cast

import polars as pl

from posbias.core.errors import LogFormatError, SchemaError, UsageError
from posbias.io.log.scan import ROW, has_rows, header_of, reading, resolve_quotes, scan_sources, schema_of
from posbias.io.log.sources import Source, check_unchanged, digests, query_suffix, read_start
from posbias.io.places.object_stores import copies, folder_for_copies
from posbias.io.places.temporary import is_disk_full, temporary_files

VIEW = "log"
"""Name of the view of the files."""

_LOWER_CASE = str.maketrans(ascii_uppercase, ascii_lowercase)  # other letters are not the same for DuckDB

_SETTINGS = {
    "allow_community_extensions": "false",
    "allow_persistent_secrets": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
}
_OF_MEMORY = 2  # DuckDB gets that fraction of it: the process and what it reads with Polars take the rest
_LEAST = 256 << 20  # bytes that it gets in any case
# No field is overlooked: all lines are looked at, and structs stay structs.
_GUESS = "union_by_name = true, sample_size = -1, map_inference_threshold = -1, field_appearance_threshold = 0"
_EXACT = {"FLOAT": 1 << 24, "DOUBLE": 1 << 53}
"""Whole numbers below which all are exact as fractions. DuckDB takes the narrower type where no file has the other."""
_MOST_MS = (2**63 - 1) // 1000  # milliseconds that are microseconds in 64 bits
_WHOLE = ("INT", "INTEGER")  # how the types of whole numbers end
_PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5": "zstd"}
"""What DuckDB calls the wrapper of a file, by its first bytes."""
_RENAMED = re.compile(r"(.+)_[0-9]+")
"""A name that DuckDB may have given to the second of two columns."""
_KEPT = ("BIGINT", "BOOLEAN", "UBIGINT")
"""Types of JSON that are taken as DuckDB guesses them; it is text that it takes for dates, times and UUIDs."""
_DOUBTFUL = {
    "JSON": {"VARCHAR": "NOT regexp_matches($v, '^[\\[{]')", "JSON": "true"},
    "DOUBLE": {"DOUBLE": "NOT regexp_full_match($v, '-?[0-9]+') OR abs(TRY_CAST($v AS DOUBLE)) < 9007199254740992"},
    "HUGEINT": {"BIGINT": "TRY_CAST($v AS BIGINT) IS NOT NULL", "UBIGINT": "TRY_CAST($v AS UBIGINT) IS NOT NULL"},
}
"""Guesses that depend on the values `$v`, with types that hold all of them, if all of them meet a condition.

The first of these that does is taken, or else text. Text and numbers are text together, but for objects and lists.
"""
_MOST_DOUBTS = 100  # an object with more fields has data for names; those of the log itself come first

# Types that Parquet has not, or that would not be read as what they stand for.
_WRITTEN_AS = {
    "UUID": "CAST({} AS VARCHAR)",
    "UUID[]": "CAST({} AS VARCHAR[])",
    "JSON": "({} ->> '$')",
    "JSON[]": "list_transform({}, lambda posbias_entry: posbias_entry ->> '$')",
    "HUGEINT": "CAST({} AS BIGINT)",
    "HUGEINT[]": "CAST({} AS BIGINT[])",
    "UHUGEINT": "CAST({} AS BIGINT)",
    "INTERVAL": "CAST({} AS VARCHAR)",
}
_ROW_GROUP = 122_880  # rows
_RESULT = "posbias_result"
_AHEAD = f"CREATE TEMP VIEW {_RESULT} AS "


@dataclass(frozen=True)
class Query:
    """A query over the files of a log."""

    text: str  # one SELECT from `VIEW`
    memory: int  # what the whole process may take, in bytes
    flag: str = "--sql"  # the option that gave it, for messages
    position_base: int | None = None  # what it may look up as the variable of that name
    selects: bool = True  # whether it may leave out rows of a file, so that several days may be in one


def sql_where(condition: str) -> str:
    """The option that reads only the rows of a log for which a condition holds, for messages."""
    return sql_option(f"SELECT * FROM {VIEW} WHERE {condition}")


def sql_of_first_pages(page: str, of: Sequence[str], time: str) -> str:
    """The option that reads only the first page of each combination of values of some columns, for messages."""
    by, order = ", ".join(map(sql_name, of)), f"{sql_name(time)}, {sql_name(page)}"
    first = f"first_value({sql_name(page)}) OVER (PARTITION BY {by} ORDER BY {order})"
    return sql_option(f"SELECT * FROM {VIEW} QUALIFY {sql_name(page)} = {first}")


def sql_joined(columns: Sequence[str], name: str) -> str:
    """The option that joins the texts of several columns as one more, for messages."""
    texts = ", '-', ".join(map(sql_name, columns))
    return sql_option(f"SELECT *, concat({texts}) AS {sql_name(name)} FROM {VIEW}")


def sql_counted_from(column: str, shift: int, condition: str) -> str:
    """The option that adds to the numbers of a column where a condition holds, for messages."""
    name = sql_name(column)
    number = f"CAST({name} AS BIGINT) + CASE WHEN {condition} THEN {shift} ELSE 0 END"
    return sql_option(f"SELECT * REPLACE ({number} AS {name}) FROM {VIEW}")


def sql_negated(column: str) -> str:
    """The option that reads the numbers of a column with the opposite sign, for messages."""
    name = sql_name(column)
    return sql_option(f"SELECT * REPLACE (-CAST({name} AS BIGINT) AS {name}) FROM {VIEW}")


def sql_of_places(page: Sequence[str], position: str, base: int) -> str:
    """The option that numbers the rows of each page from `base` on in the order of their positions, for messages."""
    name, by = sql_name(position), ", ".join(map(sql_name, page))
    place = f"row_number() OVER (PARTITION BY {by} ORDER BY CAST({name} AS BIGINT))"
    place = place if base == 1 else f"{place} + {base - 1}"
    return sql_option(f"SELECT * REPLACE ({place} AS {name}) FROM {VIEW}")


def sql_unnested(columns: Sequence[str]) -> str:
    """The option that makes a row of each entry of lists, for messages."""
    names = [*map(sql_name, columns)]
    entries = ", ".join(f"unnest({name}) AS {name}" for name in names)
    return sql_option(f"SELECT * EXCLUDE ({', '.join(names)}), {entries} FROM {VIEW}")


def rows_of_structs(column: str) -> str:
    """The query that makes a row of each entry of a list of structs, with its fields as columns."""
    return f"SELECT * EXCLUDE ({sql_name(column)}), unnest({sql_name(column)}, max_depth := 2) FROM {VIEW}"


def sql_of_click(column: str, condition: str = "IS NOT NULL") -> str:
    """The query that makes a click of a column that holds its time where a condition holds."""
    return f"SELECT * EXCLUDE ({sql_name(column)}), {sql_name(column)} {condition} AS click FROM {VIEW}"


def sql_of_pages(of_page: Sequence[str], docs: Sequence[str], clicks: Sequence[str], *, with_session: bool) -> str:
    """The query that makes a row of each position of pages with columns for each."""
    names = [*map(sql_name, of_page), *(["row_number() OVER () AS session"] if with_session else [])]
    for role, of_each in {"doc": docs, "click": clicks}.items():
        names.append(f"unnest([{', '.join(map(sql_name, of_each))}]) AS {role}")
    places = f"{', '.join(names)}, unnest(range(1, {len(docs) + 1})) AS position"
    return f"SELECT * FROM (SELECT {places} FROM {VIEW}) WHERE length(CAST(doc AS VARCHAR)) > 0"


def sql_of_swaps(page: Sequence[str], position: str, ranks: Sequence[str], base: int = 1) -> str:
    """The query that marks, as `swap`, the rounds of team drafts, positions 2r - 1 and 2r, in which a coin swaps.

    These are the rounds whose documents the rankers order differently. `page`, `position` and `ranks` are columns, and
    `base` is the number of the topmost position. A document without a rank is below all others.
    """
    place = f"(CAST({sql_name(position)} AS INT) - {base})"
    sums = [f"sum(sign * coalesce(CAST({sql_name(rank)} AS DOUBLE), 1e9)) OVER round" for rank in ranks]
    return (
        f"SELECT * EXCLUDE (sign), {' * '.join(sums)} < 0 AS swap FROM (SELECT *, 1 - {place} % 2 * 2 AS sign FROM "
        f"{VIEW}) WINDOW round AS (PARTITION BY {', '.join(map(sql_name, page))}, {place} // 2)"
    )


def sql_option(query: str) -> str:
    """The option of a query as a shell reads it, which runs and replaces nothing of the names of a log."""
    return f"--sql {shlex.quote(query)}" if _SPECIAL.intersection(query) else f'--sql "{query}"'


_SPECIAL = frozenset('"$`\\!')
"""What has a meaning for a shell between double quotes."""


def sql_name(column: str) -> str:
    """A column in a query: in quotes where its name is more than one word."""
    return column if column.isidentifier() else quoted_name(column)


def sql_text(value: object) -> str:
    """A text in a query."""
    return "'" + str(value).replace("'", "''") + "'"


def sql_coalesced(columns: Sequence[str], sources: Iterable[Source]) -> str:
    """How to read columns of which each file has another as one, called like the first, for messages."""
    names, query = ", ".join(map(sql_name, columns)), f"SELECT * FROM {VIEW}"
    if len({column.translate(_LOWER_CASE) for column in columns}) > 1:  # or else they are one for DuckDB already
        query = f"SELECT * EXCLUDE ({names}), coalesce({names}) AS {sql_name(columns[0])} FROM {VIEW}"
    elif any(source.format == "ndjson" for source in sources):  # whose names DuckDB takes to the letter
        return "rename one of them"
    return f"read them as one: {sql_option(query)}"


def sql_without(column: str) -> str:
    """The option that reads a log without one of its columns, for messages."""
    return sql_option(f"SELECT * EXCLUDE ({sql_name(column)}) FROM {VIEW}")


def result_of(query: Query, sources: Sequence[Source]) -> Source:
    """Run a query over files; its rows as a Parquet file that lives as long as the command.

    Raises:
        UsageError: the query is not one SELECT, cannot be run, or reads something else than the files; or two files
            hold the same rows.
        LogFormatError: a file cannot be read.
        SchemaError: there are no rows, or names of columns differ in case alone.
        OutputError: there is no space for the rows.
    """
    key = query, tuple(sources)
    if key in copies:
        return copies[key]
    duckdb, folder = import_module("duckdb"), folder_for_copies()
    quoted, _ = resolve_quotes(sources)
    quoted = [source for source in quoted if source.format != "ndjson" or has_rows(source)]  # of no lines, of no names
    if not quoted:
        raise SchemaError(f"{sources[0].path}: the log holds no rows.")
    suffix = query_suffix(query.text) if query.selects else ""
    made_of = tuple((f"{digest}{suffix}", path) for digest, path in digests(quoted, has_rows).items())
    result = folder / "result.parquet"
    with temporary_files(folder), connected(folder, query.memory // _OF_MEMORY, query.flag) as connection:
        try:
            _register(connection, query, quoted, result)
        except duckdb.Error as error:
            raise LogFormatError(f"{query.flag}: a file cannot be read: {_message(error)[0]}") from error
        try:
            _write(connection, query, result)
        except duckdb.Error as error:
            if is_disk_full(folder, error):
                raise OSError(str(error)) from error
            message, line, column = _message(error, query.text)
            if "Timestamp(MS)" in message:
                _check_times(quoted, query.flag)
            place = "" if line is None else f", line {line}, column {column}"
            raise UsageError(f"{query.flag}{place}: {message}") from error
    check_unchanged(sources)
    copies[key] = made = Source.temporary(query.flag, "parquet", result, made_of)
    return made


@contextmanager
def connected(folder: Path, memory: int, where: str) -> Generator[Any]:
    """A connection to DuckDB that keeps to so much memory, and spills into a folder.

    Raises:
        UsageError: the memory is not enough.
        SchemaError: it cannot do what it is to do.
    """
    duckdb, limit = import_module("duckdb"), max(memory, _LEAST)
    limits = {
        "memory_limit": f"{limit}B",
        "temp_directory": str(folder / "spilled"),
        "threads": str(pl.thread_pool_size()),
    }
    try:
        with duckdb.connect(":memory:", config=_SETTINGS | limits) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            yield connection
    except duckdb.Error as error:
        if is_disk_full(folder, error):
            raise OSError(str(error)) from error
        if isinstance(error, duckdb.OutOfMemoryException):
            raise UsageError(f"{where}: {limit:,} bytes are not enough to join it. Use a larger --memory.") from error
        raise SchemaError(f"{where}: {_message(error)[0]}") from error


def shut_off(connection: Any, paths: Iterable[object]) -> None:  # noqa: ANN401 - the types of DuckDB are not complete
    """Let DuckDB read and write these files, and nothing else; no setting can be changed any more."""
    allowed = {form: None for path in map(str, paths) for form in (path, glob.escape(path))}
    connection.execute(f"SET allowed_paths = [{', '.join(map(sql_text, allowed))}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def parquet_rows(files: Iterable[Path | str]) -> str:
    """What reads Parquet files, in SQL."""
    escaped = (sql_text(glob.escape(str(file))) for file in files)
    return f"read_parquet([{', '.join(escaped)}], union_by_name = true, hive_partitioning = false)"


def write_parquet(connection: Any, query: str, file: Path) -> None:  # noqa: ANN401 - as above
    """Write the rows of a query."""
    connection.execute(f"COPY ({query}) TO {sql_text(file)} (FORMAT parquet, ROW_GROUP_SIZE {_ROW_GROUP})")


def _register(connection: Any, query: Query, sources: Sequence[Source], result: Path) -> None:  # noqa: ANN401 - as above
    """Make the view of the files; from then on, nothing else can be read or written, but for the result.

    Raises:
        SchemaError: names of columns differ in case alone.
        LogFormatError: a file cannot be read.
    """
    parts, paths, reads = list[str](), [str(result)], list[tuple[Source, Any]]()
    for number, ((form, folders, packed, _), some) in enumerate(groupby(sources, key=_likeness)):
        group = [*some]
        files = [str(Path(str(source.place)).resolve()) for source in group]
        for source in group if form != "ndjson" else ():
            header = [(name,) for name in header_of(source)]
            _check_names([(source, header or [*_names_below((), dict(schema_of(source)))])], query.flag)
        if form not in {"parquet", "ndjson"}:
            files, folders = [str(result.parent / f"{number}.parquet")], ()  # noqa: PLW2901 - a copy
            with reading(group):
                scan_sources(group).sink_parquet(files[0], compression="lz4")
        paths += files
        if form == "ndjson":
            listed = f"[{', '.join(sql_text(glob.escape(file)) for file in files)}]"
            read = _read_ndjson(connection, listed, packed, dict(zip(files, group, strict=True)), query.flag)
        else:
            read = parquet_rows(files)
        reads.append((group[0], connection.sql(f"FROM {read}")))
        own = {*reads[-1][1].columns}
        in_names = [
            f", {'NULL' if value is None else sql_text(value)} AS {quoted_name(key)}"
            for key, value in folders
            if key not in own
        ]
        parts.append(f"SELECT *{''.join(in_names)} FROM {read}")
    _check_exact(reads)
    base = "NULL" if query.position_base is None else query.position_base
    connection.execute(f"SET VARIABLE position_base = {base}")
    connection.execute("SET errors_as_json = true")
    shut_off(connection, paths)
    connection.execute(f"CREATE VIEW {VIEW} AS {' UNION ALL BY NAME '.join(parts)}")


def _likeness(source: Source) -> tuple[str, tuple[tuple[str, str | None], ...], str, pl.Schema | None]:
    """The properties that files must share to be read at once: format, folders, wrapper of NDJSON, or else columns."""
    if source.format != "ndjson":
        return source.format, source.hive, "", schema_of(source)
    start = read_start(source, 2) if source.copy is None else b""
    return source.format, source.hive, _PACKED.get(start, "uncompressed"), None


def _names_below(path: tuple[str, ...], structure: Any) -> Iterator[tuple[str, ...]]:  # noqa: ANN401 - of two kinds
    """The paths of fields in a type of Polars, or in a structure of JSON: a dict of fields, a list of one structure."""
    while isinstance(structure, list | pl.List | pl.Array):
        structure = cast("Any", structure[0] if isinstance(structure, list) else structure.inner)
    structure = structure.to_schema() if isinstance(structure, pl.Struct) else structure
    for name, inner in cast("dict[str, Any]", structure).items() if isinstance(structure, dict) else ():
        yield (*path, name)
        yield from _names_below((*path, name), inner)


def _check_names(files: Iterable[tuple[Source, Sequence[tuple[str, ...]]]], flag: str) -> None:
    """Check that no two columns, or fields of one, are the same for DuckDB, for which case makes no difference.

    Raises:
        SchemaError: two are, in a file or in two of them, or one and a folder `key=value`.
    """
    known: dict[tuple[str, ...], tuple[tuple[str, ...], Source]] = {}
    for file, names in files:
        own = set[tuple[str, ...]]()
        for name in (*names, *((key,) for key, _ in file.hive if (key,) not in names)):
            key = tuple(part.strip().translate(_LOWER_CASE) for part in name)
            other, first = known.setdefault(key, (name, file))
            if any(key) and (name != other or key in own):
                where = " and ".join(dict.fromkeys((str(first.path), str(file.path))))
                without = f", or read the log without {flag}" if first is file else ""
                raise SchemaError(
                    f"{where}: columns are called alike: {'.'.join(other)!r} and {'.'.join(name)!r}. A query does not "
                    f"tell them apart. Rename one of them{without}."
                )
            own.add(key)


def _check_exact(reads: Iterable[tuple[Source, Any]]) -> None:
    """Check that whole numbers stay what they are where other files hold fractions, as which a query then reads both.

    Args:
        reads: rows of files that are read at once, as DuckDB sees them, each with the first of the files.

    Raises:
        SchemaError: some are too large for that.
    """
    of = defaultdict[_Place, list[tuple[_Place, str, Source, Any]]](list)
    for source, rows in reads:
        for name, dtype in zip(rows.columns, rows.types, strict=True):
            for place, kind in _leaves((name,), dtype):
                folded = cast("_Place", tuple(part and part.translate(_LOWER_CASE) for part in place))
                of[folded].append((place, kind, source, rows))
    for held in of.values():
        fractions = [(_EXACT[kind], source) for _, kind, source, _ in held if kind in _EXACT]
        for (name, *below), kind, source, rows in held if fractions else ():
            beyond, other = max(fractions, key=itemgetter(0))
            exact = _meets(quoted_name(name), below, f"abs(CAST($v AS DOUBLE)) < {beyond}")
            if kind.endswith(_WHOLE) and rows.filter(f"NOT {exact}").limit(1).fetchall():
                raise SchemaError(
                    f"{source.path}: column {'.'.join(filter(None, (name, *below)))!r} holds whole numbers, here or in "
                    f"files with the same columns, that are not exact beside the fractions in {other.path}. Write the "
                    "files with the same type."
                )


def _check_times(sources: Sequence[Source], flag: str) -> None:
    """Check that the milliseconds of Parquet files have a number as microseconds, in which DuckDB reads them.

    Raises:
        SchemaError: some have none.
    """
    for source in (one for one in sources if one.format == "parquet"):
        file = pl.scan_parquet(str(source.place), glob=False)
        for name, dtype in file.collect_schema().items():
            if isinstance(dtype, pl.Datetime) and dtype.time_unit == "ms":
                times = file.select(pl.col(name).to_physical()).with_row_index(ROW, 1)
                beyond = times.filter(~pl.col(name).is_between(-_MOST_MS, _MOST_MS)).head(1).collect().rows()
                for row, value in beyond:
                    raise SchemaError(
                        f"{source.path} row {row:,}: column {name!r} holds {value:,} milliseconds since 1970, a time "
                        f"that a query cannot hold. Mend it, or read the log without {flag}."
                    )


_Place = tuple[str, *tuple[str | None, ...]]
"""Where a value of JSON stands: its column, then names of fields, None for the entries of a list."""


def _read_ndjson(connection: Any, files: str, packed: str, sources: Mapping[str, Source], flag: str) -> str:  # noqa: ANN401 - as above
    """What reads NDJSON with types under which every value stays what it is.

    Raises:
        LogFormatError: a line is no JSON object.
        SchemaError: names of columns differ in case alone.
    """
    read = f"{files}, format = 'newline_delimited', records = true, hive_partitioning = false, compression = '{packed}'"
    lines = f"read_ndjson_objects({files}, filename = true, compression = '{packed}')"
    try:
        guessed = connection.sql(f"FROM read_json({read}, {_GUESS})")
    except import_module("duckdb").Error:
        _check_lines(connection, lines, sources, flag)
        raise
    lower = [name.translate(_LOWER_CASE) for name in guessed.columns]
    folders = {key.translate(_LOWER_CASE) for source in sources.values() for key, _ in source.hive}
    if folders & {*lower} or any((match := _RENAMED.fullmatch(name)) and match[1] in lower for name in lower):
        _check_lines(connection, lines, sources, flag)
    types = dict[str, Any](zip(guessed.columns, guessed.types, strict=True))
    leaves = [leaf for name, dtype in types.items() for leaf in _leaves((name,), dtype)]
    exact = {place: guess if guess in _KEPT else "VARCHAR" for place, guess in leaves}
    doubtful = sorted((leaf for leaf in leaves if leaf[1] in _DOUBTFUL), key=lambda leaf: len(leaf[0]))
    exact |= dict(doubtful[_MOST_DOUBTS:])
    choices = [(place, choice) for place, guess in doubtful[:_MOST_DOUBTS] for choice in _DOUBTFUL[guess].items()]
    if choices:
        as_json = exact | {place: "JSON" for place, _ in choices}
        columns = _columns({name: types[name] for name in dict.fromkeys(place[0] for place, _ in choices)}, as_json)
        met = ", ".join(
            f"bool_and({_meets(quoted_name(name), below, choice[1])})" for (name, *below), choice in choices
        )
        (holds,) = connection.execute(f"SELECT {met} FROM read_json({read}, {columns})").fetchall()
        exact |= {place: choice[0] for (place, choice), is_met in [*zip(choices, holds, strict=True)][::-1] if is_met}
    return f"read_json({read}, {_columns(types, exact)})"


def _columns(types: Mapping[str, Any], exact: Mapping[_Place, str]) -> str:
    """The argument of `read_json` that gives the types of columns."""
    columns = (f"{sql_text(name)}: {sql_text(_type_with((name,), dtype, exact))}" for name, dtype in types.items())
    return f"columns = {{{', '.join(columns)}}}"


def _leaves(place: _Place, dtype: Any) -> Iterator[tuple[_Place, str]]:  # noqa: ANN401 - a type of DuckDB
    """The places of a column that hold no fields or lists, with the names of their types."""
    if dtype.id not in {"struct", "list"}:
        yield place, str(dtype)
        return
    for name, inner in dtype.children:
        yield from _leaves((*place, name if dtype.id == "struct" else None), inner)


def _type_with(place: _Place, dtype: Any, exact: Mapping[_Place, str]) -> str:  # noqa: ANN401 - a type of DuckDB
    """The type of a column whose places without fields or lists are of certain types."""
    if dtype.id == "list":
        return f"{_type_with((*place, None), dtype.children[0][1], exact)}[]"
    if dtype.id == "struct":
        fields = [f"{quoted_name(name)} {_type_with((*place, name), inner, exact)}" for name, inner in dtype.children]
        return f"STRUCT({', '.join(fields)})"
    return exact[place]


def _meets(value: str, below: Sequence[str | None], condition: str) -> str:
    """Whether a value, or all those at a place below it, meet a condition, in SQL; a missing one does."""
    if not below:
        text = f"CAST({value} AS VARCHAR)"
        return f"({text} IS NULL OR {condition.replace('$v', text)})"
    if below[0] is not None:
        return _meets(f"struct_extract({value}, {sql_text(below[0])})", below[1:], condition)
    entry = f"entry_{len(below)}"
    return f"coalesce(len(list_filter({value}, lambda {entry}: NOT {_meets(entry, below[1:], condition)})) = 0, true)"


def _check_lines(connection: Any, lines: str, sources: Mapping[str, Source], flag: str) -> None:  # noqa: ANN401 - as above
    """Look at the names in every line of NDJSON.

    Raises:
        LogFormatError: a line is no JSON object, or has a field without a name.
        SchemaError: names of columns differ in case alone, among them those of folders.
    """
    lines_alike = f"SELECT json_structure(json), min(filename) FROM {lines} GROUP BY ALL ORDER BY ALL"
    names = list[tuple[Source, list[tuple[str, ...]]]]()
    for text, file in connection.execute(lines_alike).fetchall():
        structure = json.loads(text)
        if not isinstance(structure, dict) or "" in structure:
            raise LogFormatError(
                f"{sources[file].path}: a line is no JSON object, or has a field without a name. Mend it."
            )
        names.append((sources[file], [*_names_below((), structure)]))
    _check_names(names, flag)


def _write(connection: Any, query: Query, result: Path) -> None:  # noqa: ANN401 - as above
    """Write the rows of a query, seen to be one SELECT that comes to an end.

    Raises:
        UsageError: it is not.
    """
    statements = connection.extract_statements(" " * len(_AHEAD) + query.text)
    if len(statements) != 1 or statements[0].type.name != "SELECT":
        kinds = " and ".join(statement.type.name for statement in statements) or "empty"
        raise UsageError(f"{query.flag}: the query is {kinds}. Write one SELECT ... FROM {VIEW}.")
    connection.execute(_AHEAD + query.text)
    plan = connection.execute(f"EXPLAIN (FORMAT json) FROM {_RESULT}").fetchall()
    if any('"REC_CTE"' in part for _, part in plan):
        raise UsageError(f"{query.flag}: a recursive query may never end, and is not run. Write it without RECURSIVE.")
    twice = Counter(name.translate(_LOWER_CASE) for name in connection.sql(query.text).columns).most_common(1)
    if twice[0][1] > 1:
        name = sql_name(twice[0][0])
        raise UsageError(
            f"{query.flag}: {twice[0][1]} columns of the result are called {name}, and case makes no difference. Give "
            f"each a name of its own; to replace a column of the log, write SELECT * REPLACE (... AS {name})."
        )
    columns = connection.execute(f"DESCRIBE {_RESULT}").fetchall()
    written = [
        f"{_WRITTEN_AS[dtype].format(quoted_name(name))} AS {quoted_name(name)}"
        for name, dtype, *_ in columns
        if dtype in _WRITTEN_AS
    ]
    replaced = f" REPLACE ({', '.join(written)})" if written else ""
    write_parquet(connection, f"SELECT *{replaced} FROM {_RESULT}", result)


_ADVICE = re.compile(r"\n\s*(?:Try |LINE [0-9]+:|Possible solutions:)")
"""What follows the message in DuckDB's errors: options of its own, and a part of a query that may not be the user's."""


def _message(error: Exception, text: str = "") -> tuple[str, int | None, int | None]:
    """The message of DuckDB as one line, with its line and column in the query, if it has them."""
    text_of_error = str(error)
    try:
        details = json.loads(text_of_error[text_of_error.index("{") :])
    except ValueError:
        details = {"exception_message": text_of_error}
    message = " ".join(_ADVICE.split(str(details.get("exception_message", text_of_error)))[0].split())
    if "position" not in details:
        return message, None, None
    before = text.encode()[: max(int(details["position"]) - len(_AHEAD), 0)].decode(errors="ignore")
    return message, before.count("\n") + 1, len(before) - before.rfind("\n")


def quoted_name(column: str) -> str:
    """A column in a query, in quotes."""
    return '"' + column.replace('"', '""') + '"'
