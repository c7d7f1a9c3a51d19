"""Characters that are not seen, or that change what is seen, as escapes: text from data is printed as text.

A log may hold any character, and a terminal acts on some: it moves the cursor, changes colours and titles, or turns
the order of letters around.
"""

import json
import re

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


def escaped(text: str, *, keep: str = "") -> str:
    r"""A text with each unseen character written as Python writes it, e.g. `\x1b`, `\u202e`.

    Args:
        text: what is shown.
        keep: unseen characters that stay as they are.
    """
    return _UNSEEN.sub(lambda found: found[0] if found[0] in keep else _as_escape(found[0]), text)


def escaped_lines(text: str) -> str:
    """A message of several lines, escaped: its line breaks stay.

    Lines after the first are indented, so that a line break in data does not begin what looks like another message.
    """
    return re.sub(r"\n(?=[^\s])", "\n  ", escaped(text, keep="\n"))


def escaped_json(text: str) -> str:
    r"""JSON that says the same without unseen characters, `\u007f`; those between its values stay."""
    return _UNSEEN.sub(lambda found: found[0] if found[0] == "\n" else json.dumps(found[0])[1:-1], text)


def _as_escape(character: str) -> str:
    if character in _SHORT:
        return _SHORT[character]
    code = ord(character)
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"  # noqa: PLR2004
