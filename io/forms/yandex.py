"""Yandex's logs of the Relevance Prediction Challenge (2011) and of the Personalized Web Search Challenge (2013).

Lines between tabs, as in http://imat-relpred.yandex.ru/en/datasets:
    SessionID TimePassed Q QueryID RegionID URLID ... URLID
    SessionID TimePassed C URLID
and in https://www.kaggle.com/c/yandex-personalized-web-search-challenge/data (Logs format):
    SessionID M Day UserID
    SessionID TimePassed Q SERPID QueryID TermID,... URLID,DomainID ... URLID,DomainID
    SessionID TimePassed C SERPID URLID
The clicks of test queries (T in place of Q) were kept back, so that these pages are not used.
"""

from collections.abc import Sequence

from posbias.io.forms.form import Line, Outcome, PageForm, click_line, page_line

_METADATA, _QUERY, _TEST, _CLICK = "M", "Q", "T", "C"
_FIELDS_OF_METADATA = 4
_FEWEST = 4
_FIELDS_OF_CLICKS = (4, 5)  # without and with SERPID
_FIRST_URL, _FIRST_PAIR = 5, 6


class Yandex(PageForm):
    """A page is a query action. A click names its page, or belongs to the last one of the session with its URL."""

    name = "yandex"
    title = "Yandex"
    formats = ("tsv", "csv")
    expected = "Yandex's logs are text between tabs; name the file .tsv (.gz, .zst)."
    click_actions = (_CLICK,)

    def read(self, text: str) -> Line:
        """Read an action."""
        fields = text.rstrip("\r\n\t ").split("\t")
        if len(fields) == _FIELDS_OF_METADATA and fields[1] == _METADATA:
            return Line(Outcome.OTHER_ACTION, action=_METADATA)
        if len(fields) < _FEWEST or not fields[0] or not fields[1].isdecimal():
            return Line(Outcome.NOT_READ)
        if fields[2] == _QUERY:
            return _page(fields)
        if fields[2] == _CLICK and len(fields) in _FIELDS_OF_CLICKS:
            return _clicked(fields)
        return Line(Outcome.OTHER_ACTION, action=_TEST) if fields[2] == _TEST else Line(Outcome.NOT_READ)

    def knows_line(self, text: str) -> bool:
        """A session, a time and an action, or the metadata of a session."""
        return self.read(text).outcome != int(Outcome.NOT_READ)


def _page(fields: Sequence[str]) -> Line:
    session, time = fields[:2]
    if len(fields) > _FIRST_PAIR and "," in fields[_FIRST_PAIR]:
        page, query = f"{session} {fields[3]}", fields[4]
        docs = [pair.partition(",")[0] for pair in fields[_FIRST_PAIR:]]
    else:
        page, query, docs = f"{session} {time} {fields[3]}", fields[3], list(fields[_FIRST_URL:])
    return page_line(
        Line(
            key=session, page=page, visit=session, query=query or None, docs=docs if all(docs) else None, timestamp=time
        )
    )


def _clicked(fields: Sequence[str]) -> Line:
    session, time = fields[:2]
    page = f"{session} {fields[3]}" if len(fields) == max(_FIELDS_OF_CLICKS) else None
    return click_line(Line(key=session, page=page, visit=session, doc=fields[-1] or None, timestamp=time))
