"""What a form of raw files is."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from posbias.core.registry import Plugin
from posbias.io.log.raw import RawReader, RawRules


class Form(Plugin):
    """The raw files of a source, as it documents them.

    Attributes:
        title: for people.
        has_actions: whether its events have actions, so that it is said which of them are clicks.
        may_lack_queries: whether its pages may be those of a recommender (--no-query).
    """

    title: ClassVar[str]
    has_actions: ClassVar[bool] = False
    may_lack_queries: ClassVar[bool] = False

    @abstractmethod
    def reader(self, rules: RawRules) -> RawReader:
        """What makes a log of such files."""

    def knows_document(self, document: dict[str, Any]) -> bool:
        """Whether a JSON object is one of its lines."""
        del document
        return False

    def lacks_query(self, document: dict[str, Any]) -> bool | None:
        """Whether a page has no query; None for what is no page."""
        del document
        return None

    def knows_fields(self, fields: Sequence[str]) -> bool:
        """Whether the fields of a line between tabs are those of one of its lines."""
        del fields
        return False
