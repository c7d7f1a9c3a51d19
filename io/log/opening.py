"""A log is opened: its files are found, the form of its rows, and the column of each role."""

from collections.abc import Sequence
from dataclasses import replace

from posbias.core.errors import LogFormatError, RoleError, SchemaError
from posbias.core.role_search import resolve_roles
from posbias.core.schema import CLICK, DOC, KEY_ROLES, POSITION, QUERY, SESSION, RequestedRoles, Roles
from posbias.io.log.event_table import EventReader, EventsRequest
from posbias.io.log.headers import check_files_agree, check_headers
from posbias.io.log.log import CLICKED, Log
from posbias.io.log.nested import find_nesting, holds_lists
from posbias.io.log.raw import CLICKED_EVENT, RawReader
from posbias.io.log.request import LogRequest
from posbias.io.log.scan import reading, schema_of
from posbias.io.log.sources import Source, find_sources

_ID_OF_UBI, _ONE_OF_UBI = "query_id", {"action_name", "user_query"}


def open_log(request: LogRequest) -> Log:
    """Find the files of a log and the column of each role.

    Raises:
        LogFormatError: a file is missing or cannot be read.
        SchemaError: a role has no column, or more than one.
    """
    sources = tuple(find_sources(request.inputs))
    if request.raw is not None:
        return _open_raw(request, request.raw, sources)
    click_sources = tuple(find_sources(request.clicks.inputs)) if request.clicks else ()
    with reading(sources):
        names = list(dict.fromkeys(name for source in sources for name in schema_of(source)))
    where = request.where
    if click_sources:
        with reading(click_sources):
            of_clicks = [name for source in click_sources for name in schema_of(source)]
        _check_click_is_there(request, [*names, *of_clicks])
    apart = request.events is not None or bool(click_sources)
    requested = replace(request.roles, click=None) if apart else request.roles
    nested = _is_nested(replace(request, roles=requested), sources[0], names)
    roles = _find_roles(request, requested, names, nested=nested)
    check_headers(sources, roles.columns())
    check_files_agree(sources, roles)
    base = request.rules.position_base
    nesting = find_nesting(schema_of(sources[0]), roles, base, where=where) if nested else None
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


def _find_roles(request: LogRequest, requested: RequestedRoles, names: Sequence[str], *, nested: bool) -> Roles:
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
    required = {QUERY, DOC} if nested else {QUERY, DOC, POSITION}
    apart = request.clicks is not None or request.events is not None
    required |= {SESSION} if apart or (request.needs_session and not nested) else set()
    required |= set() if apart else {CLICK}
    left_out = {CLICK} if apart else {SESSION} if summed else set[str]()
    looked_for = [role for role in KEY_ROLES if role not in left_out]
    try:
        roles = resolve_roles(requested, names, where=request.where, required=required, looked_for=looked_for)
    except RoleError as error:
        if _ID_OF_UBI in names and not _ONE_OF_UBI.isdisjoint(names):
            raise RoleError(f"{error} If these are OpenSearch UBI documents, say --input-format ubi.") from error
        raise
    if summed and roles.impressions in {roles.position, roles.click, *roles.ids()}:
        raise SchemaError(
            f"{request.where}: column {roles.impressions!r} (--impressions) plays another role already. Name "
            "the column that says how many impressions a row adds up."
        )
    return roles


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
    as_text = tuple(name for name in (roles.position, roles.weight) if name is not None)
    paths = tuple(str(source.path) for source in sources)
    reader = EventReader(events, roles, paths, as_text)
    log = Log(request, sources, (), replace(roles, session=reader.page, click=CLICKED_EVENT), raw=reader)
    with reading(sources):
        _ = log.schema
    return log


def _is_nested(request: LogRequest, source: Source, names: Sequence[str]) -> bool:
    """Whether a row is a page, because it says so or because its documents are in a list.

    Raises:
        SchemaError: it should be, and is not.
    """
    if request.form == "flat" or request.events is not None:
        return False
    with reading([source]):
        schema = schema_of(source)
    try:
        roles = resolve_roles(request.roles, names, where=request.where, required=(DOC,), looked_for=(DOC,))
    except RoleError:  # to be said with what else is missing
        return request.form == "nested" or any(map(holds_lists, schema.values()))
    nested = any(name in schema and holds_lists(schema[name]) for name in roles.doc)
    if request.form == "nested" and not nested:
        held = ", ".join(f"{name} ({schema.get(name)})" for name in roles.doc)
        raise SchemaError(
            f"{source.path}: --input-format nested, but the documents are in no list: {held}. Name the column that "
            "holds the list with --doc COLUMN, or leave out --input-format."
        )
    return nested
