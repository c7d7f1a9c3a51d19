"""Documents of OpenSearch UBI as a log."""

from collections import Counter
from dataclasses import dataclass, field

import polars as pl

from posbias.core.errors import SchemaError
from posbias.core.schema import RequestedRoles
from posbias.io.log.lost_clicks import CLICKS
from posbias.io.log.raw import Outcomes, RawReader, RawRules, Resolved
from posbias.io.log.rows import RawLines
from posbias.io.log.scan import FILE, LINE, scan_lines
from posbias.io.log.sources import Source
from posbias.io.ubi.fields import CLICK, COLUMNS, OBJECT_ID, POSITION, QUERY_ID, USER_QUERY
from posbias.io.ubi.outcomes import OUTCOMES
from posbias.io.ubi.pages import BY_ORDINAL, CONTRADICTING, PAGES, resolve
from posbias.io.ubi.records import read_records

_MOSTLY = 0.5
_INDEX_AND_TAB = r"^[^{\t]*\t\s*\{"


@dataclass(frozen=True)
class UbiReader(RawReader):
    """Makes a log of queries and events.

    Attributes:
        rules: how they are read.
    """

    rules: RawRules
    name: str = "ubi"
    title: str = "UBI"
    formats: tuple[str, ...] = ("ndjson", "tsv")
    expected: str = (
        "UBI documents are read as NDJSON, one per line, plain or as bulk requests; name the file .ndjson or .jsonl "
        "(.gz, .zst)."
    )
    columns: tuple[str, ...] = COLUMNS
    outcomes: Outcomes = field(default=OUTCOMES, repr=False)
    key: str = QUERY_ID

    def roles(self, requested: RequestedRoles) -> RequestedRoles:
        """The columns that were named, and those of UBI for the others."""
        return requested.or_else(session=QUERY_ID, query=USER_QUERY, doc=OBJECT_ID, position=POSITION, click=CLICK)

    def records(self, source: Source, number: int) -> pl.LazyFrame:
        """One record per line."""
        lines = scan_lines(source).with_columns(_document().alias(LINE), pl.lit(number, pl.UInt32).alias(FILE))
        return read_records(lines, self.rules)

    def resolve(self, records: pl.DataFrame) -> Resolved:
        """What the records of some pages say together."""
        return resolve(records, self.rules)

    def positions(self, rows: int, counts: Counter[str]) -> dict[str, int]:
        """From hit lists, or from ordinals."""
        return {"from_hit_lists": rows - counts[BY_ORDINAL], "from_ordinals": counts[BY_ORDINAL]}

    def judge(self, where: str, rows: int, counts: Counter[str], account: RawLines) -> None:
        """See that pages were shown, and that most of them do not contradict themselves.

        Raises:
            SchemaError: nothing was shown, or a query_id is no page.
        """
        pages, contradicting = counts[PAGES], counts[CONTRADICTING]
        if contradicting > _MOSTLY * pages:
            raise SchemaError(
                f"{where}: {contradicting:,} of {pages:,} pages contradict themselves: a query_id with several queries "
                "or hit lists, two documents at one position, or one at two. A query_id is one results page; too many "
                f"of them are not. {self.in_words(account)}"
            )
        if rows and not counts[CLICKS] and account.other_actions:
            raise self.no_clicks(where, self.rules.click_actions, account)
        if rows:
            return
        advice = "Nothing that was shown could be read."
        if self.rules.impressions == "hits":
            advice = (
                "No query has a hit list (query_response_hit_ids). If the log has impression events, say "
                "--ubi-impressions events --position-base impression=N, where N is the ordinal of the topmost position."
            )
        raise SchemaError(f"{where}: {advice} {self.in_words(account)}")


def _document() -> pl.Expr:
    """The document of a line: alone, after the name of its index and a tab, or as a hit of a search (`_source`)."""
    line = pl.col(LINE)
    alone = pl.when(line.str.starts_with("{")).then(line).otherwise(line.str.replace(_INDEX_AND_TAB, "{"))
    is_hit = line.str.contains('"_source"', literal=True)
    return pl.when(is_hit).then(pl.coalesce(alone.str.json_path_match("$._source"), alone)).otherwise(alone)
