"""The playground: samples of a model and of a checkpoint, and the probabilities of their tokens."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from browser.conftest import Made, Visit
from support.console_data import ANN, apart, create, finetune, service
from support.live import LiveServer

MARKUP = '<img src=x onerror="document.title=1">'


def ask(page: Page, question: str, *, checkpoint: str | None = None, max_tokens: int = 12) -> None:
    pane = page.get_by_test_id("pane-a")
    if checkpoint is not None:
        pane.get_by_test_id("source").select_option(checkpoint)
    pane.get_by_test_id("max-tokens").fill(str(max_tokens))
    pane.get_by_test_id("temperature").fill("0")
    page.get_by_test_id("content").last.fill(question)
    page.get_by_test_id("run").click()


def test_a_checkpoint_answers_and_each_token_has_its_probability(visit: Visit, made: Made) -> None:
    page = visit(ANN).open("/console/playground")

    ask(page, "Who holds the rope?", checkpoint=f"tinker://{made.run}/sampler_weights/sampler")

    answer = page.get_by_test_id("pane-a").get_by_test_id("answer")
    expect(answer).to_be_visible()
    token = answer.get_by_test_id("token").first
    token.click()
    expect(page.get_by_test_id("percent")).to_contain_text("%")
    expect(page.get_by_test_id("alternative").first).to_be_visible()


def test_two_models_answer_side_by_side_from_the_keyboard(visit: Visit, made: Made) -> None:
    page = visit(ANN).open("/console/playground")
    page.get_by_test_id("compare").click()
    page.get_by_test_id("pane-b").get_by_test_id("source").select_option(f"tinker://{made.run}/sampler_weights/sampler")
    for pane in ("pane-a", "pane-b"):
        page.get_by_test_id(pane).get_by_test_id("max-tokens").fill("6")
    page.get_by_test_id("content").fill("When do we turn back?")

    page.keyboard.press("Control+Enter")

    expect(page.get_by_test_id("pane-a").get_by_test_id("answer")).to_be_visible()
    expect(page.get_by_test_id("pane-b").get_by_test_id("answer")).to_be_visible()


@pytest.fixture(scope="module")
def markup_model(live: LiveServer) -> str:
    """The path of a sampler that has learnt to answer with markup."""

    def train() -> str:
        with service(live, ANN) as client:
            run = create(client, rank=8, name="markup")
            finetune(run, 60, learning_rate=1e-2, answers={"Hello": MARKUP})
            path: str = run.client.save_weights_for_sampler("markup").result().path
            return path

    return apart(train).result(timeout=200)


def test_markup_that_a_model_writes_stays_text(visit: Visit, markup_model: str) -> None:
    page = visit(ANN).open("/console/playground")

    ask(page, "Hello", checkpoint=markup_model, max_tokens=60)

    expect(page.get_by_test_id("answer")).to_be_visible()
    expect(page.get_by_test_id("answer").locator("[data-tokens]")).to_contain_text("<img src=x onerror")
    assert page.locator("img[src=x]").count() == 0
    assert page.title() != "1"
