"""What the user said about a log."""

from dataclasses import dataclass

from posbias.core.choices import DuplicateDocs
from posbias.core.log.impressions import ReadingRules
from posbias.core.schema import RequestedRoles
from posbias.io.log.click_table import ClicksRequest
from posbias.io.log.dialect import PLAIN, Dialect
from posbias.io.log.event_table import EventsRequest
from posbias.io.log.raw import RawReader
from posbias.io.log.written_values import NO_LIST_RULES, ListRules


@dataclass(frozen=True)
class LogRequest:
    """What the user said about a log.

    Attributes:
        inputs: files, globs and directories.
        roles: the columns that were named.
        rules: how values are read.
        clicks: a second table that holds the clicks, where impressions and clicks are apart.
        needs_session: whether the work cannot be done without the session column.
        form: what a row is: an impression (flat), a page (nested), or one of these, by the document column (auto).
        events: which rows are impressions and which are clicks, where one table holds both.
        raw: what makes the log, where the files are the raw ones of a known source.
        max_bad_rows: share of the rows that may be left out because they break the contract.
        dialect: how files of text are written, those of the clicks as well.
        duplicate_docs: what becomes of a document that stands twice on a page.
        lists: how lists are read, where a row is a page.
    """

    inputs: tuple[str, ...]
    roles: RequestedRoles
    rules: ReadingRules
    clicks: ClicksRequest | None = None
    needs_session: bool = False
    form: str = "auto"
    events: EventsRequest | None = None
    raw: RawReader | None = None
    max_bad_rows: float = 1.0
    dialect: Dialect = PLAIN
    duplicate_docs: DuplicateDocs = "error"
    lists: ListRules = NO_LIST_RULES

    @property
    def where(self) -> str:
        """What is read, for messages."""
        return self.inputs[0] if len(self.inputs) == 1 else f"{self.inputs[0]} and {len(self.inputs) - 1} more"
