"""Errors that a user can cause, in one tree, and functions that make text safe to print.

PosbiasError
├── UsageError              an option, or a combination of options, that cannot work
├── LogFormatError          a file that cannot be read as the log it should be
├── SchemaError             columns that are missing, ambiguous or of the wrong type; rows that break the contract
│   └── RoleError           a role that no column of a log plays, or that several could
├── StatisticsError         statistics that cannot be used, or not be merged
├── IdentifiabilityError    a log from which the requested estimate cannot be made
├── ObjectStoreError        an object store that cannot be reached, or that refuses a request
├── MissingExtraError       a library that is installed only with an extra of posbias
├── OutputExistsError       a target that is already there
├── OutputError             a target that cannot be written
└── EngineError             an engine that cannot start, or that broke down

Text of a log may contain any character, and terminals interpret some: they move the cursor, change colours and titles,
or reverse the order of letters. Text may also contain passwords and keys.
"""

import html
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from enum import IntEnum
from typing import Any, Self, cast


class PosbiasError(Exception):
    """Root of the tree: the command line prints its message and exits with code 2.

    Attributes:
        lines: of the message. A line break within a line belongs to a value, and is printed as an escape.
    """

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines

    def reworded(self, change: Callable[[str], str]) -> Self:
        """Return a copy of the error with each line changed."""
        error = copy(self)
        error.lines = tuple(map(change, self.lines))
        error.args = ("\n".join(error.lines),)
        return error


class UsageError(PosbiasError):
    """An option, or a combination of options, that cannot work."""


class LogFormatError(PosbiasError):
    """A file that cannot be read as the log it should be."""


class SchemaError(PosbiasError):
    """Columns that are missing, ambiguous or of the wrong type, or rows that break the contract."""


class RoleError(SchemaError):
    """A role that no column of a log plays, or that several could.

    Attributes:
        options: options to use instead, with a guessed column, or with COLUMN if there is no guess.
        several: columns that could each play a role, by the option that names it.
    """

    def __init__(
        self, *lines: str, options: tuple[str, ...] = (), several: dict[str, tuple[str, ...]] | None = None
    ) -> None:
        super().__init__(*lines)
        self.options = options
        self.several = several or {}


class StatisticsError(PosbiasError):
    """Statistics that cannot be used, or that cannot be merged."""


class IdentifiabilityError(PosbiasError):
    """A log from which the requested estimate cannot be made."""


class ObjectStoreError(PosbiasError):
    """An object store that cannot be reached, or that refuses a request."""


class MissingExtraError(PosbiasError):
    """A library that is installed only with an extra of posbias."""

    @classmethod
    def of(cls, feature: str, *packages: str) -> Self:
        """Create the error for a feature and the packages that it needs, which are named as posbias is on no index."""
        is_missing = "which is not installed" if len(packages) == 1 else "which are not all installed"
        install = f"python3 -m pip install {' '.join(packages)}"
        return cls(f"{feature} needs {' and '.join(packages)}, {is_missing}. Run: {install}")


class OutputExistsError(PosbiasError):
    """A target that is already there."""


class OutputError(PosbiasError):
    """A target that cannot be written: no permission, no space, no such place."""


class EngineError(PosbiasError):
    """An engine that cannot start, or that broke down while it worked."""


_UNSEEN = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # control characters, ESC and its one-character forms among them
    "\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb"
    "\u2028-\u202e"  # separators of lines and paragraphs, and what turns the order around
    "\ud800-\udfff"  # half characters, of names that are not UTF-8
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    "]"
)
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def escape_unseen(text: str, *, keep: str = "") -> str:
    r"""Replace invisible characters by Python's escapes, e.g. `\x1b`, `\u202e`.

    Args:
        text: the text.
        keep: invisible characters that stay.
    """
    return _UNSEEN.sub(lambda match: match[0] if match[0] in keep else _as_escape(match[0]), text)


def escape_unseen_in_json(text: str) -> str:
    r"""Replace invisible characters in JSON by JSON's escapes, e.g. `\u007f`; line breaks stay."""
    return _UNSEEN.sub(lambda match: match[0] if match[0] == "\n" else json.dumps(match[0])[1:-1], text)


def _as_escape(character: str) -> str:
    if character in _SHORT:
        return _SHORT[character]
    code = ord(character)
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"  # noqa: PLR2004


MASK = "***"

_LONGEST = 4096
_STORES = ("s3", "s3a", "gs")  # whose buckets have no @ in their names, as containers of abfs:// do
_USERINFO = re.compile(rf"(?<=:)(/{{1,3}})([^\s/@:?#]*)(:(?:(?!://)\S){{0,{_LONGEST}}})?@")
_SCHEME = re.compile(r"[a-z][a-z0-9+.\-]*\Z", re.IGNORECASE)
_LONGEST_SCHEME = 20
_PORT = re.compile(r":\d{1,5}[/?#]")
_SECRET = r"(?:signature|credential|secret|password|passwd|token|api[-_]?key|access[-_]?key|account[-_]?key)"  # noqa: S105
_PARAMETER = re.compile(
    rf"([?#&;](?:[\w.\-]{{0,40}}{_SECRET}[\w.\-]{{0,40}}|sig|pwd|key|auth)=)[^\s&;'\"<>]+", re.IGNORECASE
)
_SETTING = re.compile(
    r"(\b\w{0,40}(?:secret[-_]?access[-_]?key|session[-_]?token|account[-_]?key|shared[-_]?access[-_]?signature"
    r"|password)['\"]?\s{0,3}=\s{0,3}['\"]?)[^\s&;,'\"<>]+",
    re.IGNORECASE,
)
_HEADER = re.compile(
    r"(\bauthorization['\"]?\s{0,3}[:=]\s{0,3}['\"]?(?:basic|bearer)\s{1,3})[^\s'\"<>]+", re.IGNORECASE
)
_TOKEN_OF_AWS = re.compile(r"(<Token[^<>]{0,20}>)[^<>]+")


def mask_secrets(text: str) -> str:
    """Replace passwords and keys in a text by `***`.

    These are user names and passwords before the @ of a URL, parameters that sign a URL (`X-Amz-Signature`, `sig`,
    `token`, ...), settings such as `aws_secret_access_key=`, authorization headers, and AWS session tokens.
    """
    if "@" in text:
        text = _USERINFO.sub(lambda match: match[0] if _of_place(match) else f"{match[1]}{MASK}@", text)
    for pattern in (_PARAMETER, _SETTING, _HEADER, _TOKEN_OF_AWS):
        text = pattern.sub(rf"\1{MASK}", text)
    return text


def holds_key(url: str) -> bool:
    """Return whether a parameter in the query or fragment of a URL is a password or a key."""
    return _PARAMETER.search(url) is not None


def mask_secrets_in_values(content: object) -> Any:  # noqa: ANN401 - what was given
    """Mask secrets in all strings of nested JSON values, but not in the keys of objects."""
    return _with_texts(content, mask_secrets)


def values_without_markup(content: object) -> Any:  # noqa: ANN401 - what was given
    r"""Escape `<` where it would start a tag or comment (`\x3cb>`) in all strings of JSON values, not in keys."""
    return _with_texts(content, lambda text: _TAG.sub(lambda match: _as_escape(match[0]), text))


_TAG = re.compile("<(?=[a-z/!?])", re.IGNORECASE)


def _with_texts(content: object, change: Callable[[str], str]) -> Any:  # noqa: ANN401 - what was given
    if isinstance(content, str):
        return change(content)
    if isinstance(content, Mapping):
        return {key: _with_texts(value, change) for key, value in cast("Mapping[Any, object]", content).items()}
    if isinstance(content, list | tuple):
        return [_with_texts(value, change) for value in cast("Sequence[object]", content)]
    return content


def without_userinfo(url: str) -> str:
    """Drop the user name and password before the @ of an object store's URL, which do not identify the object."""
    match = _USERINFO.match(url, url.find(":") + 1)
    if match is None or _of_place(match):
        return url
    return url[: match.end(1)] + url[match.end(1) :].partition("@")[2]


def _of_place(match: re.Match[str]) -> bool:
    """Return whether a match of `_USERINFO` is no user and password but a port, an Azure container, or no URL."""
    before = match.string[max(match.start() - 1 - _LONGEST_SCHEME, 0) : match.start() - 1]
    scheme = _SCHEME.search(before)
    kind, after = scheme[0].lower() if scheme else "", match[3]
    if kind.endswith(_STORES):
        return False
    if after is None:
        return match[1] == "/" or not match[2] or kind.endswith(("abfs", "abfss", "wasb", "wasbs"))
    return _PORT.match(after) is not None


def printable(text: str) -> str:
    """Make a text safe to print on one line: mask secrets, and replace invisible characters by escapes."""
    return escape_unseen(mask_secrets(text))


def html_text(text: str, *, keep: str = "") -> str:
    """Escape a text for HTML, also within quotes; mask secrets, and replace invisible characters by escapes.

    Args:
        text: the text.
        keep: invisible characters that stay.
    """
    return html.escape(escape_unseen(mask_secrets(text), keep=keep))


def printable_lines(lines: Iterable[str]) -> str:
    """Join the lines of a message, each made `printable`, and indent all but the first."""
    first, *others = map(printable, lines)
    return "\n".join([first, *(line if line.startswith(" ") else f"  {line}" for line in others)])


def plural(number: float, noun: str) -> str:
    """Format a count with its noun in the singular or plural, e.g. `1,204 clicks`, `1 query`; pass the plural."""
    count = f"{number:,.0f}"
    if count != "1":
        return f"{count} {noun}"
    return f"1 {noun.removesuffix('ies')}y" if noun.endswith("ies") else f"1 {noun.removesuffix('s')}"


def population(whom: str = "queries like these") -> str:
    """Return the sentence on the population for which intervals and standard errors hold."""
    return f"95 % intervals and standard errors hold for {whom}, of which this log is a sample."


class Coded(IntEnum):
    """Code of the outcome of a row or record, with its words in manifests and messages."""

    words: str

    def __new__(cls, number: int, words: str) -> Self:
        """Create a member with its number and words."""
        member = int.__new__(cls, number)
        member._value_ = number
        member.words = words
        return member
