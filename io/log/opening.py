"""A log is opened: its files are found, the form of its rows, and the column of each role."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import polars as pl

from posbias.core.column_names import says_offset, says_page
from posbias.core.errors import LogFormatError, RoleError, SchemaError
from posbias.core.role_search import resolve_roles
from posbias.core.schema import CLICK, DOC, FLAGS, KEY_ROLES, POSITION, QUERY, SESSION, RequestedRoles, Roles
from posbias.io.log.event_table import EventReader, EventsRequest
from posbias.io.log.headers import check_files_agree, check_headers
from posbias.io.log.log import CLICKED, Log
from posbias.io.log.nested import find_nesting, holds_lists
from posbias.io.log.paths import are_structs
from posbias.io.log.raw import CLICKED_EVENT, RawReader
from posbias.io.log.request import LogRequest
from posbias.io.log.scan import reading, schema_of
from posbias.io.log.sources import Source
from posbias.io.log.text_files import check_dialect_matters, find_log_files

_ID_OF_UBI, _ONE_OF_UBI = "query_id", {"action_name", "user_query"}


def open_log(request: LogRequest) -> Log:
    """Find the files of a log and the column of each role.

    Raises:
        LogFormatError: a file is missing or cannot be read.
        SchemaError: a role has no column, or more than one.
    """
    sources = find_log_files(request.inputs, request.dialect)
    if request.raw is not None:
        return _open_raw(request, request.raw, sources)
    click_sources = find_log_files(request.clicks.inputs, request.dialect) if request.clicks else ()
    check_dialect_matters([*sources, *click_sources], request.dialect)
    columns = _columns_of(sources)
    where = request.where
    if click_sources:
        _check_click_is_there(request, [*columns.names, *_columns_of(click_sources).names])
    apart = request.events is not None or bool(click_sources)
    requested = replace(request.roles, click=None) if apart else request.roles
    requested = _with_page(request, requested, columns.names)
    nested = _is_nested(replace(request, roles=requested), sources[0], columns)
    roles = _find_roles(request, requested, columns, nested=nested)
    check_headers(sources, roles.columns())
    check_files_agree(sources, roles)
    _check_fields_are_named(request, roles, columns)
    base = request.rules.position_base
    of_entries = roles if request.rules.click_ranks is None else replace(roles, click=None)
    nesting = find_nesting(schema_of(sources[0]), of_entries, base, request.lists, where=where) if nested else None
    if nesting is not None:
        roles = nesting.roles(roles)
    if request.events is not None:
        return _open_events(request, request.events, sources, roles)
    if click_sources:
        roles = replace(roles, click=CLICKED)
    log = Log(request, sources, click_sources, roles, nesting)
    with reading(sources):
        _ = log.schema
    return log


def _with_page(request: LogRequest, requested: RequestedRoles, names: Sequence[str]) -> RequestedRoles:
    """The columns that were named, and the one that numbers results pages, where positions begin anew on each.

    Raises:
        SchemaError: no column is called so.
    """
    paging = request.rules.paging
    if paging is None or requested.page is not None:
        return requested
    says = says_offset if paging.size == 1 else says_page
    found = next(filter(says, names), None)
    if found is None:
        raise SchemaError(
            f"{request.where}: no column looks like the number of the results page (--page-size {paging.size}). Name "
            f"it with --page COLUMN. The columns are: {', '.join(names)}."
        )
    return replace(requested, page=found)


@dataclass(frozen=True)
class _Columns:
    """The columns of some files.

    Attributes:
        names: all, with the paths of fields.
        of_structs: those with fields, which play a role only if they are named.
    """

    names: tuple[str, ...]
    of_structs: frozenset[str]

    def find(
        self, requested: RequestedRoles, where: str, required: Collection[str], looked_for: Sequence[str]
    ) -> Roles:
        """The columns of roles; arguments and errors are those of `resolve_roles`."""
        return resolve_roles(
            requested,
            self.names,
            where=where,
            required=required,
            looked_for=looked_for,
            only_named=self.of_structs,
        )


def _columns_of(sources: Sequence[Source]) -> _Columns:
    with reading(sources):
        columns = [column for source in sources for column in schema_of(source).items()]
    names = dict.fromkeys(name for name, _ in columns)
    return _Columns(tuple(names), frozenset(name for name, dtype in columns if are_structs(dtype)))


def _find_roles(request: LogRequest, requested: RequestedRoles, columns: _Columns, *, nested: bool) -> Roles:
    """The columns of the roles that are needed, and of others.

    Raises:
        SchemaError: a role has no column, or more than one, or rows are not what they should be.
    """
    summed = request.roles.impressions is not None
    if summed and nested:
        raise SchemaError(
            f"{request.where}: the documents are in lists. A row of a table of sums (--impressions) is one "
            "query, document and position."
        )
    apart = request.clicks is not None or request.events is not None
    clicks_told = apart or requested.clicked is not None or request.lists.click_suffix is not None
    required = {DOC} if nested else {DOC, POSITION}
    required |= {SESSION} if apart or (request.needs_session and not nested) else set()
    required |= set() if clicks_told else {CLICK}
    required |= set() if requested.no_query else {QUERY}
    left_out = {CLICK} if clicks_told else {SESSION} if summed else set[str]()
    left_out |= {QUERY} if requested.no_query else set()
    looked_for = [role for role in KEY_ROLES if role not in left_out]
    try:
        roles = columns.find(requested, request.where, required, looked_for)
    except RoleError as error:
        if _ID_OF_UBI in columns.names and not _ONE_OF_UBI.isdisjoint(columns.names):
            raise RoleError(f"{error} If these are OpenSearch UBI documents, say --input-format ubi.") from error
        raise
    if summed and roles.impressions in {roles.position, roles.click, *roles.ids()}:
        raise SchemaError(
            f"{request.where}: column {roles.impressions!r} (--impressions) plays another role already. Name "
            "the column that says how many impressions a row adds up."
        )
    return roles


def _check_fields_are_named(request: LogRequest, roles: Roles, columns: _Columns) -> None:
    """See that an id is no struct, whose other fields would be part of it.

    Raises:
        SchemaError: one is.
    """
    for role, names in ((SESSION, roles.session), (QUERY, roles.query), (DOC, roles.doc)):
        for name in names:
            if name in columns.of_structs:
                fields = [path for path in columns.names if path.startswith(f"{name}.")]
                raise SchemaError(
                    f"{request.where}: column {name!r} ({FLAGS[role]}) holds structs. Name the field that is the id: "
                    f"{', '.join(fields)}."
                )


def _check_click_is_there(request: LogRequest, names: Sequence[str]) -> None:
    """See that the click column that was named is in one of the two tables.

    Raises:
        SchemaError: it is not.
    """
    click = request.roles.click
    if click is not None and click not in names:
        raise SchemaError(
            f"{request.where}: there is no column {click!r} (--click), neither here nor in the table of "
            f"clicks. The columns are: {', '.join(dict.fromkeys(names))}."
        )


def _open_raw(request: LogRequest, reader: RawReader, sources: tuple[Source, ...]) -> Log:
    """A log whose rows are still to be made of the lines of a known source.

    Raises:
        LogFormatError: a file is not of the right format.
        SchemaError: a column is named that the source does not have.
    """
    for source in sources:
        if source.format not in reader.formats:
            raise LogFormatError(f"{source.path}: is {source.format}. {reader.expected}")
    requested = reader.roles(request.roles)
    roles = resolve_roles(requested, reader.columns, where=request.where, required=())
    return Log(request, sources, (), roles, raw=reader)


def _open_events(request: LogRequest, events: EventsRequest, sources: tuple[Source, ...], roles: Roles) -> Log:
    """A log whose rows are still to be made of a table of events.

    Raises:
        SchemaError: a column is not there.
    """
    events.check(sources)
    as_text = tuple(name for name in (roles.position, roles.page, roles.weight) if name is not None)
    paths = tuple(str(source.path) for source in sources)
    reader = EventReader(events, roles, paths, as_text)
    log = Log(request, sources, (), replace(roles, session=reader.page, click=CLICKED_EVENT), raw=reader)
    with reading(sources):
        _ = log.schema
    return log


def _is_nested(request: LogRequest, source: Source, columns: _Columns) -> bool:
    """Whether a row is a page, because it says so or because its documents are in a list.

    Raises:
        SchemaError: it should be, and is not.
    """
    if request.form == "flat" or request.events is not None:
        return False
    with reading([source]):
        schema = schema_of(source)
    written = request.lists.separator is not None
    try:
        roles = columns.find(request.roles, request.where, (DOC,), (DOC,))
    except RoleError:  # to be said with what else is missing
        return request.form == "nested" or written or any(map(holds_lists, schema.values()))
    nested = any(name in schema and _is_list(schema[name], written=written) for name in roles.doc)
    held = ", ".join(f"{name} ({schema.get(name)})" for name in roles.doc)
    if written and not nested:
        raise SchemaError(f"{source.path}: --list-separator reads text as lists, and documents are no text: {held}.")
    if request.form == "nested" and not nested:
        raise SchemaError(
            f"{source.path}: --input-format nested, but the documents are in no list: {held}. Name the column that "
            "holds the list with --doc COLUMN, or leave out --input-format."
        )
    if not nested and (request.roles.clicked or request.lists.click_suffix):
        option = "--clicked" if request.roles.clicked else "--click-suffix"
        raise SchemaError(
            f"{source.path}: {option} is about pages with their documents in a list, and the documents are in none: "
            f"{held}. If text is a list, say what separates the entries: --list-separator."
        )
    return nested


def _is_list(dtype: pl.DataType, *, written: bool) -> bool:
    return holds_lists(dtype) or (written and dtype == pl.String)
