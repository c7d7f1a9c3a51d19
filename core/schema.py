"""The glossary as columns: which role each column of a log plays, and how it is found.

A *session* is one results page shown once (not a visit). An *impression* is one (session, document, position).
A *position* is a slot, 1-based inside the tool. A *pair* is a (query, document).
"""

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from posbias.core.errors import SchemaError
from posbias.core.randomization import RandomizedRows

SESSION = "session"
QUERY = "query"
DOC = "doc"
POSITION = "position"
CLICK = "click"
WEIGHT = "weight"
PERIOD = "period"
PREVIOUS_CLICK = "previous_click"
RANDOMIZED = "randomized"
IMPRESSIONS = "impressions"
CLICKS = "clicks"

PAIR = (QUERY, DOC)

RESERVED = frozenset(
    (
        SESSION,
        QUERY,
        DOC,
        POSITION,
        CLICK,
        WEIGHT,
        PERIOD,
        PREVIOUS_CLICK,
        RANDOMIZED,
        IMPRESSIONS,
        CLICKS,
        "rejected",
        "rows",
    )
)
"""Names of our own, which no further column of a log may take."""

OUTPUT_COLUMNS = frozenset(
    (
        *("ctr", "propensity", "examination", "std_error", "ci_low", "ci_high", "identified", "reason"),
        *("linking_pairs", "linking_clicks", "joint_propensity", "attractiveness", "std_dev", "signature"),
        *("smooth_propensity", "smooth_std_error", "smooth_ci_low", "smooth_ci_high"),
        *("unshrunk_propensity", "unshrunk_ci_low", "unshrunk_ci_high"),
    )
)
"""What else stands beside contexts: the columns of propensities and attractiveness, and of what they are made from."""

NAMES_TAKEN = {
    "--context": RESERVED | OUTPUT_COLUMNS,
    **dict.fromkeys(("--stratify", "--period-column", "--cluster-column"), RESERVED),
}
"""The names that a column cannot have which goes into tables under its own name, by the option that names it."""

NO_PREVIOUS_CLICK = 0
"""The value of `previous_click` where nothing above was clicked."""

# Well-known column names per role, compared without regard to case. The role's own name comes first.
ALIASES: dict[str, tuple[str, ...]] = {
    SESSION: (SESSION, "session_id", "serp_id", "page_view_id", "impression_id", "search_id"),
    QUERY: (QUERY, "query_id", "qid"),
    DOC: (DOC, "doc_id", "document", "document_id", "item_id", "product_id", "url"),
    POSITION: (POSITION, "pos", "rank", "ordinal"),
    CLICK: (CLICK, "clicked", "is_click", "clicks"),
}

FLAGS: dict[str, str] = {
    SESSION: "--session",
    QUERY: "--query",
    DOC: "--doc",
    POSITION: "--position",
    CLICK: "--click",
    WEIGHT: "--weight-column",
    PERIOD: "--timestamp",
}


@dataclass(frozen=True)
class RequestedRoles:
    """What the user said about the columns: nothing (found by alias) or names, several of which form one key."""

    session: tuple[str, ...] = ()
    query: tuple[str, ...] = ()
    doc: tuple[str, ...] = ()
    position: str | None = None
    click: str | None = None
    weight: str | None = None
    timestamp: str | None = None
    context: tuple[str, ...] = ()
    stratify: tuple[str, ...] = ()
    version: tuple[str, ...] = ()
    cluster: tuple[str, ...] = ()
    randomized: tuple[RandomizedRows, ...] = ()
    features: tuple[str, ...] = ()


@dataclass(frozen=True)
class Roles:
    """Which columns of a log play which role; `session` is empty and `click` None where the log has none.

    Strata are told apart by `stratify` and `version`, that of the ranker; `cluster` is for standard errors alone.
    """

    session: tuple[str, ...]
    query: tuple[str, ...]
    doc: tuple[str, ...]
    position: str | None
    click: str | None
    weight: str | None = None
    timestamp: str | None = None
    context: tuple[str, ...] = ()
    stratify: tuple[str, ...] = ()
    version: tuple[str, ...] = ()
    cluster: tuple[str, ...] = ()
    randomized: tuple[RandomizedRows, ...] = ()
    features: tuple[str, ...] = ()

    def ids(self) -> list[str]:
        """The columns that tell pairs apart, each once, in the log's own names."""
        return list(dict.fromkeys([*self.query, *self.doc]))

    def columns(self) -> list[str]:
        """Every column that plays a role, each once, in the log's own names."""
        single = (self.position, self.click, self.weight, self.timestamp)
        names = [*self.session, *self.query, *self.doc, *(c for c in single if c is not None)]
        further = [*self.context, *self.stratify, *self.version, *self.cluster, *self.features]
        return list(dict.fromkeys([*names, *further, *(rows.column for rows in self.randomized)]))


def resolve_roles(requested: RequestedRoles, columns: Sequence[str], *, where: str, required: Iterable[str]) -> Roles:
    """Find the column of each role: named by the user, else by a well-known alias.

    Args:
        requested: what the user named.
        columns: the columns of the log.
        where: what is being read, for the message ("log.csv").
        required: the roles that must be found.

    Raises:
        SchemaError: a named column is not there, or a role has two candidates, or a required role has none.
    """
    required = frozenset(required)

    def named(names: Sequence[str], flag: str) -> tuple[str, ...]:
        for name in names:
            check_readable(name, where)
            if name not in columns:
                raise SchemaError(
                    f"{where}: there is no column {name!r} ({flag}){_suggestion(name, columns)}. "
                    f"The columns are: {_listed(columns)}."
                )
        if len(set(names)) < len(names):
            raise SchemaError(f"{flag}: names a column twice: {_listed(names)}.")
        return tuple(names)

    def key(role: str, names: Sequence[str]) -> tuple[str, ...]:
        return named(names, FLAGS[role]) if names else _by_alias(role, columns, where, required)

    def single(role: str, name: str | None) -> str | None:
        found = key(role, [name] if name else [])
        return found[0] if found else None

    def optional(role: str, name: str | None) -> str | None:
        return named([name], FLAGS[role])[0] if name else None

    return Roles(
        session=key(SESSION, requested.session),
        query=key(QUERY, requested.query),
        doc=key(DOC, requested.doc),
        position=single(POSITION, requested.position),
        click=single(CLICK, requested.click),
        weight=optional(WEIGHT, requested.weight),
        timestamp=optional(PERIOD, requested.timestamp),
        context=named(requested.context, "--context"),
        stratify=named(requested.stratify, "--stratify"),
        version=named(requested.version, "--period-column"),
        cluster=named(requested.cluster, "--cluster-column"),
        randomized=_marked(requested, named),
        features=named(requested.features, "--feature"),
    )


def _marked(
    requested: RequestedRoles, named: Callable[[Sequence[str], str], tuple[str, ...]]
) -> tuple[RandomizedRows, ...]:
    for rows in requested.randomized:
        named([rows.column], "--randomized-where")
        if rows.column == requested.click or (requested.click is None and rows.column.lower() in ALIASES[CLICK]):
            raise SchemaError(
                f"--randomized-where {rows}: {rows.column!r} holds the clicks. Name the column that says how the page "
                "was made."
            )
    return requested.randomized


def check_readable(name: str, where: str) -> None:
    """A name must be one that Polars takes to the letter.

    Raises:
        SchemaError: it holds control characters, or Polars would take it for a pattern.
    """
    if any(ord(letter) < ord(" ") or "\x7f" <= letter <= "\x9f" for letter in name):
        raise SchemaError(f"{where}: the name of the column {name!r} holds control characters. Rename the column.")
    if name == "*" or (name.startswith("^") and name.endswith("$")):
        raise SchemaError(f"{where}: the name of the column {name!r} is a pattern. Rename the column.")


def _by_alias(role: str, columns: Sequence[str], where: str, required: frozenset[str]) -> tuple[str, ...]:
    found = [column for column in columns if column.lower() in ALIASES[role]]
    if len(found) == 1:
        return (found[0],)
    flag = FLAGS[role]
    if len(found) > 1:
        raise SchemaError(
            f"{where}: {len(found)} columns could be the {role}: {_listed(found)}. Say which one with {flag} COLUMN."
        )
    if role in required:
        raise SchemaError(
            f"{where}: no column looks like the {role} (known names: {_listed(ALIASES[role])}). "
            f"Name it with {flag} COLUMN. The columns are: {_listed(columns)}.{_separator_hint(columns)}"
        )
    return ()


def _separator_hint(columns: Sequence[str]) -> str:
    if len(columns) == 1 and (found := next((mark for mark in ";\t|" if mark in columns[0]), None)):
        return f" The columns seem to be separated by {found!r}: write them with commas, or with tabs as .tsv."
    if any(column != column.strip() for column in columns):
        return " Some names have blanks around them: write the header without."
    return ""


def _suggestion(name: str, columns: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, columns, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:20])
    return shown if len(names) <= 20 else f"{shown}, ... ({len(names)} in all)"  # noqa: PLR2004
