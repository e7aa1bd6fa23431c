from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from chockstone.api.tokenizers.tokenizer_process import load
from chockstone.api.tokenizers.tokenizer_service import ChatMessage
from chockstone.console.pages.playground import Source, read_order, read_prompt, shade_of
from chockstone.wire.failures import BadRequest
from support.api.users import MODEL, User, url_of
from support.page_visitor import Markup, PageVisitor
from support.sampled import DrawnSamples
from support.served import Served
from support.tokenizers import write_tokenizer

SAMPLE = "/console/playground/sample"
ATTACK = "<script>alert(1)</script><img src=x onerror=alert(1)>"


@pytest.fixture
def models(tmp_path: Path) -> dict[str, Path]:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({"architectures": ["Tiny"], "max_position_embeddings": 1024}))
    return {MODEL: write_tokenizer(directory)}


@pytest.fixture
def drawn(served: Served, models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> DrawnSamples:
    """The worker answers everything with the attack, as text."""
    made = DrawnSamples(load(models[MODEL]).encode(ATTACK, add_special_tokens=False))
    made.gate.set()
    monkeypatch.setattr(served.backend, "sample", made.sample)
    return made


def lines(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


async def test_the_page_offers_models_and_checkpoints_that_may_be_read(
    ann: PageVisitor, users: dict[str, User]
) -> None:
    own = await users["ann"].save(await users["ann"].run(), "own", kind="sampler_weights")
    hidden, shared = [await users["bob"].save(await users["bob"].run(), name) for name in ("hidden", "shared")]
    await users["bob"].http.post(url_of(shared, "publish"))

    page = await ann.open("/console/playground")

    offered = [given["value"] for tag, given in Markup(page.text).elements if tag == "option" and "value" in given]
    assert {MODEL, own, shared} <= set(offered)
    assert hidden not in page.text
    assert Markup(page.text).refused_by_policy() == []
    chosen = await ann.open(f"/console/playground?path={own}")
    assert {"value": own, "selected": None} in [given for _, given in Markup(chosen.text).elements]
    refused = await ann.open(f"/console/playground?path={hidden}")
    assert "is not yours or not there" in Markup(refused.text).text


async def test_a_chat_is_sampled_and_its_tokens_are_shown_as_text(ann: PageVisitor, drawn: DrawnSamples) -> None:
    form = {"source": MODEL, "mode": "chat", "role-0": "user", "content-0": "Hi", "seed": "7", "temperature": "0.5"}

    *waiting, done = lines(await ann.post(SAMPLE, form))

    assert done["state"] == "done"
    assert done["text"] == ATTACK
    assert {each["state"] for each in waiting} <= {"waiting"}
    answer = Markup(done["html"])
    assert answer.refused_by_policy() == []
    assert not [tag for tag, _ in answer.elements if tag in ("script", "img")]
    tokens = answer.having("data-test", "token")
    assert len(tokens) == len(drawn.tokens)
    first = json.loads(tokens[0]["data-details"] or "")
    assert first["percent"] == pytest.approx(99, abs=0.1)
    assert len(first["others"]) == 5
    assert "shade-6" in str(tokens[-1]["class"])
    assert "user<|end_header_id|>" in answer.text
    assert drawn.calls[0]["sampling_params"] == {"max_tokens": 128, "temperature": 0.5, "top_p": 1.0, "seed": 7}


async def test_a_plain_prompt_is_sampled_from_a_checkpoint(
    ann: PageVisitor, users: dict[str, User], drawn: DrawnSamples
) -> None:
    path = await users["ann"].save(await users["ann"].run(), "a")

    *_, done = lines(await ann.post(SAMPLE, {"source": path, "mode": "plain", "prompt": "Once"}))

    assert done["state"] == "done"
    assert "<|begin_of_text|>" not in done["html"]


async def test_failures_are_told_as_text(ann: PageVisitor, drawn: DrawnSamples) -> None:
    drawn.error = BadRequest(ATTACK)

    *_, failed = lines(await ann.post(SAMPLE, {"source": MODEL, "mode": "plain", "prompt": "x"}))

    assert failed["state"] == "failed"
    assert ATTACK in Markup(failed["html"]).text
    assert Markup(failed["html"]).refused_by_policy() == []


async def test_what_may_not_be_read_looks_like_none(
    ann: PageVisitor, users: dict[str, User], drawn: DrawnSamples
) -> None:
    theirs = await users["bob"].save(await users["bob"].run(), "a")
    form = {"mode": "plain", "prompt": "x"}

    refused = await ann.post(SAMPLE, {**form, "source": theirs})
    absent = await ann.post(SAMPLE, {**form, "source": theirs.replace("/weights/a", "/weights/none")})
    described = await ann.open(f"/console/playground/model?source={theirs}")

    assert (refused.status_code, absent.status_code, described.status_code) == (404, 404, 404)
    assert refused.json()["detail"].replace("/a'", "/none'") == absent.json()["detail"]
    assert drawn.calls == []
    for source in ("", "unknown", "tinker://x", theirs.replace("/weights/", "/external_weights/")):
        assert (await ann.post(SAMPLE, {**form, "source": source})).status_code == 400


async def test_a_sample_needs_the_token_of_the_session(ann: PageVisitor, drawn: DrawnSamples) -> None:
    form = {"source": MODEL, "mode": "plain", "prompt": "x"}

    assert (await ann.post(SAMPLE, form, but={"X-Console-Token": None})).status_code == 403
    assert (await ann.post(SAMPLE, form, but={"Origin": "http://evil.example"})).status_code == 403
    assert drawn.calls == []


async def test_a_model_says_whether_it_can_chat(ann: PageVisitor) -> None:
    url = f"/console/playground/model?source={MODEL}"

    assert (await ann.open(url)).json() == {"chat": True, "problem": None}


def test_a_prompt_is_messages_or_text() -> None:
    form = {"mode": "chat", "role-0": "system", "content-0": "Be kind.", "content-1": " ", "content-2": "Hi"}

    assert read_prompt(form) == ((ChatMessage("system", "Be kind."), ChatMessage("user", "Hi")), "")
    assert read_prompt({"prompt": "Once"}) == (None, "Once")


@pytest.mark.parametrize(
    ("form", "problem"),
    [
        ({"prompt": " "}, "is empty"),
        ({"prompt": "x" * 200_001}, "200,001 characters"),
        ({"mode": "chat"}, "write a message"),
        ({"mode": "chat", "content-0": "x", "role-0": "boss"}, "not a role"),
        ({"mode": "chat", "content-60": "x"}, "at most 60 messages"),
    ],
)
def test_a_bad_prompt_is_explained(form: dict[str, str], problem: str) -> None:
    with pytest.raises(BadRequest, match=problem):
        read_prompt(form)


@pytest.mark.parametrize(
    ("form", "problem"),
    [
        ({"temperature": "hot"}, "temperature is 'hot'"),
        ({"temperature": "nan"}, "between 0 and 10"),
        ({"max_tokens": "0"}, "max tokens"),
        ({"max_tokens": "1e9"}, "between 1 and 4096"),
        ({"top_p": "0"}, "top p"),
        ({"seed": "-1"}, "seed"),
        ({"stop": "\n".join("abcdefghijklmnopqrs")}, "stop texts"),
    ],
)
def test_a_bad_setting_is_explained(form: dict[str, str], problem: str) -> None:
    with pytest.raises(BadRequest, match=problem):
        read_order(form, Source(Path("x"), base_model=MODEL), (1,))


def test_shades_run_from_sure_to_surprised() -> None:
    logprobs = [0.0, -0.3, -0.9, -1.9, -3.0, -4.9, -9.0, float("-inf"), float("nan")]

    assert [shade_of(each) for each in logprobs] == [0, 1, 2, 3, 4, 5, 6, 6, 6]
