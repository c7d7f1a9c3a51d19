"""Logs that a query makes of the named files: `--sql "SELECT ... FROM log"`, run by DuckDB.

The query sees the files as the view `log`, and nothing else: no other file, no network, no extension, no setting. Its
rows go to a Parquet file beside the temporary files, which is read as a log is.
"""

import glob
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any

import polars as pl

from posbias.core.errors import LogFormatError, MissingExtraError, UsageError
from posbias.io.log.scan import has_rows, reading, resolve_quotes, scan_sources
from posbias.io.log.sources import Source, check_unchanged, digests, of_query
from posbias.io.places.object_stores import folder_for_copies
from posbias.io.places.temporary import is_disk_full, temporary_files

VIEW = "log"
"""Name of the view of the files."""

_SETTINGS = {
    "allow_community_extensions": "false",
    "allow_persistent_secrets": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
}
_OF_MEMORY = 2  # DuckDB gets that fraction of it: the process and what it reads with Polars take the rest
_READERS = {
    "parquet": "read_parquet({files}, union_by_name = true, hive_partitioning = false)",
    # No field is overlooked: all lines are looked at, and structs stay structs.
    "ndjson": "read_json({files}, format = 'newline_delimited', union_by_name = true, sample_size = -1, "
    "map_inference_threshold = -1, field_appearance_threshold = 0, hive_partitioning = false)",
}
# Types that Parquet has not, or that would not be read as what they stand for.
_WRITTEN_AS = {"UUID": "VARCHAR", "JSON": "VARCHAR", "HUGEINT": "BIGINT", "UHUGEINT": "BIGINT"}
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


_made: dict[tuple[Query, tuple[Source, ...]], Source] = {}
"""Results by query: a command may open its log several times."""


def sql_where(condition: str) -> str:
    """The option that reads only the rows of a log for which a condition holds, for messages."""
    return _option(f"SELECT * FROM {VIEW} WHERE {condition}")


def _option(query: str) -> str:
    """The option of a query as a shell reads it, which runs and replaces nothing of the names of a log."""
    return f"--sql {shlex.quote(query)}" if _SPECIAL.intersection(query) else f'--sql "{query}"'


_SPECIAL = frozenset('"$`\\!')
"""What has a meaning for a shell between double quotes."""


def sql_name(column: str) -> str:
    """A column in a query: in quotes where its name is more than one word."""
    return column if column.isidentifier() else '"' + column.replace('"', '""') + '"'


def sql_text(value: str) -> str:
    """A text in a query."""
    return "'" + value.replace("'", "''") + "'"


def sql_as_one(columns: Sequence[str]) -> str:
    """The option that reads columns of which each file has another as one, called like the first, for messages."""
    names = ", ".join(map(sql_name, columns))
    return _option(f"SELECT * EXCLUDE ({names}), coalesce({names}) AS {sql_name(columns[0])} FROM {VIEW}")


def sql_without(column: str) -> str:
    """The option that reads a log without one of its columns, for messages."""
    return _option(f"SELECT * EXCLUDE ({sql_name(column)}) FROM {VIEW}")


def result_of(query: Query, sources: Sequence[Source]) -> Source:
    """Run a query over files; its rows as a Parquet file that lives as long as the command.

    Raises:
        UsageError: the query is not one SELECT, cannot be run, or reads something else than the files; or two files
            hold the same rows.
        LogFormatError: a file cannot be read.
        MissingExtraError: DuckDB is not installed.
        OutputError: there is no space for the rows.
    """
    made = _made.get((query, tuple(sources)))
    if made is not None and isinstance(made.origin, Path) and made.origin.exists():
        return made
    duckdb, folder = _import_duckdb(query.flag), folder_for_copies()
    quoted, _ = resolve_quotes(sources)
    suffix = of_query(query.text) if query.selects else ""
    made_of = tuple((f"{digest}{suffix}", path) for digest, path in digests(quoted, has_rows).items())
    result = folder / "result.parquet"
    with temporary_files(folder), duckdb.connect(":memory:", config=_SETTINGS | _limits(query, folder)) as connection:
        try:
            _register(connection, quoted, result, query.position_base)
        except duckdb.Error as error:
            raise LogFormatError(f"{query.flag}: a file cannot be read: {_message(error)[0]}") from error
        try:
            _write(connection, query, result)
        except duckdb.Error as error:
            if is_disk_full(folder, error):
                raise OSError(str(error)) from error
            message, line, column = _message(error, query.text)
            place = "" if line is None else f", line {line}, column {column}"
            raise UsageError(f"{query.flag}{place}: {message}") from error
    check_unchanged(sources)
    status = result.stat()
    file = (status.st_dev, status.st_ino)
    version = (status.st_size, status.st_mtime_ns, file)
    made = Source(Path(query.flag), "parquet", (), *version, spooled=result, made_of=made_of)
    _made[query, tuple(sources)] = made
    return made


def _import_duckdb(flag: str) -> Any:  # noqa: ANN401 - its types are not complete
    try:
        return import_module("duckdb")
    except ImportError as error:
        raise MissingExtraError.of(flag, "duckdb") from error


def _limits(query: Query, folder: Path) -> dict[str, str]:
    """Memory, threads and scratch space of DuckDB."""
    return {
        "memory_limit": f"{query.memory // _OF_MEMORY}B",
        "temp_directory": str(folder / "spilled"),
        "threads": str(pl.thread_pool_size()),
    }


def _register(connection: Any, sources: Sequence[Source], result: Path, base: int | None) -> None:  # noqa: ANN401 - as above
    """Make the view of the files; from then on, nothing else can be read or written, but for the result."""
    parts, paths = list[str](), [str(result)]
    for number, ((form, folders), some) in enumerate(groupby(sources, key=lambda source: (source.format, source.hive))):
        group = [*some]
        files = [str(Path(str(source.place)).absolute()) for source in group]
        if form not in _READERS or any(map(glob.has_magic, files)):
            form, files, folders = "parquet", [str(result.parent / f"{number}.parquet")], ()  # noqa: PLW2901 - a copy
            with reading(group):
                scan_sources(group).sink_parquet(files[0], compression="lz4")
        paths += files
        read = _READERS[form].format(files=f"[{', '.join(map(_text, files))}]")
        own = {name for name, *_ in connection.execute(f"DESCRIBE FROM {read}").fetchall()} if folders else set[str]()
        in_names = [
            f", {'NULL' if value is None else _text(value)} AS {_name(key)}" for key, value in folders if key not in own
        ]
        parts.append(f"SELECT *{''.join(in_names)} FROM {read}")
    connection.execute(f"SET allowed_paths = [{', '.join(map(_text, paths))}]")
    connection.execute("SET enable_external_access = false")
    connection.execute(f"CREATE VIEW {VIEW} AS {' UNION ALL BY NAME '.join(parts)}")
    connection.execute("SET errors_as_json = true")
    connection.execute(f"SET VARIABLE position_base = {'NULL' if base is None else base}")
    connection.execute("SET lock_configuration = true")


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
    columns = connection.execute(f"DESCRIBE {_RESULT}").fetchall()
    written = [
        f"CAST({_name(name)} AS {_WRITTEN_AS[dtype]}) AS {_name(name)}"
        for name, dtype, *_ in columns
        if dtype in _WRITTEN_AS
    ]
    replaced = f" REPLACE ({', '.join(written)})" if written else ""
    options = f"FORMAT parquet, ROW_GROUP_SIZE {_ROW_GROUP}"
    connection.execute(f"COPY (SELECT *{replaced} FROM {_RESULT}) TO {_text(result)} ({options})")


def _message(error: Exception, text: str = "") -> tuple[str, int | None, int | None]:
    """The message of DuckDB as one line, with its line and column in the query, if it has them."""
    text_of_error = str(error)
    try:
        details = json.loads(text_of_error[text_of_error.index("{") :])
    except ValueError:
        return " ".join(text_of_error.split()), None, None
    message = " ".join(str(details["exception_message"]).split())
    if "position" not in details:
        return message, None, None
    before = text.encode()[: max(int(details["position"]) - len(_AHEAD), 0)].decode(errors="ignore")
    return message, before.count("\n") + 1, len(before) - before.rfind("\n")


def _text(value: object) -> str:
    return "'" + str(value).replace("'", "''") + "'"


def _name(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'
