"""A stamp proves that posbias wrote a file, and that it is as it was written."""

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posbias.io.reports.stamped import is_stamped, stamped

END = b"\0\0\0\0IEND\xaeB`\x82"
PNG = b"\x89PNG\r\n\x1a\n" + b"some chunks" + END


@given(st.binary())
def test_what_is_stamped_is_known_and_what_is_not_is_not(content: bytes) -> None:
    assert is_stamped(stamped(content))
    assert not is_stamped(content)


@given(st.binary(min_size=1), st.data())
def test_a_change_of_any_byte_is_found(content: bytes, data: st.DataObject) -> None:
    whole = stamped(content)
    place = data.draw(st.integers(0, len(whole) - 1))

    assert not is_stamped(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    assert not is_stamped(whole[:place])
    assert not is_stamped(whole + b"\n")


@pytest.mark.parametrize("place", [3, 10, 25, 60, -1])
def test_the_stamp_of_a_picture_is_a_chunk_before_its_end(place: int) -> None:
    whole = stamped(PNG)
    start = len(PNG) - len(END)
    (length,) = struct.unpack(">I", whole[start : start + 4])
    chunk, rest = whole[start + 4 : start + 8 + length], whole[start + 8 + length :]

    assert whole.endswith(END)
    assert chunk.startswith(b"tEXtposbias\0")
    assert struct.unpack(">I", rest[:4])[0] == zlib.crc32(chunk)
    assert is_stamped(whole)
    assert not is_stamped(whole[:place] + bytes([whole[place] ^ 1]) + whole[place:][1:])
