"""What the values of a text column tell of how they are to be read: words for a click, and forms of times."""

from collections.abc import Iterable, Sequence

import polars as pl

from posbias.core.log.text_values import TextValues
from posbias.io.log.findings import Finding

_WORDS = (
    ("yes", "no"),
    ("y", "n"),
    ("on", "off"),
    ("true", "false"),
    ("ja", "nein"),
    ("ja", "nee"),
    ("ja", "nej"),
    ("j", "n"),
    ("oui", "non"),
    ("o", "n"),
    ("si", "no"),
    ("sí", "no"),
    ("sì", "no"),
    ("s", "n"),
    ("sim", "não"),
    ("sim", "nao"),
    ("tak", "nie"),
    ("да", "нет"),
    ("vrai", "faux"),
    ("wahr", "falsch"),
    ("clicked", "not clicked"),
)
_READ_ALREADY = {"0", "1", "0.0", "1.0", "true", "t", "false", "f"}
_CLOCKS = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S%.f", " %I:%M %p", " %I:%M:%S %p")
_DAYS = (
    "%d.%m.%Y",
    *("%d/%m/%Y", "%m/%d/%Y"),
    *("%d-%m-%Y", "%m-%d-%Y"),
    *("%d.%m.%y", "%d/%m/%y", "%m/%d/%y"),
    *("%Y/%m/%d", "%Y.%m.%d"),
    *("%d %b %Y", "%b %d %Y", "%b %d, %Y", "%d %B %Y", "%B %d, %Y"),
)
_ZONED = ("%a, %d %b %Y %H:%M:%S %z", "%d/%b/%Y:%H:%M:%S %z", "%a %b %d %H:%M:%S %Y")
_FORMS = tuple(day + clock for day in _DAYS for clock in _CLOCKS) + _ZONED


def find_click_words(values: Iterable[str | None]) -> Finding | None:
    """The two words of a click column that is all yes and no in a common language, beside what is read already."""
    found = {value.strip().lower() for value in values if value is not None and value.strip()} - _READ_ALREADY
    if not found:
        return None
    for true, false in _WORDS:
        if found <= {true, false} and (found == {true, false} or _is_only_of(found, true, false)):
            return Finding(f"clicks are {true!r} and {false!r}", ("--true", true, "--false", false))
    return None


def _is_only_of(found: set[str], true: str, false: str) -> bool:
    """Whether the words that were found are in this pair of words, and mean the same in every other one."""
    as_true = {yes for yes, _ in _WORDS if yes in found}
    as_false = {no for _, no in _WORDS if no in found}
    return found <= {true, false} and not as_true & as_false


def find_timestamp_format(values: Iterable[str | None]) -> Finding | None:
    """The form in which all times are written, where it is none that is read already.

    Where a day and a month could be either, `certain` is False, and both forms are said; the first is the option.
    """
    texts = [value.strip() for value in values if value is not None and value.strip()]
    fitting = [form for form in _FORMS if texts and _fits(form, texts)]
    if not fitting:
        return None
    first = fitting[0]
    if len(fitting) == 1:
        return Finding(f"times such as {texts[0]!r} are written {first}", ("--timestamp-format", first))
    said = " or ".join(fitting)
    return Finding(
        f"times such as {texts[0]!r} may be written {said}: no day is above 12, so that day and month cannot be "
        "told apart",
        ("--timestamp-format", first),
        certain=False,
    )


def _fits(form: str, texts: Sequence[str]) -> bool:
    values = TextValues(timestamp_format=form)
    try:
        read = pl.DataFrame({"text": texts}).select(values.time(pl.col("text"))).to_series()
    except pl.exceptions.PolarsError:
        return False
    return not read.null_count() and bool(read.dt.year().is_between(1980, 2099).all())
