"""Queries over the files of a log, `--sql "SELECT ... FROM log"`, run by DuckDB; and SQL in messages.

A query sees the files as the view `log`, and nothing else: no other file, no network, no extension, no setting. Its
rows are written to a temporary Parquet file, which is read as the log.
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

_LOWER_CASE = str.maketrans(ascii_uppercase, ascii_lowercase)  # DuckDB ignores case in ASCII alone

_SETTINGS = {
    "allow_community_extensions": "false",
    "allow_persistent_secrets": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
}
_MEMORY_DIVISOR = 2  # DuckDB gets half of the memory; the process and Polars take the rest
_LEAST_MEMORY = 256 << 20  # bytes
# Infer types from all lines, and structs rather than maps.
_INFERENCE = "union_by_name = true, sample_size = -1, map_inference_threshold = -1, field_appearance_threshold = 0"
_EXACT = {"FLOAT": 1 << 24, "DOUBLE": 1 << 53}
"""Bounds below which all integers are exact in a type of fractions. DuckDB uses FLOAT unless a file has DOUBLE."""
_MOST_MS = (2**63 - 1) // 1000  # milliseconds that are microseconds in 64 bits
_INTEGERS = ("INT", "INTEGER")  # endings of integer types
_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"\x28\xb5": "zstd"}
"""DuckDB's names of compressions, by the first two bytes of a file."""
_RENAMED = re.compile(r"(.+)_[0-9]+")
"""Pattern of the names that DuckDB gives to repeated columns."""
_RELIABLE = ("BIGINT", "BOOLEAN", "UBIGINT")
"""Inferred types of JSON to accept. Inferred dates, times and UUIDs are text."""
_DOUBTFUL = {
    "JSON": {"VARCHAR": "NOT regexp_matches($v, '^[\\[{]')", "JSON": "true"},
    "DOUBLE": {"DOUBLE": "NOT regexp_full_match($v, '-?[0-9]+') OR abs(TRY_CAST($v AS DOUBLE)) < 9007199254740992"},
    "HUGEINT": {"BIGINT": "TRY_CAST($v AS BIGINT) IS NOT NULL", "UBIGINT": "TRY_CAST($v AS UBIGINT) IS NOT NULL"},
}
"""Types to use for an inferred type, each with the condition that all values `$v` must meet.

The first type whose condition holds is used, or else VARCHAR: a column of text and numbers is text, unless an entry is
an object or list.
"""
_MOST_DOUBTFUL = 100  # an object with more fields has data for names; outer fields are examined first

# Types that Parquet lacks, or that a reader of Parquet would interpret differently.
_PARQUET_CASTS = {
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
    memory: int  # bytes for the whole process
    flag: str = "--sql"  # the option of the query, for messages
    position_base: int | None = None  # a variable for the query
    selects: bool = True  # whether it may omit rows of a file, so that the rest of the file can be read as another log


def sql_where(condition: str) -> str:
    """Return the option that filters the rows of a log."""
    return sql_option(f"SELECT * FROM {VIEW} WHERE {condition}")


def sql_of_first_pages(page: str, groups: Sequence[str], time: str) -> str:
    """Return the option that retains the first page of each group, by time."""
    by, order = ", ".join(map(sql_name, groups)), f"{sql_name(time)}, {sql_name(page)}"
    first = f"first_value({sql_name(page)}) OVER (PARTITION BY {by} ORDER BY {order})"
    return sql_option(f"SELECT * FROM {VIEW} QUALIFY {sql_name(page)} = {first}")


def sql_joined(columns: Sequence[str], name: str) -> str:
    """Return the option that adds a column with the texts of several columns."""
    texts = ", '-', ".join(map(sql_name, columns))
    return sql_option(f"SELECT *, concat({texts}) AS {sql_name(name)} FROM {VIEW}")


def sql_counted_from(column: str, shift: int, condition: str) -> str:
    """Return the option that adds a number to a column where a condition holds."""
    name = sql_name(column)
    number = f"CAST({name} AS BIGINT) + CASE WHEN {condition} THEN {shift} ELSE 0 END"
    return sql_option(f"SELECT * REPLACE ({number} AS {name}) FROM {VIEW}")


def sql_negated(column: str) -> str:
    """Return the option that negates a column of numbers."""
    name = sql_name(column)
    return sql_option(f"SELECT * REPLACE (-CAST({name} AS BIGINT) AS {name}) FROM {VIEW}")


def sql_of_places(page: Sequence[str], position: str, base: int) -> str:
    """Return the option that numbers the rows of each page from `base` on, in the order of their positions."""
    name, by = sql_name(position), ", ".join(map(sql_name, page))
    place = f"row_number() OVER (PARTITION BY {by} ORDER BY CAST({name} AS BIGINT))"
    place = place if base == 1 else f"{place} + {base - 1}"
    return sql_option(f"SELECT * REPLACE ({place} AS {name}) FROM {VIEW}")


def sql_unnested(columns: Sequence[str]) -> str:
    """Return the option that makes a row of each entry of lists."""
    names = [*map(sql_name, columns)]
    entries = ", ".join(f"unnest({name}) AS {name}" for name in names)
    return sql_option(f"SELECT * EXCLUDE ({', '.join(names)}), {entries} FROM {VIEW}")


def sql_of_structs(column: str) -> str:
    """Return the query that makes a row of each struct in a list, with its fields as columns."""
    return f"SELECT * EXCLUDE ({sql_name(column)}), unnest({sql_name(column)}, max_depth := 2) FROM {VIEW}"


def sql_of_click(column: str, condition: str = "IS NOT NULL") -> str:
    """Return the query that replaces a column of times of clicks by `click`, true where the condition holds."""
    return f"SELECT * EXCLUDE ({sql_name(column)}), {sql_name(column)} {condition} AS click FROM {VIEW}"


def sql_of_pages(page: Sequence[str], docs: Sequence[str], clicks: Sequence[str], *, with_session: bool) -> str:
    """Return the query that makes a row of each position of pages that have columns for each position."""
    names = [*map(sql_name, page), *(["row_number() OVER () AS session"] if with_session else [])]
    for role, columns in {"doc": docs, "click": clicks}.items():
        names.append(f"unnest([{', '.join(map(sql_name, columns))}]) AS {role}")
    rows = f"{', '.join(names)}, unnest(range(1, {len(docs) + 1})) AS position"
    return f"SELECT * FROM (SELECT {rows} FROM {VIEW}) WHERE length(CAST(doc AS VARCHAR)) > 0"


def sql_of_swaps(page: Sequence[str], position: str, ranks: Sequence[str], base: int = 1) -> str:
    """Return the query that marks, as `swap`, the rounds of a team draft (positions 2r - 1, 2r) that a coin can swap.

    These are the rounds whose documents the rankers order differently. A document without a rank is below all others.

    Args:
        page: columns that tell pages apart.
        position: the column of positions.
        ranks: the columns of the two rankers' ranks.
        base: the number of the topmost position.
    """
    place = f"(CAST({sql_name(position)} AS INT) - {base})"
    sums = [f"sum(sign * coalesce(CAST({sql_name(rank)} AS DOUBLE), 1e9)) OVER round" for rank in ranks]
    return (
        f"SELECT * EXCLUDE (sign), {' * '.join(sums)} < 0 AS swap FROM (SELECT *, 1 - {place} % 2 * 2 AS sign FROM "
        f"{VIEW}) WINDOW round AS (PARTITION BY {', '.join(map(sql_name, page))}, {place} // 2)"
    )


def sql_option(query: str) -> str:
    """Return the option --sql, quoted for a shell."""
    return f"--sql {shlex.quote(query)}" if _SHELL_CHARACTERS.intersection(query) else f'--sql "{query}"'


_SHELL_CHARACTERS = frozenset('"$`\\!')
"""Characters that a shell interprets between double quotes."""


def sql_name(column: str) -> str:
    """Return the name of a column for a query, in quotes unless it is an identifier."""
    return column if column.isidentifier() else quoted_name(column)


def sql_text(value: object) -> str:
    """Return a string literal."""
    return "'" + str(value).replace("'", "''") + "'"


def sql_coalesced(columns: Sequence[str], sources: Iterable[Source]) -> str:
    """Return advice for reading columns, of which each file has a different one, as one with the first name."""
    names, query = ", ".join(map(sql_name, columns)), f"SELECT * FROM {VIEW}"
    if len({column.translate(_LOWER_CASE) for column in columns}) > 1:  # otherwise they are one column for DuckDB
        query = f"SELECT * EXCLUDE ({names}), coalesce({names}) AS {sql_name(columns[0])} FROM {VIEW}"
    elif any(source.format == "ndjson" for source in sources):  # names of JSON are case-sensitive
        return "rename one of them"
    return f"read them as one: {sql_option(query)}"


def sql_without(column: str) -> str:
    """Return the option that leaves out a column."""
    return sql_option(f"SELECT * EXCLUDE ({sql_name(column)}) FROM {VIEW}")


def run_query(query: Query, sources: Sequence[Source]) -> Source:
    """Run a query over files and write its rows to a Parquet file, which exists until the command ends.

    Raises:
        UsageError: the query is not one SELECT, fails, or reads something else than the files; or two files are equal.
        LogFormatError: a file cannot be read, or was changed meanwhile.
        SchemaError: the files hold no rows, names of columns differ in case alone, or values would not stay exact.
        OutputError: the disk is full.
    """
    key = query, tuple(sources)
    if key in copies:
        return copies[key]
    duckdb, folder = import_module("duckdb"), folder_for_copies()
    quoted, _ = resolve_quotes(sources)
    quoted = [source for source in quoted if source.format != "ndjson" or has_rows(source)]  # others have no columns
    if not quoted:
        raise SchemaError(f"{sources[0].path}: the log holds no rows.")
    suffix = query_suffix(query.text) if query.selects else ""
    made_of = tuple((f"{digest}{suffix}", path) for digest, path in digests(quoted, has_rows).items())
    result = folder / "result.parquet"
    with temporary_files(folder), connect(folder, query.memory // _MEMORY_DIVISOR, query.flag) as connection:
        try:
            _create_view(connection, query, quoted, result)
        except duckdb.Error as error:
            raise LogFormatError(f"{query.flag}: a file cannot be read: {_parse_error(error)[0]}") from error
        try:
            _write(connection, query, result)
        except duckdb.Error as error:
            if is_disk_full(folder, error):
                raise OSError(str(error)) from error
            message, line, column = _parse_error(error, query.text)
            if "Timestamp(MS)" in message:
                _check_times(quoted, query.flag)
            place = "" if line is None else f", line {line}, column {column}"
            raise UsageError(f"{query.flag}{place}: {message}") from error
    check_unchanged(sources)
    copies[key] = made = Source.temporary(query.flag, "parquet", result, made_of)
    return made


@contextmanager
def connect(folder: Path, memory: int, where: str) -> Generator[Any]:
    """Open a connection to DuckDB for the block.

    Args:
        folder: directory for temporary files.
        memory: limit in bytes, at least 256 MiB.
        where: the log or option, for messages.

    Raises:
        UsageError: the memory is not enough.
        SchemaError: a statement fails.
        OSError: the disk is full.
    """
    duckdb, limit = import_module("duckdb"), max(memory, _LEAST_MEMORY)
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
        raise SchemaError(f"{where}: {_parse_error(error)[0]}") from error


def restrict(connection: Any, paths: Iterable[object]) -> None:  # noqa: ANN401 - the types of DuckDB are not complete
    """Restrict DuckDB to reading and writing these files, and lock its settings."""
    allowed = {name: None for path in map(str, paths) for name in (path, glob.escape(path))}
    connection.execute(f"SET allowed_paths = [{', '.join(map(sql_text, allowed))}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def parquet_rows(files: Iterable[Path | str]) -> str:
    """Return the table expression of Parquet files."""
    escaped = (sql_text(glob.escape(str(file))) for file in files)
    return f"read_parquet([{', '.join(escaped)}], union_by_name = true, hive_partitioning = false)"


def write_parquet(connection: Any, query: str, file: Path) -> None:  # noqa: ANN401 - as above
    """Write the rows of a query to a Parquet file."""
    connection.execute(f"COPY ({query}) TO {sql_text(file)} (FORMAT parquet, ROW_GROUP_SIZE {_ROW_GROUP})")


def _create_view(connection: Any, query: Query, sources: Sequence[Source], result: Path) -> None:  # noqa: ANN401 - as above
    """Create the view of the files, and restrict DuckDB to the files and the result.

    Raises:
        SchemaError: names of columns differ in case alone, or integers would not stay exact.
        LogFormatError: a file cannot be read.
    """
    parts, paths, reads = list[str](), [str(result)], list[tuple[Source, Any]]()
    for number, ((form, folders, compression, _), sources_alike) in enumerate(groupby(sources, key=_view_key)):
        group = [*sources_alike]
        files = [str(Path(str(source.place)).resolve()) for source in group]
        for source in group if form != "ndjson" else ():
            header = [(name,) for name in header_of(source)]
            _check_names([(source, header or [*_field_paths((), dict(schema_of(source)))])], query.flag)
        if form not in {"parquet", "ndjson"}:
            files, folders = [str(result.parent / f"{number}.parquet")], ()  # noqa: PLW2901 - a copy
            with reading(group):
                scan_sources(group).sink_parquet(files[0], compression="lz4")
        paths += files
        if form == "ndjson":
            listed = f"[{', '.join(sql_text(glob.escape(file)) for file in files)}]"
            read = _read_ndjson(connection, listed, compression, dict(zip(files, group, strict=True)), query.flag)
        else:
            read = parquet_rows(files)
        rows = connection.sql(f"FROM {read}")
        reads.append((group[0], rows))
        from_folders = [
            f", {'NULL' if value is None else sql_text(value)} AS {quoted_name(key)}"
            for key, value in folders
            if key not in rows.columns
        ]
        parts.append(f"SELECT *{''.join(from_folders)} FROM {read}")
    _check_exact(reads)
    base = "NULL" if query.position_base is None else query.position_base
    connection.execute(f"SET VARIABLE position_base = {base}")
    connection.execute("SET errors_as_json = true")
    restrict(connection, paths)
    connection.execute(f"CREATE VIEW {VIEW} AS {' UNION ALL BY NAME '.join(parts)}")


def _view_key(source: Source) -> tuple[str, tuple[tuple[str, str | None], ...], str, pl.Schema | None]:
    """Return the common properties of files of one part: format, folders, compression of NDJSON, schema of others."""
    if source.format != "ndjson":
        return source.format, source.hive, "", schema_of(source)
    start = read_start(source, 2) if source.copy is None else b""
    return source.format, source.hive, _COMPRESSIONS.get(start, "uncompressed"), None


def _field_paths(path: tuple[str, ...], structure: Any) -> Iterator[tuple[str, ...]]:  # noqa: ANN401 - of two kinds
    """Yield the paths of all fields of a type of Polars, or of DuckDB's `json_structure` (dicts, lists of one)."""
    while isinstance(structure, list | pl.List | pl.Array):
        structure = cast("Any", structure[0] if isinstance(structure, list) else structure.inner)
    structure = structure.to_schema() if isinstance(structure, pl.Struct) else structure
    for name, inner in cast("dict[str, Any]", structure).items() if isinstance(structure, dict) else ():
        yield (*path, name)
        yield from _field_paths((*path, name), inner)


def _check_names(files: Iterable[tuple[Source, Sequence[tuple[str, ...]]]], flag: str) -> None:
    """Raise SchemaError if names of columns, fields or folders differ in case or blanks alone, as DuckDB ignores these.

    Args:
        files: files with the paths of their fields.
        flag: the option of the query, for the message.
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
    """Raise SchemaError if integers are not exact as the fractions that other files hold in the same place.

    Args:
        reads: rows of the parts of the view, as relations of DuckDB, each with the first file of the part.
    """
    by_place = defaultdict[_Place, list[tuple[_Place, str, Source, Any]]](list)
    for source, rows in reads:
        for name, dtype in zip(rows.columns, rows.types, strict=True):
            for place, kind in _leaves((name,), dtype):
                folded = cast("_Place", tuple(part and part.translate(_LOWER_CASE) for part in place))
                by_place[folded].append((place, kind, source, rows))
    for values in by_place.values():
        fractions = [(_EXACT[kind], source) for _, kind, source, _ in values if kind in _EXACT]
        for (name, *below), kind, source, rows in values if fractions else ():
            bound, other = max(fractions, key=itemgetter(0))
            exact = _all_meet(quoted_name(name), below, f"abs(CAST($v AS DOUBLE)) < {bound}")
            if kind.endswith(_INTEGERS) and rows.filter(f"NOT {exact}").limit(1).fetchall():
                raise SchemaError(
                    f"{source.path}: column {'.'.join(filter(None, (name, *below)))!r} holds whole numbers, here or in "
                    f"files with the same columns, that are not exact beside the fractions in {other.path}. Write the "
                    "files with the same type."
                )


def _check_times(sources: Sequence[Source], flag: str) -> None:
    """Raise SchemaError if milliseconds in Parquet overflow the microseconds of DuckDB."""
    for source in (source for source in sources if source.format == "parquet"):
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
"""Path of a value: its column, then names of fields, None for the entries of a list."""


def _read_ndjson(connection: Any, files: str, compression: str, sources: Mapping[str, Source], flag: str) -> str:  # noqa: ANN401 - as above
    """Return the table expression of NDJSON, with types that represent every value exactly.

    Raises:
        LogFormatError: a line is no JSON object.
        SchemaError: names of columns differ in case alone.
    """
    form = f"format = 'newline_delimited', records = true, hive_partitioning = false, compression = '{compression}'"
    read, lines = f"{files}, {form}", f"read_ndjson_objects({files}, filename = true, compression = '{compression}')"
    try:
        inferred = connection.sql(f"FROM read_json({read}, {_INFERENCE})")
    except import_module("duckdb").Error:
        _check_lines(connection, lines, sources, flag)
        raise
    lower = [name.translate(_LOWER_CASE) for name in inferred.columns]
    folders = {key.translate(_LOWER_CASE) for source in sources.values() for key, _ in source.hive}
    if folders & {*lower} or any((match := _RENAMED.fullmatch(name)) and match[1] in lower for name in lower):
        _check_lines(connection, lines, sources, flag)
    types = dict[str, Any](zip(inferred.columns, inferred.types, strict=True))
    leaves = [leaf for name, dtype in types.items() for leaf in _leaves((name,), dtype)]
    exact = {place: kind if kind in _RELIABLE else "VARCHAR" for place, kind in leaves}
    doubtful = sorted((leaf for leaf in leaves if leaf[1] in _DOUBTFUL), key=lambda leaf: len(leaf[0]))
    exact |= dict(doubtful[_MOST_DOUBTFUL:])
    options = [(place, *option) for place, kind in doubtful[:_MOST_DOUBTFUL] for option in _DOUBTFUL[kind].items()]
    if options:
        as_json = exact | {place: "JSON" for place, *_ in options}
        columns = _columns({name: types[name] for name in dict.fromkeys(place[0] for place, *_ in options)}, as_json)
        tests = (_all_meet(quoted_name(name), below, condition) for (name, *below), _, condition in options)
        met = ", ".join(f"bool_and({test})" for test in tests)
        (holds,) = connection.execute(f"SELECT {met} FROM read_json({read}, {columns})").fetchall()
        usable = [(place, kind) for (place, kind, _), is_met in zip(options, holds, strict=True) if is_met]
        exact |= dict(reversed(usable))  # the first option of a place is the last entry
    return f"read_json({read}, {_columns(types, exact)})"


def _columns(types: Mapping[str, Any], exact: Mapping[_Place, str]) -> str:
    """Return the argument `columns` of `read_json`: names with types."""
    columns = (f"{sql_text(name)}: {sql_text(_type_sql((name,), dtype, exact))}" for name, dtype in types.items())
    return f"columns = {{{', '.join(columns)}}}"


def _leaves(place: _Place, dtype: Any) -> Iterator[tuple[_Place, str]]:  # noqa: ANN401 - a type of DuckDB
    """Yield the paths of plain values within a column, with the names of their types."""
    if dtype.id not in {"struct", "list"}:
        yield place, str(dtype)
        return
    for name, inner in dtype.children:
        yield from _leaves((*place, name if dtype.id == "struct" else None), inner)


def _type_sql(place: _Place, dtype: Any, exact: Mapping[_Place, str]) -> str:  # noqa: ANN401 - a type of DuckDB
    """Return a type in SQL, with the types of `exact` for plain values."""
    if dtype.id == "list":
        return f"{_type_sql((*place, None), dtype.children[0][1], exact)}[]"
    if dtype.id == "struct":
        fields = [f"{quoted_name(name)} {_type_sql((*place, name), inner, exact)}" for name, inner in dtype.children]
        return f"STRUCT({', '.join(fields)})"
    return exact[place]


def _all_meet(value: str, below: Sequence[str | None], condition: str) -> str:
    """Return the SQL test that all values at a path below a value meet a condition on `$v`; missing ones do."""
    if not below:
        text = f"CAST({value} AS VARCHAR)"
        return f"({text} IS NULL OR {condition.replace('$v', text)})"
    if below[0] is not None:
        return _all_meet(f"struct_extract({value}, {sql_text(below[0])})", below[1:], condition)
    entry = f"entry_{len(below)}"
    failing = f"list_filter({value}, lambda {entry}: NOT {_all_meet(entry, below[1:], condition)})"
    return f"coalesce(len({failing}) = 0, true)"


def _check_lines(connection: Any, lines: str, sources: Mapping[str, Source], flag: str) -> None:  # noqa: ANN401 - as above
    """Check the names of fields in every line of NDJSON.

    Raises:
        LogFormatError: a line is no JSON object, or has a field without a name.
        SchemaError: names of columns or folders differ in case alone.
    """
    structures = f"SELECT json_structure(json), min(filename) FROM {lines} GROUP BY ALL ORDER BY ALL"
    names = list[tuple[Source, list[tuple[str, ...]]]]()
    for text, file in connection.execute(structures).fetchall():
        structure = json.loads(text)
        if not isinstance(structure, dict) or "" in structure:
            raise LogFormatError(
                f"{sources[file].path}: a line is no JSON object, or has a field without a name. Mend it."
            )
        names.append((sources[file], [*_field_paths((), structure)]))
    _check_names(names, flag)


def _write(connection: Any, query: Query, result: Path) -> None:  # noqa: ANN401 - as above
    """Write the rows of a query.

    Raises:
        UsageError: the query is not one SELECT, is recursive, or has two columns of one name.
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
    casts = [
        f"{_PARQUET_CASTS[dtype].format(quoted_name(name))} AS {quoted_name(name)}"
        for name, dtype, *_ in columns
        if dtype in _PARQUET_CASTS
    ]
    replace = f" REPLACE ({', '.join(casts)})" if casts else ""
    write_parquet(connection, f"SELECT *{replace} FROM {_RESULT}", result)


_ADVICE = re.compile(r"\n\s*(?:Try |LINE [0-9]+:|Possible solutions:)")
"""Start of DuckDB's advice in an error: its own options, and a part of a query that may not be the user's."""


def _parse_error(error: Exception, query: str = "") -> tuple[str, int | None, int | None]:
    """Return DuckDB's message as one line, and the line and column in the query, from 1, if the error has them."""
    text = str(error)
    try:
        details = json.loads(text[text.index("{") :])
    except ValueError:
        details = {"exception_message": text}
    message = " ".join(_ADVICE.split(str(details.get("exception_message", text)))[0].split())
    if "position" not in details:
        return message, None, None
    before = query.encode()[: max(int(details["position"]) - len(_AHEAD), 0)].decode(errors="ignore")
    return message, before.count("\n") + 1, len(before) - before.rfind("\n")


def quoted_name(column: str) -> str:
    """Return the name of a column in quotes."""
    return '"' + column.replace('"', '""') + '"'
