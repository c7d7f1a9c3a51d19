"""A stamp proves that posbias wrote a file, and that it is as it was written."""

import struct
import zlib
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posbias.io.results.outputs import FileKind, is_stamped, stamped

END = b"\0\0\0\0IEND\xaeB`\x82"
PNG = b"\x89PNG\r\n\x1a\n" + b"some chunks" + END


KINDS = st.sampled_from(get_args(FileKind))


@given(st.binary(), KINDS, KINDS)
def test_what_is_stamped_is_known_and_what_is_not_is_not(content: bytes, kind: FileKind, other: FileKind) -> None:
    assert is_stamped(stamped(content, kind), kind)
    assert not is_stamped(content, kind)
    assert kind == other or not is_stamped(stamped(content, kind), other)


@given(st.binary(min_size=1), KINDS, st.data())
def test_a_change_of_any_byte_is_found(content: bytes, kind: FileKind, data: st.DataObject) -> None:
    whole = stamped(content, kind)
    place = data.draw(st.integers(0, len(whole) - 1))

    assert not is_stamped(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :], kind)
    assert not is_stamped(whole[:place], kind)
    assert not is_stamped(whole + b"\n", kind)


@pytest.mark.parametrize("place", [3, 10, 25, 60, -1])
def test_the_stamp_of_a_picture_is_a_chunk_before_its_end(place: int) -> None:
    whole = stamped(PNG, "report")
    start = len(PNG) - len(END)
    (length,) = struct.unpack(">I", whole[start : start + 4])
    chunk, rest = whole[start + 4 : start + 8 + length], whole[start + 8 + length :]

    assert whole.endswith(END)
    assert chunk.startswith(b"tEXtposbias\0")
    assert struct.unpack(">I", rest[:4])[0] == zlib.crc32(chunk)
    assert is_stamped(whole, "report")
    assert not is_stamped(whole[:place] + bytes([whole[place] ^ 1]) + whole[place:][1:], "report")
