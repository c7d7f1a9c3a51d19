"""A stamp proves that posbias wrote a file, and that it is as it was written."""

import struct
import zlib
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posbias.io.results.outputs import FileKind, add_stamp, has_stamp

END = b"\0\0\0\0IEND\xaeB`\x82"
PNG = b"\x89PNG\r\n\x1a\n" + b"some chunks" + END


KINDS = st.sampled_from(get_args(FileKind))


@given(st.binary(), KINDS, KINDS)
def test_what_is_stamped_is_known_and_what_is_not_is_not(content: bytes, kind: FileKind, other: FileKind) -> None:
    assert has_stamp(add_stamp(content, kind), kind)
    assert not has_stamp(content, kind)
    assert kind == other or not has_stamp(add_stamp(content, kind), other)


@given(st.binary(min_size=1), KINDS, st.data())
def test_a_change_of_any_byte_is_found(content: bytes, kind: FileKind, data: st.DataObject) -> None:
    whole = add_stamp(content, kind)
    place = data.draw(st.integers(0, len(whole) - 1))

    assert not has_stamp(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :], kind)
    assert not has_stamp(whole[:place], kind)
    assert not has_stamp(whole + b"\n", kind)


@pytest.mark.parametrize("place", [3, 10, 25, 60, -1])
def test_the_stamp_of_a_picture_is_a_chunk_before_its_end(place: int) -> None:
    whole = add_stamp(PNG, "report")
    start = len(PNG) - len(END)
    (length,) = struct.unpack(">I", whole[start : start + 4])
    chunk, rest = whole[start + 4 : start + 8 + length], whole[start + 8 + length :]

    assert whole.endswith(END)
    assert chunk.startswith(b"tEXtposbias\0")
    assert struct.unpack(">I", rest[:4])[0] == zlib.crc32(chunk)
    assert has_stamp(whole, "report")
    assert not has_stamp(whole[:place] + bytes([whole[place] ^ 1]) + whole[place:][1:], "report")
