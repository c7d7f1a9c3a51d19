"""Recognise the role of each column of a log (session, query, document, position, click, ...) by its name."""

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
"""Similarity to a known name (difflib) from which a name is taken for a misspelling of it."""


CLIENTS = frozenset(
    (
        *("client", "clientid", "user", "userid", "userpseudoid", "customer", "customerid", "visitor", "visitorid"),
        *("cookie", "cookieid", "deviceid", "ip", "ipaddress", "remoteaddr"),
        *("account", "accountid", "member", "memberid", "profile", "profileid", "viewerid", "subscriberid"),
        *("uid", "userkey", "anonymousid", "fullvisitorid", "clientip", "recipient", "recipientid"),
    )
)
"""Plain names (see `plain_name`) of columns of users."""

VISITS = frozenset(("visit", "visitid", "sessionid"))
"""Plain names of columns of visits, if a page has another id."""

TIMES = frozenset(
    (
        *("timestamp", "time", "date", "datetime", "day", "ts", "eventtime", "eventdate", "eventtimestamp"),
        *("createdat", "shownat", "searchtime", "querytime", "servertime", "receivedat", "occurredat"),
    )
)
"""Plain names of columns of times."""

TEAMS = frozenset(
    (
        *("draft", "draftedby", "pickedby", "interleaved", "interleavedby", "interleaving", "searchconfig"),
        *("searchconfiguration", "ranker", "rankername", "ranking", "rankingfunction", "rankingmodel", "algorithm"),
    )
)
"""Plain names of columns that may hold the team of a document, the ranker that placed it; besides names with `team`."""

_OF_LISTS = "(serp|search|results?|query|list|current|grid)*"
_PAGE = re.compile(f"{_OF_LISTS}(page|row)(number|no|num|nr|index|idx)?")
_OFFSET = re.compile(f"{_OF_LISTS}(page)?(offset|from|start|startindex|skip)")
_RANKS = frozenset(("rank", "ranks", "index", "idx", "position", "positions", "pos", "ordinal", "slot"))
"""Words in names of columns of ranks."""
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
"""Parts of plain names of columns of 0 and 1 that are not clicks."""
_NEGATED = frozenset(("no", "not", "non", "un", "without", "prev", "previous", "past", "prior", "last", "history"))


def plain_name(name: str) -> str:
    """Normalise a name: lower case, without `_`, `-` and a final point; `SessionID`, `session-id` -> `sessionid`."""
    return _MARKS.sub("", name).lower()


def path_endings(path: str) -> list[str]:
    """Return the plain names of the ends of a path, e.g. `results.document.id` -> id, documentid; none for `id`."""
    parts = path.split(".")
    return [plain_name("".join(parts[first:])) for first in range(len(parts) - 1, 0, -1)]


def words_in(name: str) -> list[str]:
    """Split a name into words, e.g. `wasClicked` -> was, clicked; `hits.product_SKU` -> hits, product, sku."""
    return [word.lower() for word in _BETWEEN_WORDS.split(name) if word]


def is_page_name(name: str) -> bool:
    """Return whether a name or the end of a path means the number of a results page, e.g. `serp_page`, `pageNo`."""
    return any(_PAGE.fullmatch(end) for end in (plain_name(name), *path_endings(name)))


def is_offset_name(name: str) -> bool:
    """Return whether a name or the end of a path means the number of results above a page, e.g. `offset`, `from`."""
    return any(_OFFSET.fullmatch(end) for end in (plain_name(name), *path_endings(name)))


def is_rank_name(name: str) -> bool:
    """Return whether a name has a word for ranks, e.g. `clicked.rank`, `clickedIndex`."""
    return not _RANKS.isdisjoint(words_in(name))


def is_count_name(name: str) -> bool:
    """Return whether a name means a number of impressions, e.g. `Impressions`, `impression_cnt`, `pv`."""
    return _COUNT.fullmatch("".join(words_in(name))) is not None


def is_team_name(name: str) -> bool:
    """Return whether a name may mean the team of a document: `team`, `docs.[interleaving]`, `interleaving_team`."""
    words = words_in(name.rpartition(".")[2])
    return "".join(words) in TEAMS or not {"team", "teams"}.isdisjoint(words)


def is_summed_rank_name(name: str) -> bool:
    """Return whether a name means a sum or an average of positions, e.g. `sum_position`, `avgRank`."""
    return _SUMMED_RANK.fullmatch("".join(words_in(name))) is not None


def has_role_word(role: str, name: str) -> bool:
    """Return whether a name or a path end has a typical word of a role, e.g. `item_clicks`, `hits.wasClicked`."""
    in_name = {form for word in words_in(name.rpartition(".")[2]) for form in (word, word.removesuffix("s"))}
    return not in_name.isdisjoint(_TELLING_WORDS[role]) and in_name.isdisjoint(_NEGATED)


def is_no_click_name(name: str) -> bool:
    """Return whether a column of 0 and 1 is not clicks by its name, e.g. `in_stock`, `viewed`."""
    return bool(_NOT_CLICKED.search(plain_name(name.rpartition(".")[2]))) or not _NEGATED.isdisjoint(words_in(name))


def guesses(roles: Sequence[str], columns: Sequence[str]) -> dict[str, str]:
    """Guess the column of each role by its name; no column has two roles.

    Args:
        roles: the roles without a column.
        columns: the columns without a role.
    """

    def likeness(role: str, column: str) -> float:
        """Score a column from 0 to 2: highest for a misspelt known name, then by its most typical word."""
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


# Plain names in exports of other tools: likely but not certain, and therefore reported
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

_NO_LETTER = "\ufffd"  # replaces bytes that could not be decoded
_NUMBERS_IN_A_ROW = 2  # numbers among column names from which these are taken for values
_TEXT_OF_QUERY_ID = "userquery"  # of OpenSearch UBI, where the id is that of the page

# Words typical of the names of each role's columns, the most typical first, for guesses
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
"""Options of roles that are never recognised by name."""


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
    """Determine the column of each role: the one that the user named, else one of a well-known name.

    Args:
        requested: columns that the user named.
        columns: the columns of the log.
        where: name of the log, for messages ("log.csv").
        required: roles that must have a column.
        looked_for: roles that are recognised by name if the user named no column.
        flags: options that name the columns of roles, for messages.
        only_named: columns that have a role only if they are named (structs).

    Raises:
        SchemaError: a named column does not exist.
        RoleError: a role has several candidates, or a required role has none; all such roles are listed.
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
    """Check that Polars takes a column name literally.

    Raises:
        SchemaError: it has control characters, or Polars would interpret it as a pattern.
    """
    why = _why_unreadable(name)
    if why is not None:
        raise SchemaError(f"{where}: the name of the column {name!r} {why}. Rename the column.")


def _why_unreadable(name: str) -> str | None:
    """Return the reason why Polars would not take a name literally, or None."""
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
    """Recognise the columns of roles by name.

    A role gets the column with a well-known name (not case-sensitive); else one whose plain name is well-known; else,
    if it is required, one with a name from exports of other tools, or a struct field whose path ends with such a name.

    Args:
        columns: of the log.
        taken: columns that have a role already; recognised columns are added.
        roles: the roles to recognise.
        required: roles that must have a column.
        where: name of the log, for messages.
        flags: options that name columns.

    Returns:
        The columns of each role, and (option, column) of those recognised by names from exports.

    Raises:
        RoleError: a required role has no column, or a role has several.
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
    """Return the error for roles with several columns or none; for the other arguments see `_search`."""
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
