"""The stamp in a report that proves that posbias wrote it, and that nobody has changed it since.

It holds a digest of all other bytes, so that a page with notes in it, or one that is only called alike, has none:

    <!-- posbias report 6f1c... -->       at the end of HTML and SVG
    tEXt posbias 6f1c...                  a chunk before the last one of PNG
"""

import hashlib
import struct
import zlib

_COMMENT = b"<!-- posbias report %s -->\n"
_KEYWORD = b"posbias\0"
_END_OF_PNG = 12  # bytes of its last chunk, which is empty
_DIGITS = 64
_COMMENT_LENGTH = len(_COMMENT % (b"0" * _DIGITS))
_CHUNK_LENGTH = 12 + len(_KEYWORD) + _DIGITS
_PNG = b"\x89PNG\r\n\x1a\n"


def stamped(content: bytes) -> bytes:
    """A report with its stamp."""
    digest = hashlib.sha256(content).hexdigest().encode()
    if not content.startswith(_PNG) or len(content) < len(_PNG) + _END_OF_PNG:
        return content + _COMMENT % digest
    body = b"tEXt" + _KEYWORD + digest
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    return content[:-_END_OF_PNG] + chunk + content[-_END_OF_PNG:]


def is_stamped(content: bytes) -> bool:
    """Whether it is a report, as it was written."""
    before_a_comment = content[:-_COMMENT_LENGTH]
    around_a_chunk = content[: -_END_OF_PNG - _CHUNK_LENGTH] + content[-_END_OF_PNG:]
    return any(stamped(without) == content for without in (before_a_comment, around_a_chunk))
