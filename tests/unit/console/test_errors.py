from __future__ import annotations

import pytest

from chockstone.catalog import RowMissing
from chockstone.engine.config import Busy
from chockstone.wire.failures import BadRequest
from support.page_visitor import Markup, PageVisitor


def fail_with(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("chockstone.console.pages.overview.look", fail)


@pytest.mark.parametrize(
    ("error", "status"),
    [(BadRequest("no <b>such</b> thing"), 400), (RowMissing("no <b>such</b> thing"), 404), (Busy("<b>such</b>"), 429)],
)
async def test_a_person_gets_a_page_and_a_script_gets_the_reason(
    ann: PageVisitor, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    fail_with(monkeypatch, error)

    page = await ann.open("/console")
    part = await ann.open("/console", **{"HX-Request": "true"})

    assert (page.status_code, part.status_code) == (status, status)
    assert "<b>" not in page.text and str(error) in Markup(page.text).text
    assert part.json() == {"detail": str(error)}


async def test_the_log_has_the_reason_of_a_failed_page_and_its_user(
    ann: PageVisitor, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING"):
        await ann.open("/console/runs/s:train:0")

    [line] = [each.getMessage() for each in caplog.records if "status=404" in each.getMessage()]
    assert "owner=ann" in line and "is not yours or not there" in line


async def test_a_path_that_is_nothing_is_a_page_that_leads_back(ann: PageVisitor) -> None:
    answer = await ann.open("/console/nowhere")

    assert answer.status_code == 404
    assert Markup(answer.text).having("data-test", "error")
    assert Markup(answer.text).having("href", "/console")


async def test_another_method_is_refused_with_a_reason(ann: PageVisitor) -> None:
    answer = await ann.post("/console")

    assert answer.status_code == 405
    assert answer.json()["detail"]
