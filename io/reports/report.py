"""A report: a page about results, or a chart of them."""

from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_AS, getpagesize, getrlimit
from typing import Literal

from posbias.core.errors import EngineError, MissingExtraError, UsageError, shown
from posbias.io.places.locations import Location
from posbias.io.progress import Progress
from posbias.io.reports.reported import open_reported
from posbias.io.results.outputs_on_disk import check_file, write_file

_FORMATS: dict[str, Literal["html", "svg", "png"]] = {".html": "html", ".htm": "html", ".svg": "svg", ".png": "png"}


_ADDRESSES = 65 << 30  # bytes that V8, with which vl-convert draws, reserves, and ends the process if it cannot


def check_drawing(what: str) -> None:
    """Check that vl-convert, which draws, is there and can start.

    Raises:
        EngineError: the process may not reserve as many addresses.
        MissingExtraError: it is not installed.
    """
    if find_spec("vl_convert") is None:
        raise MissingExtraError.of(what, "vl-convert-python")
    most, used = getrlimit(RLIMIT_AS)[0], 0
    with suppress(OSError):  # where the system does not say what is in use
        used = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * getpagesize()
    if most != RLIM_INFINITY and most - used < _ADDRESSES:
        raise EngineError(
            f"charts cannot be drawn: V8, which draws them, reserves {_ADDRESSES >> 30} GiB of addresses (not memory), "
            f"and this process has {max(most - used, 0) >> 30}. Lift its limit (ulimit -v unlimited); `posbias show` "
            "prints a result without charts."
        )


def make_report(places: Sequence[Location], target: Path, chart: str, progress: Progress, *, force: bool) -> str:
    """Write a page about results, or a chart of them; return what was written, in words.

    Raises:
        EngineError: the library that draws cannot start.
        LogFormatError: a result is damaged.
        MissingExtraError: the library that draws is not installed.
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
    check_drawing("a report")
    twice = [place for number, place in enumerate(places) if place in places[:number]]
    if twice:
        raise UsageError(f"{twice[0]}: is named twice. Name each result once.")
    check_file(target, "report", places, force=force)
    # Only here, once it is known to be there: other commands do without the library that draws.
    from posbias.io.reports.charts import picture  # noqa: PLC0415
    from posbias.io.reports.contents import figure_named, page_about, title_about  # noqa: PLC0415
    from posbias.io.reports.page import html_of  # noqa: PLC0415

    with open_reported(places) as results, progress.stage("drawing"):
        if form == "html":
            content = html_of(page_about(results)).encode()
        else:
            content = picture(figure_named(results, chart), title_about(results), form)
    write_file(target, content, "report", places, force=force)
    about = ": it opens in any browser, offline" if form == "html" else ""
    return f"{shown(str(target))}, {len(content) / 1e3:,.0f} kB{about}"
