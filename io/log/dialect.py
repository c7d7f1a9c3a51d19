"""How a text file is written where it differs from CSV, TSV or NDJSON in UTF-8, as the user said it."""

import codecs
from dataclasses import dataclass

from posbias.core.errors import UsageError

_NAMED = {"tab": "\t", "\\t": "\t", "space": " ", "comma": ",", "semicolon": ";", "pipe": "|"}
_LAST_ASCII = "\x7f"
_UTF_8 = ("utf-8", "utf-8-sig", "ascii")


@dataclass(frozen=True)
class Dialect:
    """How a text file is written."""

    separator: str | None = None  # what stands between fields; None for what the format has
    encoding: str | None = None  # how letters are bytes, as Python names it; None for UTF-8
    columns: tuple[str, ...] = ()  # the names of the columns where the first line does not say them; none where it does

    @property
    def options(self) -> tuple[str, ...]:
        """The options that said it."""
        said = {"--separator": self.separator, "--encoding": self.encoding, "--no-header": self.columns}
        return tuple(flag for flag, value in said.items() if value)


PLAIN = Dialect()


def read_separator(text: str) -> str:
    """Read `;`, or a name such as `tab`.

    Raises:
        UsageError: it cannot stand between fields.
    """
    mark = _NAMED.get(text.lower(), text)
    if len(mark) != 1 or mark > _LAST_ASCII or mark.isalnum() or mark in "\"'\r\n\0\x01":
        raise UsageError(
            f"--separator {text}: give one character such as ';' or '|', or one of the names {', '.join(_NAMED)}."
        )
    return mark


def read_encoding(text: str) -> str:
    """The encoding of a name.

    Raises:
        UsageError: there is none of this name, or it is one of no text.
    """
    try:
        "".encode(text)
        name = codecs.lookup(text).name
    except (LookupError, ValueError):
        raise UsageError(
            f"--encoding {text}: is not known. Give a name such as utf-8, latin-1, cp1252, utf-16 or shift_jis."
        ) from None
    return "utf-8-sig" if name in _UTF_8 else name


def read_columns(text: str | None, *, header: bool) -> tuple[str, ...]:
    """Read `session,query,doc`, the names of columns that a file does not name itself.

    Raises:
        UsageError: names are missing, or stand twice.
    """
    if header:
        return ()
    if text is None:
        raise UsageError(
            "--no-header: name the columns in their order, e.g. --columns session,query,doc,position,click."
        )
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise UsageError(
            f"--columns {text}: give each column a name of its own, e.g. session,query,doc,position,click."
        )
    return names
