"""Count a log inside its warehouse: generate the SQL query, and read its exported result.

The query is written once; sqlglot translates it into the dialect of a warehouse. It rejects rows and pages as
`canonical_impressions` and `pages` do, and counts the others as `StatisticsPlan` does; for the rows of its result see
`posbias.io.log.exports`.

Names of columns are unique across the steps of the query, as some dialects take an alias for a column of the same name.
Names and texts of the user are inserted as nodes of the parsed query, never as text.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import Any, Literal

import msgspec
from msgspec import structs

from posbias.core.choices import CheckPages, Ids, OnBadRows, Warehouse
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.errors import MissingExtraError, SchemaError, StatisticsError, UsageError
from posbias.core.log.impressions import LARGEST_POSITION, REJECTED, ReadingRules, RowRejection
from posbias.core.log.pages import HARMLESS, PageRejection
from posbias.core.schema import CLICK, CLICKS, DOC, IMPRESSIONS, PERIOD, POSITION, QUERY, RANDOMIZED, Roles
from posbias.io.engines.engine import ReadLog
from posbias.io.log.exports import ABOUT, ABOVE_LAST, DESCRIPTION, WITH_CLICK, WITHOUT_CLICK, Export
from posbias.io.log.rejections import why_rejected
from posbias.io.results.manifest import checksum_of_content
from posbias.io.stores.metadata import Counted, describe_plan


class About(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Description of an exported table: its column `about`."""

    counted: Counted
    check_pages: CheckPages | None = None  # whether all or a sample of pages were checked; None without sessions
    ids: Ids | None = None  # replacement of ids; None for the ids themselves
    min_impressions: int = 0  # queries with fewer impressions are left out
    version: Literal[2] = 2
    checksum: str = ""  # checksum of the other fields

    @property
    def own_checksum(self) -> str:
        """Checksum of the description as it is, to compare with `checksum`."""
        return checksum_of_content(msgspec.to_builtins(self))


# --- results --------------------------------------------------------------------------------------------------


def about_export(export: Export) -> About:
    """Return the common description of exported tables.

    Raises:
        SchemaError: the description is invalid, or rows or columns do not match it.
        StatisticsError: the tables have different descriptions, or several tables have numbers as ids.
    """
    try:
        descriptions = {msgspec.json.decode(text.encode(), type=About) for text in export.about}
        if any(about.checksum != about.own_checksum for about in descriptions):
            raise msgspec.ValidationError("it was changed")
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise SchemaError(
            f"{export.where}: the column {ABOUT!r} does not describe counts of this version of posbias: {error}. "
            "Run the query of `posbias sql` again."
        ) from error
    about, *others = descriptions
    if others:
        raise StatisticsError(f"{export.where}: these tables do not count the same. Make them by the same query.")
    faults = [f"it has no column {name!r}" for name in about.counted.plan().keys if name not in export.columns]
    if export.has_pages is (about.check_pages is None):
        faults.append(f"it says {'something' if export.has_pages else 'nothing'} of where pages end")
    if export.experiments > len(about.counted.randomized):
        faults.append(f"it has rows of experiment {export.experiments}, of {len(about.counted.randomized)}")
    if faults:
        raise SchemaError(
            f"{export.where}: is no result of the query that it names: {faults[0]}. Export it as a whole."
        )
    if about.ids == "number" and len(export.about) > 1:
        raise StatisticsError(
            f"{export.where}: are {len(export.about)} results with --ids number, whose numbers stand for other ids in "
            "each. Count all days by one query, or use --ids hash."
        )
    return about


def check_export(export: Export, on_bad_rows: OnBadRows) -> None:
    """Check that the warehouse rejected no rows, or that they may be dropped and all pages were checked.

    Raises:
        SchemaError: rows were rejected, and they may not be dropped, or pages were checked in a sample only.
    """
    faulty = {code: rows for code, rows in export.rejected.items() if code not in HARMLESS}
    incomplete = not {*faulty}.isdisjoint(PageRejection) and about_export(export).check_pages == "sample"
    if faulty and (on_bad_rows == "error" or incomplete):
        lines = [f"{export.where}: rows that the warehouse did not count:"]
        lines += [f"  {rows:,} x {why_rejected(code)}" for code, rows in faulty.items()]
        if incomplete:
            lines.append("Only a sixteenth of the pages was checked. Count again with --check-pages all.")
        else:
            lines.append("Mend the table in the warehouse, or leave these rows out with --on-bad-rows drop.")
        raise SchemaError(*lines)


def with_row_counts(read: ReadLog, export: Export) -> ReadLog:
    """Set the numbers of rows and pages of a log to those that the warehouse counted.

    Raises:
        SchemaError: rows of the export were rejected: no query returns invalid counts.
    """
    if read.rejected:
        faults = ", ".join(f"{rows:,} x {words}" for words, rows in read.rejected.items())
        raise SchemaError(f"{export.where}: holds counts that no query gives: {faults}. Export its result again.")
    rejected = {why_rejected(code): rows for code, rows in export.rejected.items()}
    rows = read.totals.impressions + sum(rejected.values())
    totals = replace(read.totals, page_ends=export.page_ends)
    return replace(read, rows_read=rows, rejected=rejected, totals=totals)


# --- the query --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WarehouseQuery:
    """Query that counts a table of impressions."""

    table: str
    roles: Roles  # columns by role, as named by options
    rules: ReadingRules
    plan: StatisticsPlan
    check_pages: CheckPages = "all"
    ids: Ids | None = None
    salt: str | None = None
    min_impressions: int = 0

    @property
    def remarks(self) -> list[str]:
        """Remarks for the person who runs the query."""
        remarks = list[str]()
        if self.plan.cell and self.roles.position is None:
            remarks.append(f"The position is column {POSITION!r}: name another one with --position COLUMN.")
        if not self.roles.session:
            remarks.append("Pages are not checked: name them with --session COLUMN.")
        if self.plan.period:
            remarks.append("Days are those of the session's time zone, unless the column has none: set it to UTC.")
        return remarks

    def text(self, dialect: Warehouse) -> str:
        """Return the query in a dialect.

        Raises:
            UsageError: a name is invalid, a role has several columns, or the dialect has no hashes and they are needed.
            MissingExtraError: sqlglot is not installed.
        """
        return _translate(_QueryTemplate(self), dialect)


_TABLE = "posbias_table"
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PART_OF_NAME = re.compile(r'"([^"]+)"|([^".]+)')
_NOT_IN_NAME = re.compile(r"[\\`\x00-\x1f\x7f-\x9f]")
_KEYWORDS_OF = ("bigquery", "duckdb", "redshift", "trino")  # dialects whose reserved words sqlglot knows
_HASH = "POSBIAS_HEX"
# First digits of a hash: sqlglot's own functions return bytes in some dialects and text in others.
_HEX = {
    "bigquery": "SUBSTR(TO_HEX(SHA256({x})), 1, {digits})",
    "clickhouse": "SUBSTR(LOWER(HEX(SHA256({x}))), 1, {digits})",
    "duckdb": "SUBSTR(SHA256({x}), 1, {digits})",
    "postgres": "SUBSTR(ENCODE(SHA256(CONVERT_TO({x}, 'UTF8')), 'hex'), 1, {digits})",
    "trino": "SUBSTR(LOWER(TO_HEX(SHA256(TO_UTF8({x})))), 1, {digits})",
    **dict.fromkeys(("databricks", "redshift", "snowflake", "spark"), "SUBSTR(SHA2({x}, 256), 1, {digits})"),
}
_DIGITS_OF_ID = 16  # 64 bits
_NUMBER = "POSBIAS_NUMBER"
_IS_NUMBER = "CAST({x} AS TEXT) ~ '^[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?$'"
# Convert a number or text to a float; null if it is no number. SQLite casts text to the number at its beginning: so the
# cast is compared with the text.
_AS_NUMBER = {
    "clickhouse": "toFloat64OrNull(toString({x}))",
    "sqlite": "CASE WHEN CAST({x} AS REAL) = {x} AND TRIM({x}) = CAST({x} AS TEXT) THEN CAST({x} AS REAL) END",
    **dict.fromkeys(
        ("postgres", "redshift"), f"CASE WHEN {_IS_NUMBER} THEN CAST(CAST({{x}} AS TEXT) AS DOUBLE PRECISION) END"
    ),
}
# In other dialects. DuckDB accepts blanks and underscores in numbers, Spark d and f at the end: x makes them invalid.
_TRY_NUMBER = "TRY_CAST(TRANSLATE(CAST({x} AS TEXT), ' _dDfF', 'xxxxxx') AS DOUBLE)"
_FINITE = "{x} > -1e300 AND {x} < 1e300"  # false for infinity, and for NaN in every dialect


def _parts_of_name(flag: str, name: str) -> list[tuple[str, bool]]:
    """Split a dotted name such as `a."b c".d` into (part, whether it is quoted).

    Raises:
        UsageError: the name is invalid.
    """
    parts = [(match[1] or match[2], match[1] is not None) for match in _PART_OF_NAME.finditer(name)]
    if ".".join(f'"{part}"' if quoted else part for part, quoted in parts) != name or _NOT_IN_NAME.search(name):
        raise UsageError(
            f"{flag} {name}: cannot be a name. Write its parts with points between them, and what is to stand to the "
            'letter in double quotes: "searchTerm". If the name has quotes or control characters, make a view.'
        )
    return parts


def _translate(template: "_QueryTemplate", dialect: str) -> str:
    """Translate the query into a dialect, with the names and texts of the user."""
    try:
        sqlglot: Any = import_module("sqlglot")  # its types are not complete
    except ImportError as error:
        raise MissingExtraError.of("posbias sql", "sqlglot") from error
    expressions = sqlglot.exp
    target = sqlglot.Dialect.get_or_raise(dialect)
    reserved = {
        word for name in _KEYWORDS_OF for word in sqlglot.Dialect.get_or_raise(name).generator_class.RESERVED_KEYWORDS
    }

    def identifier(part: str, quoted: bool) -> Any:  # noqa: ANN401, FBT001 - of sqlglot
        if not quoted and part.lower() in reserved:  # quote it, in the case that the warehouse gives unquoted names
            unquoted = target.normalize_identifier(expressions.to_identifier(part, quoted=False))
            return expressions.to_identifier(unquoted.name, quoted=True)
        return expressions.to_identifier(part, quoted=quoted or _PLAIN_NAME.fullmatch(part) is None)

    def column(flag: str, name: str) -> Any:  # noqa: ANN401 - of sqlglot
        first, *fields = [identifier(*part) for part in _parts_of_name(flag, name)]
        whole = expressions.column(first)
        return expressions.Dot.build([whole, *fields]) if fields else whole

    tree = sqlglot.parse_one(template.text)
    values = {placeholder: column(*flag_and_name) for placeholder, flag_and_name in template.columns.items()}
    values |= {name: expressions.Literal.string(text) for name, text in template.texts.items()}
    tree = expressions.replace_placeholders(tree, **values)
    parts = [identifier(*part) for part in _parts_of_name("TABLE", template.request.table)]
    if len(parts) > 3:  # noqa: PLR2004 - catalog, schema, table
        raise UsageError(f"{template.request.table}: name a table as TABLE, SCHEMA.TABLE or CATALOG.SCHEMA.TABLE.")
    table = expressions.Table(**dict(zip(("this", "db", "catalog"), reversed(parts), strict=False)))

    def translate_node(node: Any) -> Any:  # noqa: ANN401 - of sqlglot
        if isinstance(node, expressions.Ordered):  # no key is null, and BigQuery has no NULLS LAST in windows
            node.set("nulls_first", target.NULL_ORDERING == "nulls_are_small")
        elif isinstance(node, expressions.Table) and node.name == _TABLE:
            return table
        elif isinstance(node, expressions.Anonymous) and node.name == _HASH:
            if dialect not in _HEX:
                raise UsageError(f"--dialect {dialect}: has no hashes. Leave out {template.needs_hash}.")
            value, digits = (argument.sql(dialect) for argument in node.expressions)
            return sqlglot.parse_one(_HEX[dialect].format(x=value, digits=digits), read=dialect)
        elif isinstance(node, expressions.Anonymous) and node.name == _NUMBER:
            (value,) = node.expressions
            if dialect in _AS_NUMBER:
                return sqlglot.parse_one(_AS_NUMBER[dialect].format(x=value.sql(dialect)), read=dialect)
            return sqlglot.parse_one(_TRY_NUMBER.format(x=value.sql()))
        return node

    return tree.transform(translate_node).sql(dialect, pretty=True, unsupported_level=sqlglot.ErrorLevel.RAISE) + "\n"


@cache
def _texts() -> dict[str, str]:
    """Return the steps of the query by name."""
    text = files("posbias.io.counting").joinpath("warehouse.sql").read_text(encoding="utf-8")
    named = re.split(r"^-- (\w+)(?:: .*)?$", text, flags=re.MULTILINE)
    return dict(zip(named[1::2], named[2::2], strict=True))


class _QueryTemplate:
    """Text of the query, with `:placeholders` for columns and texts of the user."""

    def __init__(self, request: WarehouseQuery) -> None:
        self.request, self.plan, self.roles, self.rules = request, request.plan, request.roles, request.rules
        self.columns: dict[str, tuple[str, str]] = {}  # (option, column) by placeholder
        self.texts: dict[str, str] = {}  # text by placeholder
        self._steps: dict[str, str] = {}  # SQL of the common table expressions by name, in their order
        # The latest step with counts, and its columns other than keys
        self._counted: dict[str, object] = {"source": "counted", "code": "code", "shown": "shown", "clicked": "clicked"}
        self._sessions = [f"s_{number}" for number in range(len(self.roles.session))]
        self._sampled = request.check_pages == "sample" and bool(self._sessions)
        self.needs_hash = f"--ids {request.ids}" if request.ids == "hash" else "--check-pages sample"
        # Further key columns: the name in the result by the name in the query
        plain = [*self.plan.cell, *self.plan.context, *self.plan.strata, *self.plan.auxiliary_columns]
        self._further = {f"k_{number}": _unquoted(name) for number, name in enumerate(plain)}
        self._further |= {"k_period": PERIOD} if self.plan.period else {}
        self._further |= {"k_randomized": RANDOMIZED} if self.plan.randomized else {}
        self._cell = ["c_position", "c_previous"][: len(self.plan.model.cell_columns)]
        self._keys = ["c_query", "c_doc", *self._cell, *self._further]
        self._read_rows()
        if self._sessions:
            self._check_pages()
        self._count()
        self._step("whole")
        self._step("added_up_with_pages" if self._sessions else "added_up", "added_up")
        steps = ", ".join(f"{name} AS ({query})" for name, query in self._steps.items())
        self.text = f"WITH {steps} {self._result()}"

    def _step(self, step: str, name: str = "", **values: object) -> None:
        self._steps[name or step] = _texts()[step].format(**self._counted | values)

    def _column(self, flag: str, name: str) -> str:
        placeholder = f"x{len(self.columns)}"
        self.columns[placeholder] = (flag, name)
        return f":{placeholder}"

    def _text(self, text: str) -> str:
        placeholder = f"t{len(self.texts)}"
        self.texts[placeholder] = text
        return f":{placeholder}"

    def _read_rows(self) -> None:
        """Add the steps that select the columns of the table and mark faulty rows."""
        roles, base = self.roles, self.rules.position_base
        sessions = zip(self._sessions, roles.session, strict=True)
        columns = {inner: self._column("--session", name) for inner, name in sessions}
        doc = self._column("--doc", _single("--doc", roles.doc or (DOC,)))
        query = doc if roles.no_query else self._column("--query", _single("--query", roles.query or (QUERY,)))
        position = self._column("--position", roles.position or POSITION)
        columns |= {"r_query": query, "r_doc": doc}
        columns["r_given"], number = position, f"{_NUMBER}({position})"
        columns["r_number"] = number if base == 1 else f"{number} - {base - 1}"
        columns["r_click"] = self._click(self._column("--click", roles.click or CLICK))
        key_columns = (
            ("--cell", self.plan.cell),
            ("--context", self.plan.context),
            ("--stratify", self.plan.strata),
            ("--cluster-column", self.plan.clusters),
            ("--arm", self.plan.arms),
        )
        flagged = [(flag, name) for flag, names in key_columns for name in names]
        columns |= {f"r_k_{number}": self._column(*column) for number, column in enumerate(flagged)}
        if self.plan.period:
            columns["r_k_period"] = f"CAST({self._column('--timestamp', roles.timestamp or '')} AS DATE)"
        for number, rows in enumerate(self.plan.randomized):
            columns[f"r_random_{number}"] = f"CAST({self._column('--randomized-where', rows.column)} AS TEXT)"
        selected = ", ".join(f"{value} AS {name}" for name, value in columns.items())
        self._step("log_rows", columns=selected)
        finite = _FINITE.format(x="r_number")
        faults = [(f"{session} IS NULL", RowRejection.NULL_SESSION) for session in self._sessions]
        faults += [
            ("r_query IS NULL", RowRejection.NULL_QUERY),
            ("r_doc IS NULL", RowRejection.NULL_DOC),
            ("r_given IS NULL", RowRejection.POSITION_MISSING),
            (f"r_number > {LARGEST_POSITION} AND {finite}", RowRejection.POSITION_TOO_LARGE),
            (f"r_number IS NULL OR NOT ({finite} AND r_number = FLOOR(r_number))", RowRejection.POSITION_NOT_WHOLE),
            ("r_number < 1", RowRejection.POSITION_BELOW_BASE),
            ("r_click = -1", RowRejection.CLICK_MISSING),
            ("r_click = -2", RowRejection.CLICK_INVALID),
        ]
        faults += [("r_k_period IS NULL", RowRejection.TIMESTAMP_INVALID)] if self.plan.period else []
        marks = f"{_first_true(faults)} AS row_fault"
        marks += f", CASE WHEN r_number >= 1 AND r_number <= {LARGEST_POSITION} THEN r_number ELSE 0 END AS r_position"
        if self.plan.randomized:
            cases = list[tuple[str, int]]()
            for number, rows in enumerate(self.plan.randomized):
                at = f" AND r_number IN ({', '.join(map(str, rows.positions))})" if rows.positions else ""
                cases.append((f"r_random_{number} = {self._text(rows.value)}{at}", number + 1))
            marks += f", {_first_true(cases)} AS r_k_randomized"
        self._step("marked", marks=marks)

    def _click(self, click: str) -> str:
        """Return SQL for the click: 0 or 1, -1 if missing, -2 if invalid; the column may be text or a number."""
        empty, number = 0 if self.rules.null_click else -1, f"{_NUMBER}({click})"
        if self.rules.click_counts:
            return (
                f"CASE WHEN {click} IS NULL THEN {empty} "
                f"WHEN {number} IS NULL OR NOT ({_FINITE.format(x=number)} AND {number} = FLOOR({number})) THEN -2 "
                f"WHEN {number} < 0 THEN -2 WHEN {number} > 0 THEN 1 ELSE 0 END"
            )
        words = self.rules.values
        true = ", ".join(map(self._text, ("1", "true", "t", *words.true)))
        false = ", ".join(map(self._text, ("0", "false", "f", *words.false)))
        text = f"LOWER(CAST({click} AS TEXT))"
        text = f"TRIM({text})" if words.true or words.false or self.rules.null_click else text
        blank = f" WHEN {text} = {self._text('')} THEN 0" if self.rules.null_click else ""
        return (
            f"CASE WHEN {click} IS NULL THEN {empty}{blank} WHEN {text} IN ({true}) THEN 1 "
            f"WHEN {text} IN ({false}) THEN 0 WHEN {number} = 1 THEN 1 WHEN {number} = 0 THEN 0 ELSE -2 END"
        )

    def _check_pages(self) -> None:
        """Add the steps that mark faulty pages, by the rules of `core.log.pages`, and count the ends of valid pages."""
        sessions = ", ".join(self._sessions)
        known = " AND ".join(f"NOT {session} IS NULL" for session in self._sessions)
        if self._sampled:
            parts = ", '|', ".join(f"CAST({session} AS TEXT)" for session in self._sessions)
            known += f" AND {_HASH}(CONCAT({parts}, ''), 1) = '0'"
        faults = [] if self.roles.no_query else [("least_query <> largest_query", PageRejection.SEVERAL_QUERIES)]
        faults += [
            ("docs < page_rows", PageRejection.REPEATED_DOC),
            ("places < page_rows", PageRejection.REPEATED_POSITION),
        ]
        faults += [("worst > 0", PageRejection.FAULTY_ROW)] if self.plan.needs_pages else []
        of_page = ", ".join(f"p_{session}" for session in self._sessions)
        ids = ", ".join(f"{session} AS p_{session}" for session in self._sessions)
        source, place, cells = "marked", "r_position", len(self.plan.cell)
        if cells:
            source, place = "placed", "r_place"
            self._step("placed", sessions=sessions, further=", ".join(f"r_k_{number}" for number in range(cells)))
        self._step("pages", ids_of_page=ids, is_known=known, sessions=sessions, source=source, place=place)
        self._step("page_marked", of_page=of_page, page_fault=_first_true(faults))
        self._step("faulty", of_page=of_page)
        self._step("judged", same_page=" AND ".join(f"{session} = p_{session}" for session in self._sessions))
        self._step("ends", faulty_row=int(PageRejection.FAULTY_ROW))

    def _count(self) -> None:
        """Add the steps that count impressions and clicks by the keys of statistics, and rejected rows by fault."""
        source, fault = ("judged", "fault") if self._sessions else ("marked", "row_fault")
        if self.plan.needs_pages:
            self._step("browsed", source=source, within_page=", ".join([*self._sessions, fault]))
            source = "browsed"
        values = {"c_query": "r_query", "c_doc": "r_doc", "c_position": "CAST(r_position AS BIGINT)"}
        values |= {"c_previous": "CAST(r_previous AS BIGINT)"} | {inner: f"r_{inner}" for inner in self._further}
        good = ", ".join(f"CASE WHEN {fault} = 0 THEN {values[key]} END AS {key}" for key in self._keys)
        self._step("keyed", keys_of_rows=good, fault=fault, source=source)
        self._step("counted", keys=", ".join(self._keys))
        if self.request.min_impressions:
            self._step("weighed")
            rare = f"code = 0 AND of_query < {self.request.min_impressions}"
            keys = [f"CASE WHEN {rare} THEN NULL ELSE {key} END" for key in self._keys]
            self._add_up("weighed", "f", keys, f"CASE WHEN {rare} THEN {int(RowRejection.RARE_QUERY)} ELSE code END")
        if self.request.ids == "number":
            self._number_ids()

    def _number_ids(self) -> None:
        """Number the ids of pairs that link cells, and sum all other pairs by cell.

        A pair links cells if it was shown in two of them and clicked. The other pairs become documents -1, -2, ... of
        query 0, one for each cell, which link nothing.
        """
        (query, doc, *_), code = self._keys, str(self._counted["code"])
        cell = self._keys[2 : 2 + len(self._cell)]
        pair = f"OVER (PARTITION BY {query}, {doc}, {code})"
        ends = [f"MIN({key}) {pair} AS least_{at}, MAX({key}) {pair} AS most_{at}" for at, key in enumerate(cell)]
        self._step("linked", of_pair=pair, ends=", ".join(ends))
        self._step("parted", moves=" OR ".join(f"least_{at} < most_{at}" for at in range(len(cell))))
        orders = {"query": query, "doc": f"{query}, {doc}", "cell": ", ".join(cell)}
        ranks = [
            f"CAST(DENSE_RANK() OVER (PARTITION BY links, {code} ORDER BY {order}) AS BIGINT) AS no_{name}"
            for name, order in orders.items()
        ]
        self._step("numbered", ranks=", ".join(ranks))
        number = f"CASE WHEN {code} <> 0 THEN NULL WHEN links = 1 THEN {{}} ELSE {{}} END"
        ids = [number.format("no_query", "CAST(0 AS BIGINT)"), number.format("no_doc", "-no_cell")]
        self._add_up("numbered", "n", [*ids, *self._keys[2:]], code)

    def _add_up(self, source: str, prefix: str, keys: Sequence[str], code: str) -> None:
        """Add the steps that sum counts by new keys: expressions of the former keys, under new names."""
        names = [f"{prefix}_{number}" for number in range(len(keys))]
        renamed = ", ".join(f"{key} AS {name}" for key, name in zip(keys, names, strict=True))
        self._step("rows_again", f"{prefix}_rows", source=source, new_keys=renamed, new_code=code, prefix=prefix)
        self._step("counted_again", f"{prefix}_counted", prefix=prefix, keys=", ".join(names))
        self._keys = names
        self._counted = {"source": f"{prefix}_counted"}
        self._counted |= {name: f"{prefix}_{name}" for name in ("code", "shown", "clicked")}

    def _result(self) -> str:
        """Return SQL that selects the rows of the result under their output names.

        Raises:
            UsageError: two columns of the result would have one name.
        """
        names = [QUERY, DOC, *self.plan.model.cell_columns, *self._further.values()]
        twice = [name for name, number in Counter([*names, REJECTED, IMPRESSIONS, CLICKS, ABOUT]).items() if number > 1]
        if twice:
            raise UsageError(f"{twice[0]}: the result has a column of this name. Rename it in a view.")
        columns = list(self._keys)
        if self.request.ids == "hash":
            salt = self._text(self.request.salt or "")
            hashed = f"{_HASH}(CONCAT({salt}, CAST({{}} AS TEXT)), {_DIGITS_OF_ID})"
            columns[:2] = [
                f"CASE WHEN {self._counted['code']} = 0 THEN {hashed.format(key)} END" for key in columns[:2]
            ]
        shown = ", ".join(f'{value} AS "{name}"' for value, name in zip(columns, names, strict=True))
        kinds = ("cell", "context", "strata", "clusters", "arms")
        plan = replace(self.plan, **{kind: tuple(map(_unquoted, getattr(self.plan, kind))) for kind in kinds})
        about = About(
            msgspec.convert(describe_plan(plan), Counted),
            self.request.check_pages if self._sessions else None,
            self.request.ids,
            self.request.min_impressions,
        )
        described = self._text(msgspec.json.encode(structs.replace(about, checksum=about.own_checksum)).decode())
        codes = {"with_click": WITH_CLICK, "above_last": ABOVE_LAST, "without_click": WITHOUT_CLICK}
        further = {"named": shown, "nothing": ", ".join(["NULL"] * len(names)), "description": DESCRIPTION}
        parts = ["result", *(["result_of_pages"] if self._sessions else []), "result_of_all"]
        values = self._counted | codes | further | {"about": described}
        return " UNION ALL ".join(_texts()[part].format(**values) for part in parts)


def _first_true(cases: Sequence[tuple[str, int]]) -> str:
    """Return SQL for the number of the first true condition, 0 if none is true."""
    return f"CASE {' '.join(f'WHEN {condition} THEN {int(number)}' for condition, number in cases)} ELSE 0 END"


def _unquoted(name: str) -> str:
    """Remove the quotes of a dotted name."""
    return ".".join(part for part, _ in _parts_of_name("COLUMN", name))


def _single(flag: str, names: Sequence[str]) -> str:
    if len(names) > 1:
        raise UsageError(f"{flag} {' '.join(names)}: in a warehouse, name one column. Make a view that joins them.")
    return names[0]
