"""What the user said about a log."""

from dataclasses import dataclass

from posbias.core.choices import DuplicateDocs
from posbias.core.log.impressions import ReadingRules
from posbias.core.schema import Roles
from posbias.io.log.click_table import ClicksRequest
from posbias.io.log.dialect import PLAIN, Dialect
from posbias.io.log.event_table import EventsRequest
from posbias.io.log.raw import RawReader
from posbias.io.log.written_values import NO_LIST_RULES, ListRules


@dataclass(frozen=True)
class LogRequest:
    """What the user said about a log."""

    inputs: tuple[str, ...]  # files, globs and directories
    roles: Roles  # the columns that were named
    rules: ReadingRules  # how values are read
    clicks: ClicksRequest | None = None  # a second table that holds the clicks, where impressions and clicks are apart
    needs_session: bool = False  # whether the work cannot be done without the session column
    # what a row is: an impression (flat), a page (nested), or one of these, by the document column (auto)
    form: str = "auto"
    events: EventsRequest | None = None  # which rows are impressions and which are clicks, where one table holds both
    raw: RawReader | None = None  # what makes the log, where the files are the raw ones of a known source
    max_bad_rows: float = 1.0  # share of the rows that may be left out because they break the contract
    dialect: Dialect = PLAIN  # how files of text are written, those of the clicks as well
    duplicate_docs: DuplicateDocs = "error"  # what becomes of a document that stands twice on a page
    lists: ListRules = NO_LIST_RULES  # how lists are read, where a row is a page

    @property
    def where(self) -> str:
        """What is read, for messages."""
        return self.inputs[0] if len(self.inputs) == 1 else f"{self.inputs[0]} and {len(self.inputs) - 1} more"
