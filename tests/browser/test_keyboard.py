"""The console without a mouse."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from browser.conftest import Made, Visit
from support.console_data import ANN

PLACES = {"o": "overview", "r": "runs", "c": "compare", "p": "playground", "k": "checkpoints", "s": "storage"}


def test_g_and_a_letter_open_each_page(visit: Visit, made: Made) -> None:
    page = visit(ANN).open("/console")

    for letter, name in PLACES.items():
        page.keyboard.press("g")
        page.keyboard.press(letter)
        expect(page.get_by_test_id(f"page-{name}").first).to_be_visible()


def test_slash_focuses_the_search_and_rows_open_with_enter(visit: Visit, made: Made) -> None:
    page = visit(ANN).open("/console/runs")

    page.keyboard.press("/")
    expect(page.locator("[data-search]")).to_be_focused()
    page.keyboard.type("belay-sft")
    expect(page).to_have_url(re.compile("query=belay-sft"))  # the rows of the whole word are shown
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("Enter")

    expect(page.get_by_test_id("page-run").first).to_be_visible()


def test_the_chosen_row_stays_chosen_when_the_rows_are_replaced(visit: Visit, made: Made) -> None:
    page = visit(ANN).open("/console/runs")
    page.keyboard.press("j")
    chosen = page.locator("tr[data-current]").get_attribute("data-href")
    page.evaluate("document.querySelector('tr[data-current]').dataset.old = ''")

    page.evaluate("document.querySelector('form.toolbar').requestSubmit()")

    expect(page.locator("tr[data-old]")).to_have_count(0)
    expect(page.locator("tr[data-current]")).to_have_attribute("data-href", str(chosen))


def test_a_question_mark_shows_the_shortcuts_and_escape_closes_them(visit: Visit, made: Made) -> None:
    page = visit(ANN).open("/console")

    page.keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()
    page.keyboard.press("Escape")

    expect(page.locator("#help")).to_be_hidden()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_chosen_theme_stays_on_the_next_page(visit: Visit, made: Made, theme: str) -> None:
    page = visit(ANN, theme="dark" if theme == "light" else "light").open("/console")

    while page.evaluate("document.documentElement.dataset.theme") != theme:
        page.keyboard.press("t")
    page.goto("/console/runs")

    assert page.evaluate("document.documentElement.dataset.theme") == theme
