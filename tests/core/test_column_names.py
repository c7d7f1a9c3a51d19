"""How columns are called: what is the same name, and which one is probably meant."""

import pytest

from posbias.core.errors import RoleError
from posbias.core.roles import guesses, is_offset_name, is_page_name, is_rank_name, plain_name, resolve_roles, words_in
from posbias.core.schema import ALIASES, KEY_ROLES, Roles

ALL = ("query", "doc", "position", "click")
GOOD = ["query", "doc", "position", "click"]


def found(columns: list[str], *required: str) -> dict[str, object]:
    """The column of each role that has one."""
    roles = resolve_roles(Roles(), columns, where="log", required=required or ALL)
    played = {role: getattr(roles, role) for role in KEY_ROLES}
    return {role: names if isinstance(names, str) else names[0] for role, names in played.items() if names}


@pytest.mark.parametrize("name", ["session_id", "SESSION-ID", "sessionId", "SessionID"])
def test_names_that_people_write_differently_are_the_same(name: str) -> None:
    assert plain_name(name) == "sessionid"


def test_names_fall_into_words() -> None:
    assert words_in("hits.product_SKUName") == ["hits", "product", "sku", "name"]


@pytest.mark.parametrize("role", KEY_ROLES)
def test_what_is_known_is_known_in_any_writing(role: str) -> None:
    for name in ALIASES[role]:
        camel = "".join(word.capitalize() for word in name.split("_"))
        for written in (name, name.upper(), name.replace("_", "-"), camel, camel[0].lower() + camel[1:]):
            others = [column for column in GOOD if column != role]
            assert found([*others, written])[role] == written


def test_a_known_name_goes_before_one_that_is_only_like_it() -> None:
    """What was found before other writings were known is found still."""
    assert found([*GOOD, "docId", "sku", "Query-ID", "was_clicked"]) == {name: name for name in GOOD}


@pytest.mark.parametrize(
    ("columns", "roles"),
    [
        (  # OpenSearch UBI: the id is that of a page
            ["query_id", "user_query", "object_id", "position.ordinal", "clicked"],
            {"session": "query_id", "query": "user_query", "doc": "object_id", "position": "position.ordinal"},
        ),
        (["queryID", "query", "objectID", "position", "click"], {"session": "queryID", "query": "query"}),  # Algolia
        (
            ["searchQueryUid", "queryText", "documentUriHash", "documentPosition", "clicked"],  # Coveo
            {"session": "searchQueryUid", "query": "queryText", "doc": "documentUriHash"},
        ),
        (
            ["page_view_id", "search_term", "item_id", "item_list_index", "isClick"],  # Google Analytics
            {"session": "page_view_id", "query": "search_term", "position": "item_list_index", "click": "isClick"},
        ),
        (
            ["searchKeyword", "productSKU", "productListPosition", "isClick", "serp_id"],  # Google Analytics Universal
            {"query": "searchKeyword", "doc": "productSKU", "position": "productListPosition"},
        ),
        (
            ["search.query", "search.results.items.document.id", "position", "click", "serp_id"],  # Elasticsearch
            {"query": "search.query", "doc": "search.results.items.document.id"},
        ),
        (["session", "query", "item", "position", "click"], {"doc": "item"}),  # Metarank
    ],
)
def test_names_of_exports_are_taken_where_a_column_is_needed(columns: list[str], roles: dict[str, str]) -> None:
    assert roles.items() <= found(columns, *KEY_ROLES).items()


def test_a_guess_from_an_export_is_told_from_what_is_certain() -> None:
    roles = resolve_roles(Roles(), ["searchTerm", "productId", "pos", "isClick"], where="log", required=ALL)

    assert roles.guessed == (("--query", "searchTerm"),)


def test_nothing_is_guessed_for_a_role_that_nobody_needs() -> None:
    assert "session" not in found([*GOOD, "requestId"])


def test_a_column_plays_no_second_role_by_its_likeness() -> None:
    columns = ["searchTerm", "productId", "slot", "is-click"]
    roles = resolve_roles(
        Roles(doc=("productId",), query=("slot",), position="searchTerm"), columns, where="log", required=ALL
    )

    assert (roles.query, roles.doc, roles.position, roles.click) == (
        ("slot",),
        ("productId",),
        "searchTerm",
        "is-click",
    )


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (["query", "Query", "doc", "position", "click"], "2 columns could be the query: query, Query."),
        (["query", "docId", "itemId", "position", "click"], "2 columns could be the doc: docId, itemId."),
        (["query", "objectID", "sku", "position", "click"], "2 columns could be the doc: objectID, sku."),
    ],
)
def test_of_two_columns_that_could_be_meant_both_are_named(columns: list[str], said: str) -> None:
    with pytest.raises(RoleError, match="could be") as refused:
        found(columns)

    assert said in str(refused.value)
    assert refused.value.options[1] == "COLUMN"


def test_all_that_is_missing_is_said_at_once_with_a_guess() -> None:
    with pytest.raises(RoleError) as refused:
        found(["searchText", "theItem", "gridSlot", "rating", "pos", "rank"])

    said = str(refused.value)
    assert "I cannot tell which columns are the " in said
    assert "2 columns could be the position: pos, rank. Choose one with --position COLUMN." in said
    assert "Is it 'searchText'? Then use --query searchText." in said
    assert "Is it 'theItem'? Then use --doc theItem." in said
    assert "no column looks like the click (known names: click, clicked, is_click, clicks)" in said
    assert "The columns are: searchText, theItem, gridSlot, rating, pos, rank." in said
    options = ("--position", "COLUMN", "--query", "searchText", "--doc", "theItem", "--click", "COLUMN")
    assert refused.value.options == options


def test_a_guess_is_a_word_of_a_command_line_and_a_column_that_can_be_read() -> None:
    with pytest.raises(RoleError) as refused:
        found(["--items", "search\nterm", "our search", "position", "click"])

    assert refused.value.options == ("--query", "our search", "--doc=--items")
    assert "Then use --query 'our search'." in str(refused.value)


def test_one_column_is_guessed_for_one_role() -> None:
    assert guesses(["query", "doc"], ["search_item"]) == {"query": "search_item"}  # its third word, against a fourth
    assert guesses(["query", "doc"], ["search_item", "my_item"]) == {"query": "search_item", "doc": "my_item"}
    for roles in (["query", "doc"], ["doc", "query"]):
        assert guesses(roles, ["keyword_doc"]) == {roles[0]: "keyword_doc"}


@pytest.mark.parametrize(
    ("names", "is_page", "is_offset"),
    [
        (("page", "serp_page", "pageNumber", "PAGE_NO", "results-page", "search.pageIndex"), True, False),
        (("offset", "from", "start", "page_offset", "startIndex", "request.from"), False, True),
        (("page_id", "pageView", "home_page", "page_size", "started", "valid_from_day", "position"), False, False),
    ],
)
def test_numbers_of_pages_and_offsets_are_told_by_whole_names(
    names: tuple[str, ...], *, is_page: bool, is_offset: bool
) -> None:
    assert [(is_page_name(name), is_offset_name(name)) for name in names] == [(is_page, is_offset)] * len(names)


def test_a_name_with_a_word_for_a_place_says_where_something_stands() -> None:
    assert all(map(is_rank_name, ("clicked.rank", "clickedIndex", "click_position", "pos")))
    assert not any(map(is_rank_name, ("clicked", "clicks", "indexed", "ranking_clicks")))
