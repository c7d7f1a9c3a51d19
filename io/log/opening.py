"""A log is opened: its files are found, the form of its rows, and the column of each role."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import polars as pl

from posbias.core.column_names import says_offset, says_page
from posbias.core.errors import LogFormatError, RoleError, SchemaError
from posbias.core.role_search import resolve_roles
from posbias.core.schema import CLICK, DOC, FLAGS, KEY_ROLES, POSITION, QUERY, SESSION, Roles
from posbias.io.log.event_table import EventReader
from posbias.io.log.headers import check_files_agree, check_headers
from posbias.io.log.log import CLICKED, Log
from posbias.io.log.nested import find_nesting, holds_lists
from posbias.io.log.paths import are_structs
from posbias.io.log.raw import CLICKED_EVENT
from posbias.io.log.request import LogRequest
from posbias.io.log.scan import reading, schema_of
from posbias.io.log.sources import Source
from posbias.io.log.text_files import check_dialect_matters, find_log_files

_ID_OF_UBI, _ONE_OF_UBI = "query_id", {"action_name", "user_query"}


def open_log(request: LogRequest) -> Log:
    """Find the files of a log and the column of each role.

    Raises:
        LogFormatError: a file is missing or cannot be read, or is not of the format of its source.
        SchemaError: a role has no column, or more than one, or rows are not what they should be.
    """
    where = request.where
    sources = find_log_files(request.inputs, request.dialect)
    if (raw := request.raw) is not None:
        for source in sources:
            if source.format not in raw.formats:
                raise LogFormatError(f"{source.path}: is {source.format}. {raw.expected}")
        roles = resolve_roles(raw.roles(request.roles), raw.columns, where=where, required=())
        return Log(request, sources, (), roles, raw=raw)
    click_sources = find_log_files(request.clicks.inputs, request.dialect) if request.clicks else ()
    check_dialect_matters([*sources, *click_sources], request.dialect)
    columns = _columns_of(sources)
    click = request.roles.click
    if click_sources and click is not None and click not in (both := columns | _columns_of(click_sources)):
        raise SchemaError(
            f"{where}: there is no column {click!r} (--click), neither here nor in the table of clicks. The columns "
            f"are: {', '.join(both)}."
        )
    apart = request.events is not None or bool(click_sources)
    requested = replace(request.roles, click=None) if apart else request.roles
    requested = _with_page(request, requested, [*columns])
    nested = _is_nested(replace(request, roles=requested), sources[0], columns)
    roles = _find_roles(request, requested, columns, nested=nested)
    check_headers(sources, roles.columns())
    check_files_agree(sources, roles)
    base = request.rules.position_base
    of_entries = roles if request.rules.click_ranks is None else replace(roles, click=None)
    nesting = find_nesting(schema_of(sources[0]), of_entries, base, request.lists, where=where) if nested else None
    roles = roles if nesting is None else nesting.roles(roles)
    if request.events is not None:
        request.events.check(sources)
        as_text = tuple(name for name in (roles.position, roles.page, roles.weight) if name is not None)
        reader = EventReader(request.events, roles, tuple(str(source.path) for source in sources), as_text)
        roles = replace(roles, session=reader.page, click=CLICKED_EVENT)
        log = Log(request, sources, (), roles, raw=reader)
    else:
        roles = replace(roles, click=CLICKED) if click_sources else roles
        log = Log(request, sources, click_sources, roles, nesting)
    with reading(sources):
        _ = log.schema
    return log


def _columns_of(sources: Sequence[Source]) -> dict[str, bool]:
    """The columns of some files, with the paths of fields, and whether each has fields.

    One with fields plays a role only if it is named.
    """
    found: dict[str, bool] = {}
    with reading(sources):
        for source in sources:
            for name, dtype in schema_of(source).items():
                found[name] = found.get(name, False) or are_structs(dtype)
    return found


def _with_page(request: LogRequest, requested: Roles, names: Sequence[str]) -> Roles:
    """The columns that were named, and the one that numbers results pages, where positions begin anew on each.

    Raises:
        SchemaError: no column is called so.
    """
    paging = request.rules.paging
    if paging is None or requested.page is not None:
        return requested
    found = next(filter(says_offset if paging.size == 1 else says_page, names), None)
    if found is None:
        raise SchemaError(
            f"{request.where}: no column looks like the number of the results page (--page-size {paging.size}). Name "
            f"it with --page COLUMN. The columns are: {', '.join(names)}."
        )
    return replace(requested, page=found)


def _find_roles(request: LogRequest, requested: Roles, columns: dict[str, bool], *, nested: bool) -> Roles:
    """The columns of the roles that are needed, and of others.

    Raises:
        SchemaError: a role has no column, or more than one, or rows are not what they should be.
    """
    where = request.where
    summed = request.roles.impressions is not None
    if summed and nested:
        raise SchemaError(
            f"{where}: the documents are in lists. A row of a table of sums (--impressions) is one query, document and "
            "position."
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
        roles = _resolve(columns, where)(requested, required=required, looked_for=looked_for)
    except RoleError as error:
        if _ID_OF_UBI in columns and not _ONE_OF_UBI.isdisjoint(columns):
            raise RoleError(f"{error} If these are OpenSearch UBI documents, say --input-format ubi.") from error
        raise
    if summed and roles.impressions in {roles.position, roles.click, *roles.ids()}:
        raise SchemaError(
            f"{where}: column {roles.impressions!r} (--impressions) plays another role already. Name the column that "
            "says how many impressions a row adds up."
        )
    for role, names in ((SESSION, roles.session), (QUERY, roles.query), (DOC, roles.doc)):
        for name in (name for name in names if columns.get(name)):
            fields = [path for path in columns if path.startswith(f"{name}.")]
            raise SchemaError(
                f"{where}: column {name!r} ({FLAGS[role]}) holds structs. Name the field that is the id: "
                f"{', '.join(fields)}."
            )
    return roles


def _resolve(columns: dict[str, bool], where: str) -> partial[Roles]:
    structs = {name for name, has_fields in columns.items() if has_fields}
    return partial(resolve_roles, columns=[*columns], where=where, only_named=structs)


def _is_nested(request: LogRequest, source: Source, columns: dict[str, bool]) -> bool:
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
        roles = _resolve(columns, request.where)(request.roles, required=(DOC,), looked_for=(DOC,))
    except RoleError:  # to be said with what else is missing
        return request.form == "nested" or written or any(map(holds_lists, schema.values()))
    types = [schema[name] for name in roles.doc if name in schema]
    nested = any(holds_lists(dtype) or (written and dtype == pl.String) for dtype in types)
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
