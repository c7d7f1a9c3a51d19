"""A report, from the results that it is about to the file that is written."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from posbias.core.errors import MissingExtraError, UsageError
from posbias.io.places.locations import Location
from posbias.io.progress import Progress
from posbias.io.reports.read import open_reported
from posbias.io.reports.write import check_target, write_report

Format = Literal["html", "svg", "png"]

_FORMATS: dict[str, Format] = {".html": "html", ".htm": "html", ".svg": "svg", ".png": "png"}
_LIBRARIES = ("altair", "vl_convert")


def format_of(target: Path) -> Format:
    """The form of a report, by the ending of its name.

    Raises:
        UsageError: the ending is none of a report.
    """
    form = _FORMATS.get(target.suffix.lower())
    if form is None:
        raise UsageError(
            f"--output {target}: a report is a page or a picture. Name a file that ends in .html, .svg or .png, e.g. "
            "report.html."
        )
    return form


def check_results(places: Sequence[Location], target: Path, *, force: bool) -> None:
    """See that a report can be made, before anything is read.

    Raises:
        MissingExtraError: the libraries that draw are not installed.
        OutputExistsError: the file is there, and is not to be replaced.
        OutputError: the file cannot be written, or is none of posbias.
        UsageError: a result is named twice.
    """
    missing = [name for name in _LIBRARIES if find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            "a report needs Altair and vl-convert, which are not installed. "
            "Run: python3 -m pip install 'posbias[report]'"
        )
    twice = [place for number, place in enumerate(places) if place in places[:number]]
    if twice:
        raise UsageError(f"{twice[0]}: is named twice. Name each result once.")
    check_target(target, force=force)


def make_report(
    places: Sequence[Location], target: Path, form: Format, chart: str, progress: Progress, *, force: bool
) -> int:
    """Write a report; return its size in bytes.

    Raises:
        LogFormatError: a result is damaged.
        UsageError: a result has nothing to show, or not the chart that is asked for.
        OutputError: the file cannot be written.
    """
    # Only here, once it is known that they are there: other commands do without the libraries that draw.
    from posbias.io.reports.page import figure_named, page_of, picture_of  # noqa: PLC0415
    from posbias.io.reports.sections import contents  # noqa: PLC0415

    with open_reported(places) as results:
        with progress.stage("reading results"):
            parts, names = contents(results), [result.name for result in results]
        with progress.stage("drawing"):
            if form == "html":
                content = page_of(parts, names).encode()
            else:
                content = picture_of(figure_named(parts, chart), ", ".join(names), form)
    write_report(target, content, force=force)
    return len(content)
