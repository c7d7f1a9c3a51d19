"""A report is one file: written whole or not at all, stamped, and never over a file that posbias did not write."""

import hashlib
import os
import struct
import zlib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from posbias.core.errors import MissingExtraError, OutputError, OutputExistsError, UsageError, shown
from posbias.io.places.locations import Location, open_plain, state_of
from posbias.io.progress import Progress
from posbias.io.reports.reported import open_reported
from posbias.io.results.manifest import listed_in
from posbias.io.results.outputs_on_disk import write_file

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


LARGEST = 1 << 28
"""Bytes of the largest file that can be a report; a larger one is not looked into."""


def check_target(target: Path, *, force: bool) -> None:
    """See that a report may be written there.

    Raises:
        OutputExistsError: something is there, and is not to be replaced.
        OutputError: what is there was not written by posbias, or was changed since; or there is no such directory.
        UsageError: it would lie in a result, which can then no longer be replaced.
    """
    folder = target.absolute().parent
    try:
        str(target).encode()
        is_folder = folder.is_dir()
    except (UnicodeEncodeError, ValueError, OSError) as error:
        raise OutputError(f"{str(target)!a}: cannot be the name of a file: {error}.") from error
    if not is_folder:
        raise OutputError(f"{target}: cannot be written: there is no directory {folder}. Make it first.")
    if listed_in(folder) is not None:
        raise UsageError(
            f"{target}: lies in a result of posbias, which holds nothing but its own files. Name a file elsewhere, "
            f"such as {folder.parent / f'{folder.name}{target.suffix}'}."
        )
    if not os.path.lexists(target):
        return
    if not force:
        raise OutputExistsError(f"{target}: already exists. Choose another name, or replace it with --force.")
    _check_ours(target)


def _check_ours(target: Path) -> None:
    """See that a file is a report, as it was written.

    Raises:
        OutputError: it is not.
    """
    try:
        size = state_of(target).bytes
        with open_plain(target) as file:
            ours = size <= LARGEST and is_stamped(file.read(size + 1))
    except OSError as error:
        raise OutputError(f"{target}: is not replaced: {error.strerror}.") from error
    if not ours:
        raise OutputError(
            f"{target}: is no report of posbias, or has been changed since. --force replaces only reports as they were "
            "written. Choose another name, or remove it yourself."
        )


def write_report(target: Path, content: bytes, *, force: bool) -> None:
    """Write a report.

    Raises:
        OutputExistsError: something is there, and is not to be replaced.
        OutputError: it cannot be written, or what is there was not written by posbias.
    """
    check_target(target, force=force)
    write_file(target, stamped(content), _check_ours, force=force)


_FORMATS: dict[str, Literal["html", "svg", "png"]] = {".html": "html", ".htm": "html", ".svg": "svg", ".png": "png"}


def check_libraries(what: str) -> None:
    """Check that the libraries that draw are there.

    Raises:
        MissingExtraError: they are not installed.
    """
    if find_spec("altair") is None or find_spec("vl_convert") is None:
        raise MissingExtraError.of(what, "altair", "vl-convert-python")


def make_report(places: Sequence[Location], target: Path, chart: str, progress: Progress, *, force: bool) -> str:
    """Write a page about results, or a chart of them; return what was written, in words.

    Raises:
        LogFormatError: a result is damaged.
        MissingExtraError: the libraries that draw are not installed.
        OutputExistsError: the file is there, and is not to be replaced.
        OutputError: the file cannot be written, or is none of posbias.
        UsageError: the file's name has no ending of a report, a result is named twice, or there is no such chart.
    """
    form = _FORMATS.get(target.suffix.lower())
    if form is None:
        raise UsageError(
            f"--output {target}: a report is a page or a picture. Name a file that ends in .html, .svg or .png, e.g. "
            "report.html."
        )
    check_libraries("a report")
    twice = [place for number, place in enumerate(places) if place in places[:number]]
    if twice:
        raise UsageError(f"{twice[0]}: is named twice. Name each result once.")
    check_target(target, force=force)
    # Only here, once it is known that they are there: other commands do without the libraries that draw.
    from posbias.io.reports.charts import picture  # noqa: PLC0415
    from posbias.io.reports.contents import figure_named, page_about, title_about  # noqa: PLC0415
    from posbias.io.reports.page import html_of  # noqa: PLC0415

    with open_reported(places) as results, progress.stage("drawing"):
        if form == "html":
            content = html_of(page_about(results)).encode()
        else:
            content = picture(figure_named(results, chart), title_about(results), form)
    write_report(target, content, force=force)
    about = ": it opens in any browser, offline" if form == "html" else ""
    return f"{shown(str(target))}, {len(content) / 1e3:,.0f} kB{about}"
