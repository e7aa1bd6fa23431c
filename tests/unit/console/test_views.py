from __future__ import annotations

from importlib.resources import files

import jinja2
import pytest

from chockstone.api.context import Context
from chockstone.console.gate import Gate
from chockstone.console.session import BrowserSessions
from chockstone.console.static_files import static_files
from chockstone.console.views import Views
from support.page_visitor import Markup, PageVisitor

HOSTILE = "<img src=x onerror=alert(1)>\"'{{7*7}}</script>"


@pytest.fixture
def views(context: Context) -> Views:
    sessions = BrowserSessions(b"s" * 32, context.users, cookie_path="/console", now=context.now)
    return Views(context, Gate(sessions, public_url=None), static_files())


def test_what_a_template_shows_is_text(views: Views) -> None:
    template = views._environment.from_string('<p title="{{ it }}">{{ it }}</p>')

    page = Markup(template.render(it=HOSTILE))

    assert [tag for tag, _ in page.elements] == ["p"]
    assert page.elements[0][1]["title"] == HOSTILE


def test_a_name_that_a_page_lacks_fails_instead_of_showing_nothing(views: Views) -> None:
    with pytest.raises(jinja2.UndefinedError):
        views._environment.from_string("{{ nothing }}").render()


def test_every_template_compiles_and_none_turns_escaping_off(views: Views) -> None:
    root = files("chockstone.console") / "templates"
    names = views._environment.list_templates()
    assert "base.html" in names

    for name in names:
        views._environment.get_template(name)
        text = (root / name).read_text()
        assert "|safe" not in text.replace(" ", "") and "autoescape" not in text, name


async def test_a_page_has_the_links_that_its_user_may_open(ann: PageVisitor, root: PageVisitor) -> None:
    mine, admins = [Markup((await each.open("/console")).text) for each in (ann, root)]

    assert mine.having("data-test", "nav-runs") and not mine.having("data-test", "nav-users")
    assert admins.having("data-test", "nav-users")
    assert "ann" in mine.text and "root" in admins.text
