"""A report in a real browser: it draws everything, asks for nothing, harms nobody, and fits phones and paper."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from browser import Browser

pytestmark = pytest.mark.slow

Report = Callable[..., Path]

PHONE, LAPTOP = 390, 1366
REPORTS = [("plain",), ("harmful",), ("ubm",), ("days",), ("weighted",), ("plain", "other", "ubm")]


@pytest.mark.parametrize("names", REPORTS, ids="-".join)
def test_every_chart_is_drawn_without_a_word_on_the_console_or_a_request(
    browser: Browser, report: Report, names: tuple[str, ...]
) -> None:
    page = report(*names)
    browser.requests()
    browser.look(LAPTOP)
    browser.open(page)
    drawn = browser.run("return [...document.querySelectorAll('[data-chart]')].map(place => place.dataset.drawn)")
    marks = browser.run("return [...document.querySelectorAll('[data-chart] svg')].map(svg => svg.innerHTML.length)")

    assert drawn
    assert set(drawn) == {"yes"}
    assert len(marks) == len(drawn)
    assert min(marks) > 1000
    assert browser.messages() == []
    assert browser.requests() == [page.as_uri()]


def test_names_from_a_log_are_text(browser: Browser, report: Report) -> None:
    browser.look(LAPTOP)
    browser.open(report("harmful"))
    shown = browser.run("return document.body.textContent")

    assert browser.run("return document.title") == "Position bias: harmful"
    assert browser.run("return document.querySelectorAll('img, iframe, main b').length") == 0
    assert browser.run("return [...document.scripts].filter(one => one.type !== 'application/json').length") == 2
    assert "</script><script>document.title='harmed'" in shown
    assert "a.b['c']<b>" in shown
    assert r"\u202e\x1b[31m" in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize("names", [("harmful",), ("plain", "other", "ubm")], ids="-".join)
def test_a_phone_shows_it_without_scrolling_sideways(browser: Browser, report: Report, names: tuple[str, ...]) -> None:
    browser.look(PHONE)
    browser.open(report(*names))

    assert browser.run("return document.documentElement.scrollWidth") == PHONE
    widths = browser.run("return [...document.querySelectorAll('svg')].map(svg => svg.getBoundingClientRect().right)")
    assert max(widths) <= PHONE


def test_it_is_dark_where_the_user_prefers_that_and_light_on_paper(browser: Browser, report: Report) -> None:
    colours = "const style = selector => getComputedStyle(document.querySelector(selector));"
    look = f"{colours} return [style('body').backgroundColor, style('.mark-line path').stroke, style('nav').display]"
    found: dict[str, list[str]] = {}
    browser.look(LAPTOP)
    browser.open(report("plain"))
    for name, dark, media in (("light", False, ""), ("dark", True, ""), ("paper", True, "print")):
        browser.look(LAPTOP, dark=dark, media=media)
        found[name] = browser.run(look)

    assert found["light"] == ["rgb(255, 255, 255)", "rgb(213, 94, 0)", "block"]
    assert found["dark"] == ["rgb(21, 24, 28)", "rgb(230, 159, 0)", "block"]
    assert found["paper"] == ["rgb(255, 255, 255)", "rgb(213, 94, 0)", "none"]


def test_its_policy_stops_scripts_and_connections(browser: Browser, report: Report) -> None:
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

    assert browser.run("return document.title") == "Position bias: plain"
    said = " ".join(browser.messages())
    assert "inline script" in said
    assert "'unsafe-eval'" in said
    assert "connect-src" in said or "default-src" in said


def test_tables_say_the_same_without_the_charts(browser: Browser, report: Report) -> None:
    browser.look(LAPTOP)
    browser.open(report("plain"))
    figures = "[...document.querySelectorAll('figure')]"

    assert browser.run(f"return {figures}.every(one => one.querySelectorAll('details table tbody tr').length > 0)")
    labels = browser.run("return [...document.querySelectorAll('[data-chart]')].map(one => one.ariaLabel)")
    assert all(len(label) > 30 for label in labels)
    levels = browser.run("return [...document.querySelectorAll('h1, h2, h3')].map(one => Number(one.tagName[1]))")
    assert levels[0] == 1
    assert all(below <= above + 1 for above, below in pairwise(levels))
