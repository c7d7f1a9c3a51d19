"""Yandex's logs of the Relevance Prediction Challenge (2011) and of the Personalized Web Search Challenge (2013)."""

import re

from posbias.io.forms.form import PageForm

_LINE = re.compile(r"[^\t]*\tM\t[^\t]*\t[^\t]+|[^\t]+\t\d+\t(?:[QT]\t.+|C\t[^\t]*(?:\t[^\t]+)?)")


class Yandex(PageForm):
    """Actions of sessions, between tabs."""

    name = "yandex"
    title = "Yandex"
    formats = ("tsv", "csv")
    expected = "Yandex's logs are text between tabs; name the file .tsv (.gz, .zst)."
    click_actions = ("C",)

    def knows_line(self, text: str) -> bool:
        """A session, a time and an action, or the metadata of a session."""
        return _LINE.fullmatch(text.rstrip("\r\n\t ")) is not None
