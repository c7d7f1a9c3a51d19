"""A log is opened: its files are found, the form of its rows, and the column of each role."""

from collections.abc import Sequence
from dataclasses import replace

from posbias.core.errors import LogFormatError, RoleError, SchemaError
from posbias.core.role_search import resolve_roles
from posbias.core.schema import CLICK, DOC, KEY_ROLES, POSITION, QUERY, SESSION, RequestedRoles, Roles
from posbias.io.log.headers import check_files_agree, check_headers
from posbias.io.log.log import CLICKED, Log
from posbias.io.log.nested import find_nesting, holds_lists
from posbias.io.log.request import LogRequest
from posbias.io.log.scan import reading, schema_of
from posbias.io.log.sources import Source
from posbias.io.log.text_files import check_dialect_matters, find_log_files
from posbias.io.log.ubi_rules import ACTION_NAME, COLUMNS, QUERY_ID, USER_QUERY, with_usual_columns


def open_log(request: LogRequest) -> Log:
    """Find the files of a log and the column of each role.

    Raises:
        LogFormatError: a file is missing or cannot be read.
        SchemaError: a role has no column, or more than one.
    """
    sources = find_log_files(request.inputs, request.dialect)
    if request.ubi is not None:
        return _open_ubi(request, sources)
    click_sources = find_log_files(request.clicks.inputs, request.dialect) if request.clicks else ()
    check_dialect_matters([*sources, *click_sources], request.dialect)
    with reading(sources):
        names = list(dict.fromkeys(name for source in sources for name in schema_of(source)))
    where = request.where
    if click_sources:
        with reading(click_sources):
            of_clicks = [name for source in click_sources for name in schema_of(source)]
        _check_click_is_there(request, [*names, *of_clicks])
    requested = replace(request.roles, click=None) if click_sources else request.roles
    nested = _is_nested(replace(request, roles=requested), sources[0], names)
    roles = _find_roles(request, requested, names, nested=nested)
    check_headers(sources, roles.columns())
    check_files_agree(sources, roles)
    base = request.rules.position_base
    nesting = find_nesting(schema_of(sources[0]), roles, base, where=where) if nested else None
    if nesting is not None:
        roles = nesting.roles(roles)
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
    required |= {SESSION} if request.clicks or (request.needs_session and not nested) else set()
    required |= set() if request.clicks else {CLICK}
    left_out = {CLICK} if request.clicks else {SESSION} if summed else set[str]()
    looked_for = [role for role in KEY_ROLES if role not in left_out]
    try:
        roles = resolve_roles(requested, names, where=request.where, required=required, looked_for=looked_for)
    except RoleError as error:
        if QUERY_ID in names and not {ACTION_NAME, USER_QUERY}.isdisjoint(names):
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


def _open_ubi(request: LogRequest, sources: tuple[Source, ...]) -> Log:
    """A log whose rows are still to be made of UBI documents.

    Raises:
        LogFormatError: a file is not text.
        SchemaError: a column is named that UBI does not have.
    """
    for source in sources:
        if source.format != "ndjson":
            raise LogFormatError(
                f"{source.path}: is {source.format}. UBI documents are read as NDJSON, one per line, plain or as bulk "
                "requests; name the file .ndjson or .jsonl (.gz, .zst)."
            )
    requested = with_usual_columns(request.roles)
    return Log(request, sources, (), resolve_roles(requested, COLUMNS, where=request.where, required=()))


def _is_nested(request: LogRequest, source: Source, names: Sequence[str]) -> bool:
    """Whether a row is a page, because it says so or because its documents are in a list.

    Raises:
        SchemaError: it should be, and is not.
    """
    if request.form == "flat":
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
