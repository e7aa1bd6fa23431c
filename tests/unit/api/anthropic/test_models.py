from __future__ import annotations

from datetime import UTC, datetime

import anthropic
import pytest

from chockstone.api.anthropic.models import model_info, page_of
from chockstone.api.chat.served_model import ListedModel
from chockstone.wire.failures import BadParameter
from support.api.users import KEYS, MODEL, User
from unit.api.anthropic.conftest import HELPER

FIVE = [ListedModel(name, None, None) for name in "abcde"]


def test_pages_go_on_after_a_model_and_back_before_one() -> None:
    first = page_of(FIVE, limit=2, after=None, before=None)
    second = page_of(FIVE, limit=3, after=first["last_id"], before=None)
    back = page_of(FIVE, limit=2, after=None, before="e")

    assert ([each["id"] for each in first["data"]], first["has_more"], first["first_id"]) == (["a", "b"], True, "a")
    assert ([each["id"] for each in second["data"]], second["has_more"]) == (["c", "d", "e"], False)
    assert ([each["id"] for each in back["data"]], back["has_more"], back["last_id"]) == (["c", "d"], True, "d")
    assert page_of([], limit=2, after=None, before=None)["data"] == []
    with pytest.raises(BadParameter, match="no model of this list"):
        page_of(FIVE, limit=2, after="x", before=None)


def test_an_alias_shows_its_target() -> None:
    shown = model_info(ListedModel("prod", datetime(2026, 1, 2, tzinfo=UTC), "ann", "tinker://r/weights/a"))

    assert shown["display_name"] == "prod (tinker://r/weights/a)"
    assert shown["created_at"] == "2026-01-02T00:00:00Z"


async def test_the_sdk_lists_models_and_finds_each(client: anthropic.AsyncAnthropic, ann: User) -> None:
    path = await ann.save(await ann.run(), "a", kind="sampler_weights")

    listed = [model.id async for model in client.models.list(limit=1)]

    assert listed == [HELPER, MODEL, path]
    for name in listed:
        assert (await client.models.retrieve(name)).id == name
    assert (await client.models.retrieve(MODEL)).max_input_tokens == 1024


async def test_models_of_other_users_are_neither_listed_nor_found(url: str, ann: User) -> None:
    path = await ann.save(await ann.run(), "a", kind="sampler_weights")

    async with anthropic.AsyncAnthropic(base_url=f"{url}/anthropic", api_key=KEYS["bob"], max_retries=0) as bob:
        assert path not in [model.id async for model in bob.models.list()]
        with pytest.raises(anthropic.NotFoundError):
            await bob.models.retrieve(path)


async def test_a_page_that_is_wrong_is_refused(client: anthropic.AsyncAnthropic) -> None:
    for wrong in ({"limit": 0}, {"limit": 5000}, {"after_id": "nowhere"}):
        with pytest.raises(anthropic.BadRequestError):
            await client.models.list(**wrong)
