"""A report in a real browser: it shows everything, asks for nothing, harms nobody, and fits phones and paper."""

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from browser import Browser

from posbias import open_result

pytestmark = pytest.mark.slow

Made = Callable[..., Path]

PHONE, LAPTOP = 390, 1366
REPORTS = [
    *((name,) for name in ("plain", "harmful", "ubm", "days", "weighted", "rates")),
    *((name,) for name in ("predicted", "evaluated", "compared", "explored")),
    ("plain", "other", "ubm"),
]
WIDTHS = "return [...document.querySelectorAll('%s')].map(one => one.getBoundingClientRect()).map(box => box.%s)"


@pytest.mark.parametrize("names", REPORTS, ids="-".join)
def test_a_page_fits_phones_and_laptops_without_a_word_on_the_console_or_a_request(
    browser: Browser, report: Made, names: tuple[str, ...]
) -> None:
    page = report(*names)
    browser.requests()
    for width in (LAPTOP, PHONE):
        browser.look(width)
        browser.open(page)
        shown = browser.run(WIDTHS % ("figure svg", "width"))

        assert browser.run("return document.documentElement.scrollWidth") <= width
        assert max(browser.run(WIDTHS % ("nav a, figure svg, .banner, .figures li, pre", "right"))) <= width
        assert sum(200 < one < width for one in shown) == browser.run(
            "return document.querySelectorAll('figure').length"
        )
    assert browser.messages() == []
    assert set(browser.requests()) == {page.as_uri()}


@pytest.mark.parametrize("name", ["harmful", "predicted", "evaluated"])
def test_names_from_a_log_are_text(browser: Browser, report: Made, name: str) -> None:
    browser.look(LAPTOP)
    browser.open(report(name))
    shown = browser.run("return document.body.textContent")

    days = ", 5 to 7 January 2026" if name == "harmful" else ""
    assert browser.run("return document.title").startswith(f"harmful{days}: ")
    assert browser.run("return document.querySelectorAll('img, iframe, script, main p b, summary b').length") == 0
    assert ("</script><script>document.title='harmed'" in shown) == (name != "evaluated")
    assert ("a.b['c']<b>" in shown) == (name == "harmful")
    assert "\x1b" not in shown


def test_names_from_a_log_are_text_in_a_notebook(browser: Browser, result: Made, tmp_path: Path) -> None:
    fit = cast("Any", open_result(result("harmful")))
    page = tmp_path / "notebook.html"
    for content, drawing in ((fit.plot().to_html(inline=True), "svg.marks"), (fit._repr_html_(), "svg")):
        page.write_text(f'<meta charset="utf-8">{content}', encoding="utf-8")
        browser.open(page)
        for _ in range(200):  # Vega draws after the page is loaded
            if browser.run(f"return document.querySelectorAll('{drawing}').length"):
                break
            time.sleep(0.05)

        assert browser.run(f"return document.querySelectorAll('{drawing}').length") == 1
        assert browser.run("return document.querySelectorAll('img, iframe, td b').length") == 0
        assert browser.run("return document.title") == ""
    assert browser.messages() == []


def test_it_is_dark_where_the_user_prefers_that_and_light_on_paper(browser: Browser, report: Made) -> None:
    look = (
        "const style = selector => getComputedStyle(document.querySelector(selector));"
        "return [style('body').backgroundColor, style('.mark-line path').stroke, style('nav').display]"
    )
    colours: dict[str, list[str]] = {}
    browser.open(report("plain"))
    for name, dark, media in (("light", False, ""), ("dark", True, ""), ("paper", True, "print")):
        browser.look(LAPTOP, dark=dark, media=media)
        colours[name] = browser.run(look)

    assert colours["light"] == ["rgb(255, 255, 255)", "rgb(213, 94, 0)", "block"]
    assert colours["dark"] == ["rgb(21, 24, 28)", "rgb(230, 159, 0)", "block"]
    assert colours["paper"] == ["rgb(255, 255, 255)", "rgb(213, 94, 0)", "none"]


def test_paper_has_the_numbers_and_not_the_manifest(browser: Browser, report: Made) -> None:
    browser.open(report("plain"))
    heights = (
        "return [...document.querySelectorAll('section > details')].map(one => one.getBoundingClientRect().height)"
    )
    browser.look(LAPTOP)
    on_screen = browser.run(heights)
    browser.look(LAPTOP, media="print")
    on_paper = browser.run(heights)

    assert max(on_screen) < 60
    assert on_paper[0] > 200
    assert on_paper[-1] == 0


def test_its_policy_stops_scripts_and_connections(browser: Browser, report: Made) -> None:
    browser.look(LAPTOP)
    browser.open(report("plain"))
    browser.run(
        "const script = document.createElement('script'); script.textContent = \"document.title = 'harmed'\";"
        "document.body.append(script);"
    )
    browser.run("setTimeout(\"document.title = 'harmed'\")")  # a text that is evaluated later
    browser.run(
        "window.fetched = 'waiting'; fetch('http://127.0.0.1:9/').catch(error => { window.fetched = error.name })"
    )

    assert "harmed" not in browser.run("return document.title")
    complaints = " ".join(browser.messages())
    assert "inline script" in complaints
    assert "'unsafe-eval'" in complaints
    assert "connect-src" in complaints or "default-src" in complaints


def test_charts_are_described_and_headings_in_order(browser: Browser, report: Made) -> None:
    browser.look(LAPTOP)
    browser.open(report("plain", "other", "ubm"))

    labels = browser.run("return [...document.querySelectorAll('[data-chart]')].map(one => one.ariaLabel)")
    assert all(len(label) > 30 for label in labels)
    levels = browser.run("return [...document.querySelectorAll('h1, h2, h3')].map(one => Number(one.tagName[1]))")
    assert levels[0] == 1
    assert all(below <= above + 1 for above, below in pairwise(levels))


def test_changed_queries_stand_side_by_side(browser: Browser, report: Made) -> None:
    for width in (LAPTOP, PHONE):
        browser.look(width)
        browser.open(report("predicted"))
        lists = browser.run(WIDTHS % ("details[open] .orders > div", "left"))
        tops = browser.run(WIDTHS % ("details[open] .orders > div", "top"))

        assert len(lists) == 2
        assert lists[0] < lists[1]
        assert tops[0] == tops[1]
    assert 1 <= browser.run("return document.querySelectorAll('.orders').length") <= 20
