"""Which column plays which role: how names compare, and what an unknown one may mean."""

import difflib
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from posbias.core.errors import RoleError, SchemaError
from posbias.core.schema import (
    ALIASES,
    CLICK,
    DOC,
    FLAGS,
    IMPRESSIONS,
    KEY_ROLES,
    NO_SUM_OF_RANKS,
    PERIOD,
    POSITION,
    QUERY,
    SESSION,
    WEIGHT,
    Roles,
)

_MARKS = re.compile(r"[_-]+|\.$")
_BETWEEN_WORDS = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NEARLY = 0.85
"""Likeness of a name to a known one (difflib) from which it is taken for a typing error."""


CLIENTS = frozenset(
    (
        *("client", "clientid", "user", "userid", "userpseudoid", "customer", "customerid", "visitor", "visitorid"),
        *("cookie", "cookieid", "deviceid", "ip", "ipaddress", "remoteaddr"),
        *("account", "accountid", "member", "memberid", "profile", "profileid", "viewerid", "subscriberid"),
        *("uid", "userkey", "anonymousid", "fullvisitorid", "clientip", "recipient", "recipientid"),
    )
)
"""Names of columns of users, without case, `_` and `-`."""

VISITS = frozenset(("visit", "visitid", "sessionid"))
"""Those of visits, where a page has another id."""

TIMES = frozenset(
    (
        *("timestamp", "time", "date", "datetime", "day", "ts", "eventtime", "eventdate", "eventtimestamp"),
        *("createdat", "shownat", "searchtime", "querytime", "servertime", "receivedat", "occurredat"),
    )
)
"""Names of columns of times, without case, `_` and `-`."""

TEAMS = frozenset(
    (
        *("draft", "draftedby", "pickedby", "interleaved", "interleavedby", "interleaving", "searchconfig"),
        *("searchconfiguration", "ranker", "rankername", "ranking", "rankingfunction", "rankingmodel", "algorithm"),
    )
)
"""Names of columns that may say which of two rankers placed a document, as plain words; others hold the word team."""

_OF_LISTS = "(serp|search|results?|query|list|current|grid)*"
_PAGE = re.compile(f"{_OF_LISTS}(page|row)(number|no|num|nr|index|idx)?")
_OFFSET = re.compile(f"{_OF_LISTS}(page)?(offset|from|start|startindex|skip)")
_RANKS = frozenset(("rank", "ranks", "index", "idx", "position", "positions", "pos", "ordinal", "slot"))
"""Words of a name that says where something stands."""
_HOW_MANY = "(num|number|no|nr|n|nb|total|sum|sums|cnt|counts?|of|times|ad|search|list|serp)*"
_SHOWN = "(impressions?|impr?s?|(page)?views?|pvs?|shows?|shown|exposures?|displays?|displayed|served)"
_COUNT = re.compile(f"{_HOW_MANY}{_SHOWN}{_HOW_MANY}")
_SUMMED_RANK = re.compile(
    r"(sum|avg|average|mean|median|total)\w*(pos|positions?|ranks?)|\w*(position|rank)(sum|avg|average|mean)"
)
_NOT_CLICKED = re.compile(
    "anonym|mobile|phone|desktop|tablet|stock|avail|view|seen|show|visib|display|impress|expos|hover|purchas|bought|buy|"
    "order|cart|basket|conver|favou?rite|wishlist|liked|rated|relevan|judg|sponsor|promo|advert|organic|discount|brand|"
    "prime|premium|member|login|logged|sign|subscri|guest|return|robot|crawl|random|control|treatment|variant|test|"
    "personal|cache|^(is|has|was)?(ad|ads|new|bot|sale|adult|valid|active|error|success|vip|gift|free|fresh)$"
)
"""What the plain name of a column of 0 and 1 holds that says something else than clicks."""
_NEGATED = frozenset(("no", "not", "non", "un", "without", "prev", "previous", "past", "prior", "last", "history"))


def plain_name(name: str) -> str:
    """A name without what people write differently, e.g. `SessionID`, `session-id` -> `sessionid`, `Pos.` -> `pos`."""
    return _MARKS.sub("", name).lower()


def path_endings(path: str) -> list[str]:
    """The ends of a path, as plain names, e.g. `results.document.id` -> id, documentid; none of what is no path."""
    parts = path.split(".")
    return [plain_name("".join(parts[first:])) for first in range(len(parts) - 1, 0, -1)]


def words_in(name: str) -> list[str]:
    """The words of a name, e.g. `wasClicked` -> was, clicked; `hits.product_SKU` -> hits, product, sku."""
    return [word.lower() for word in _BETWEEN_WORDS.split(name) if word]


def is_page_name(name: str) -> bool:
    """Whether a name, or the end of a path, is that of the number of a page of results, e.g. `serp_page`, `pageNo`."""
    return any(_PAGE.fullmatch(end) for end in (plain_name(name), *path_endings(name)))


def is_offset_name(name: str) -> bool:
    """Whether a name, or the end of a path, is that of the number of results above a page, e.g. `offset`, `from`."""
    return any(_OFFSET.fullmatch(end) for end in (plain_name(name), *path_endings(name)))


def is_rank_name(name: str) -> bool:
    """Whether a name says where something stands, e.g. `clicked.rank`, `clickedIndex`."""
    return not _RANKS.isdisjoint(words_in(name))


def is_count_name(name: str) -> bool:
    """Whether a name is that of a number of impressions, e.g. `Impressions`, `impression_cnt`, `pv`."""
    return _COUNT.fullmatch("".join(words_in(name))) is not None


def is_team_name(name: str) -> bool:
    """Whether a name may be that of the team of a document, e.g. `team`, `docs.[interleaving]`, `interleaving_team`."""
    of_name = words_in(name.rpartition(".")[2])
    return "".join(of_name) in TEAMS or not {"team", "teams"}.isdisjoint(of_name)


def is_summed_rank_name(name: str) -> bool:
    """Whether a name is that of a sum or an average of positions, e.g. `sum_position`, `avgRank`."""
    return _SUMMED_RANK.fullmatch("".join(words_in(name))) is not None


def has_role_word(role: str, name: str) -> bool:
    """Whether a name, or the end of a path, has a word of a role, e.g. `item_clicks`, `hits.wasClicked`."""
    in_name = {form for word in words_in(name.rpartition(".")[2]) for form in (word, word.removesuffix("s"))}
    return not in_name.isdisjoint(_TELLING_WORDS[role]) and in_name.isdisjoint(_NEGATED)


def is_no_click_name(name: str) -> bool:
    """Whether the name says that a column of 0 and 1 holds something else than clicks, e.g. `in_stock`, `viewed`."""
    return bool(_NOT_CLICKED.search(plain_name(name.rpartition(".")[2]))) or not _NEGATED.isdisjoint(words_in(name))


def guesses(roles: Sequence[str], columns: Sequence[str]) -> dict[str, str]:
    """The column that each role is probably played by, by the words of its name. No column plays two.

    Args:
        roles: those that are looked for.
        columns: those that play no role yet.
    """

    def likeness(role: str, column: str) -> float:
        """From 0 to 2: more for a name that is nearly a known one, then for a telling word, the first ones most."""
        near = max(difflib.SequenceMatcher(a=plain_name(column), b=plain_name(name)).ratio() for name in ALIASES[role])
        if near >= _NEARLY:
            return 1 + near
        in_name = {form for word in words_in(column) for form in (word, word.removesuffix("s"))}
        telling = enumerate(_TELLING_WORDS[role])
        return max((1 - number / 100 for number, word in telling if word in in_name), default=0)

    all_pairs = (
        (-likeness(role, column), number, role, column) for number, role in enumerate(roles) for column in columns
    )
    chosen: dict[str, str] = {}
    for unlike, _, role, column in sorted(all_pairs):
        if unlike < 0 and role not in chosen and column not in chosen.values():
            chosen[role] = column
    return chosen


# What exports of other tools call them, without case, `_` and `-`: likely, but not certain, and therefore reported.
NAMES_IN_EXPORTS: dict[str, frozenset[str]] = {
    QUERY: frozenset(
        (
            "userquery",  # OpenSearch UBI
            "querytext",  # Coveo
            "search.query",  # Elasticsearch behavioural analytics
            *("searchterm", "searchkeyword"),  # Google Analytics 4 and Universal
            *("searchquery", "keyword", "q"),
        )
    ),
    DOC: frozenset(
        (
            "objectid",  # Algolia, OpenSearch UBI
            *("documenturihash", "documenturi", "documenturl"),  # Coveo
            *("document.id", "search.results.items.document.id"),  # Elasticsearch behavioural analytics
            *("productsku", "sku"),  # Google Analytics Universal; Adobe
            "item",  # Metarank
            "product",
        )
    ),
    POSITION: frozenset(
        (
            "documentposition",  # Coveo
            *("itemlistindex", "productlistposition"),  # Google Analytics 4 and Universal
            *("position.ordinal", "eventattributes.position.ordinal"),  # OpenSearch UBI
            *("slot", "itemposition", "resultposition"),
        )
    ),
    CLICK: frozenset(("wasclicked", "isclicked", "hasclick", "hasclicked", "clickflag")),
    SESSION: frozenset(
        (
            "queryid",  # Algolia, OpenSearch UBI: of one search, not of its text
            "searchqueryuid",  # Coveo
            *("requestid", "serp"),
        )
    ),
}

_NO_LETTER = "\ufffd"  # stands for what could not be read
_NUMBERS_IN_A_ROW = 2  # among what should be names of columns, from which they are values
_TEXT_OF_QUERY_ID = "userquery"  # of OpenSearch UBI, where the id is that of the page

# Words that the name of such a column often has, for a guess.
_TELLING_WORDS: dict[str, tuple[str, ...]] = {
    SESSION: ("serp", "session", "impression", "pageview", "request"),
    QUERY: ("query", "keyword", "search", "term", "phrase"),
    DOC: ("document", "doc", "sku", "item", "product", "object", "article", "listing", "url", "uri", "asset"),
    POSITION: ("position", "pos", "rank", "ordinal", "slot", "place", "index", "column", "col"),
    CLICK: ("clicked", "click", "clk", "tapped", "tap"),
}


_FLAGS_OF_OTHERS = {
    "weight": FLAGS[WEIGHT],
    "timestamp": FLAGS[PERIOD],
    "impressions": FLAGS[IMPRESSIONS],
    "clicked": "--clicked",
    "page": "--page",
    "cell": "--cell",
    "context": "--context",
    "stratify": "--stratify",
    "each": "--for-each or --by",
    "version": "--period-column",
    "cluster": "--cluster-column",
    "arm": "--arm",
}
"""The options that name columns which are never recognised by their names."""


def resolve_roles(
    requested: Roles,
    columns: Sequence[str],
    *,
    where: str,
    required: Iterable[str],
    looked_for: Iterable[str] = KEY_ROLES,
    flags: Mapping[str, str] = FLAGS,
    only_named: Collection[str] = (),
) -> Roles:
    """Find the column of each role: named by the user, else by a well-known name.

    Args:
        requested: what the user named.
        columns: the columns of the log.
        where: what is being read, for the message ("log.csv").
        required: the roles that must have a column.
        looked_for: the roles that are recognised by name where the user named no column.
        flags: the options that name the columns of roles, for messages.
        only_named: columns that play a role only if they are named: what holds structs.

    Raises:
        SchemaError: a named column is not there.
        RoleError: a role has two candidates, or a required role has none; all such roles are listed.
    """

    def named(names: Sequence[str] | str | None, flag: str) -> tuple[str, ...]:
        names = (names,) if isinstance(names, str) and names else tuple(names or ())
        for name in names:
            check_readable(name, where)
            if name not in columns:
                close = difflib.get_close_matches(name, columns, n=1)
                suggestion = f" (did you mean {close[0]!r}?)" if close else ""
                raise SchemaError(
                    f"{where}: there is no column {name!r} ({flag}){suggestion}. The columns are: {_listed(columns)}."
                )
        if len(set(names)) < len(names):
            raise SchemaError(f"{flag}: names a column twice: {_listed(names)}.")
        return names

    keys = {role: named(getattr(requested, role), flags.get(role, FLAGS[role])) for role in KEY_ROLES}
    for name in filter(is_summed_rank_name, keys[POSITION]):
        raise SchemaError(f"{where}: column {name!r} ({FLAGS[POSITION]}): {NO_SUM_OF_RANKS}")
    of_others = {**_FLAGS_OF_OTHERS, "features": requested.features_by}
    others = {role: named(getattr(requested, role), flag) for role, flag in of_others.items()}
    for rows in requested.randomized:
        named(rows.column, "--randomized-where")
        if rows.column == requested.click or (requested.click is None and rows.column.lower() in ALIASES[CLICK]):
            raise SchemaError(
                f"--randomized-where {rows}: {rows.column!r} holds the clicks. Name the column that says how the page "
                "was made."
            )
    only = {name for column, _ in requested.only for name in named(column, "--for-each of the fit")}
    taken = {name for names in (*keys.values(), *others.values()) for name in names}
    taken |= only | {rows.column for rows in requested.randomized}
    candidates = [name for name in columns if name not in only_named]
    unnamed, required = [role for role in looked_for if not keys[role]], frozenset(required)
    known = any(name.lower() in ALIASES[POSITION] for name in candidates)
    if len(requested.cell) > 1 and POSITION in required.intersection(unnamed) and not known:
        keys[POSITION] = others["cell"][-1:]  # the cell says all
        unnamed.remove(POSITION)
    found, guessed = _search(candidates, taken, unnamed, required, where, flags)
    columns_of = keys | found
    return replace(
        requested,
        session=columns_of[SESSION],
        query=columns_of[DOC] if requested.no_query else columns_of[QUERY],
        doc=columns_of[DOC],
        position=next(iter(columns_of[POSITION]), None),
        click=next(iter(columns_of[CLICK]), None),
        guessed=tuple(guessed),
    )


def check_readable(name: str, where: str) -> None:
    """A name must be one that Polars takes to the letter.

    Raises:
        SchemaError: it holds control characters, or Polars would take it for a pattern.
    """
    why = _why_unreadable(name)
    if why is not None:
        raise SchemaError(f"{where}: the name of the column {name!r} {why}. Rename the column.")


def _why_unreadable(name: str) -> str | None:
    """Why Polars would not take a name to the letter."""
    if any(ord(letter) < ord(" ") or "\x7f" <= letter <= "\x9f" for letter in name):
        return "holds control characters"
    return "is a pattern" if name == "*" or (name.startswith("^") and name.endswith("$")) else None


def _search(
    columns: Sequence[str],
    taken: set[str],
    roles: Sequence[str],
    required: Collection[str],
    where: str,
    flags: Mapping[str, str],
) -> tuple[dict[str, tuple[str, ...]], list[tuple[str, str]]]:
    """Find the columns of roles by their names.

    A role is played by the column of a well-known name, compared without regard to case; else by one that differs from
    such a name by `_`, `-` or camelCase; else, if it must be played, by one of a name from exports of other tools, or
    by a field of structs whose path ends like that.

    Args:
        columns: of the log.
        taken: columns that play a role already; those that are found join them.
        roles: those that are looked for.
        required: the roles that must be played.
        where: what is being read.
        flags: the options that name columns.

    Returns:
        The columns of each role, and the options and columns that were taken from exports.

    Raises:
        RoleError: roles have none and must, or have several.
    """
    guessed = list[tuple[str, str]]()
    known = {role: [name for name in columns if name.lower() in ALIASES[role]] for role in roles}
    if any(not known[role] for role in set(required).intersection(roles)):
        # Where the text of a query stands beside its id, as in OpenSearch UBI, the id is that of one page.
        texts = [name for name in columns if plain_name(name) == _TEXT_OF_QUERY_ID]
        if texts and len(known.get(QUERY, [])) == 1:
            known[QUERY] = texts
            guessed += [(flags[QUERY], name) for name in texts]
    taken |= {name for names in known.values() for name in names}
    for role in sorted((role for role in roles if not known[role]), key=list(NAMES_IN_EXPORTS).index):
        free, nearly = [name for name in columns if name not in taken], {plain_name(name) for name in ALIASES[role]}
        names = [name for name in free if plain_name(name) in nearly]
        if role not in required:
            names = names if len(names) == 1 else []
        elif not names:
            names = [name for name in free if plain_name(name) in NAMES_IN_EXPORTS[role]] or [
                name for name in free if not nearly.union(NAMES_IN_EXPORTS[role]).isdisjoint(path_endings(name))
            ]
            guessed += [(flags[role], name) for name in names]
            telling = [name for name in free if role == CLICK and not names and has_role_word(CLICK, name)]
            names = telling if len(telling) > 1 else names  # to be chosen from
        known[role] = names
        taken.update(names)
    several = {role: names for role, names in known.items() if len(names) > 1}
    missing = [role for role in roles if role in required and not known[role]]
    if several or missing:
        raise _unclear(columns, taken, several, missing, where, flags)
    return {role: tuple(names) for role, names in known.items()}, guessed


def _unclear(
    columns: Sequence[str],
    taken: Collection[str],
    several: Mapping[str, Sequence[str]],
    missing: Sequence[str],
    where: str,
    flags: Mapping[str, str],
) -> RoleError:
    """The error that roles have several columns, or none; for the other arguments see `_search`."""
    hint, options_of_hint = _hint(columns)
    free = [name for name in columns if name not in taken and _why_unreadable(name) is None]
    sums = [free.pop(free.index(name)) for name in filter(is_summed_rank_name, [*free])]
    guessed = {} if hint else guesses(missing, free)
    problems = [
        f"{len(names)} columns could be the {role}: {_listed(names)}. Choose one with {flags[role]} COLUMN."
        for role, names in several.items()
    ]
    for role in missing:
        flag, guess = flags[role], guessed.get(role)
        say = shlex.join(_option(flag, guess or ""))
        advice = f"Name it with {flag} COLUMN." if guess is None else f"Is it {guess!r}? Then use {say}."
        if role == QUERY:
            advice += " If the log has none, use --no-query."
        if role == POSITION and guess is None and sums:
            advice = f"Is it {sums[0]!r}? {NO_SUM_OF_RANKS}"
        problems.append(f"no column looks like the {role} (known names: {_listed(ALIASES[role])}). {advice}")
    there, unclear = f"The columns are: {_listed(columns)}.{hint}", [*several, *missing]
    lines = [f"{where}: {problems[0]} {there}"]
    if len(problems) > 1:
        which = f"{', '.join(unclear[:-1])} and the {unclear[-1]}"
        lines = [f"{where}: I cannot tell which columns are the {which}:", *(f"  {one}" for one in problems), there]
    options = [_option(flags[role], guessed.get(role, "COLUMN")) for role in unclear]
    return RoleError(
        *lines,
        options=options_of_hint if hint else tuple(word for option in options for word in option),
        several={flags[role]: tuple(names) for role, names in several.items()},
    )


def _option(flag: str, column: str) -> tuple[str, ...]:
    """An option with a column, as words of a command line; a column may begin with a dash."""
    return (f"{flag}={column}",) if column.startswith("-") else (flag, column)


def _hint(columns: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """A sentence on what a header that is none shows of the file, and the options that read it."""
    if len(columns) == 1 and (mark := next((one for one in ";\t|" if one in columns[0]), None)):
        name = "tab" if mark == "\t" else mark
        option = shlex.join(["--separator", name])
        return f" The columns seem to be separated by {mark!r}: use {option}.", ("--separator", name)
    if any(_NO_LETTER in column for column in columns):
        return " The header is not UTF-8: name its encoding with --encoding, e.g. cp1252.", ()
    if any(column != column.strip() for column in columns):
        return " Some names have blanks around them: write the header without.", ()
    plainly = (column.strip().replace(".", "", 1).replace(",", "", 1) for column in columns)
    if sum(text.replace("_duplicated_", "", 1).isdecimal() for text in plainly) >= _NUMBERS_IN_A_ROW:
        names = ",".join(f"c{number}" for number in range(1, len(columns) + 1))
        option = f"--no-header --columns {names}"
        return f" The first line seems to be a row, not a header: use {option}, with your own names.", ()
    return "", ()


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:20])
    return shown if len(names) <= 20 else f"{shown}, ... ({len(names)} in all)"  # noqa: PLR2004
