from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from chockstone.api.tokenizers import tokenizer_service
from chockstone.api.tokenizers.tokenizer_service import (
    ChatMessage,
    TextTooLong,
    TokenizerFacts,
    TokenizerFailed,
    TokenizerService,
)


@pytest.fixture
def service() -> Iterator[TokenizerService]:
    made = TokenizerService()
    yield made
    made.close()


async def test_text_becomes_tokens_and_text_again(service: TokenizerService, model: Path) -> None:
    assert await service.describe(model) == TokenizerFacts(has_chat_template=True, vocabulary=512)

    plain = await service.encode(model, "a rope")
    chat = await service.encode_chat(model, [ChatMessage("user", "a rope")])
    decoded = await service.decode(model, plain.tokens, singles=[plain.tokens[0]])

    assert "".join(decoded.pieces) == "<|begin_of_text|>a rope"
    assert decoded.singles == {plain.tokens[0]: "<|begin_of_text|>"}
    assert "a rope<|eot_id|>" in chat.text
    assert len(chat.tokens) > len(plain.tokens)


async def test_requests_at_once_get_their_own_answers(service: TokenizerService, model: Path) -> None:
    texts = [f"text {number}" for number in range(8)]

    encoded = await asyncio.gather(*(service.encode(model, text) for text in texts))

    assert [each.text for each in encoded] == texts


async def test_a_problem_of_the_model_is_told(service: TokenizerService, tmp_path: Path) -> None:
    with pytest.raises(TokenizerFailed, match=r"no tokenizer\.json"):
        await service.encode(tmp_path, "x")


async def test_after_a_dead_child_the_next_request_starts_another(service: TokenizerService, model: Path) -> None:
    await service.describe(model)
    first = service._child.process
    assert first is not None
    first.kill()
    first.wait()

    assert (await service.describe(model)).vocabulary == 512


@pytest.mark.parametrize("program", ["import time; time.sleep(600)", "pass"])
async def test_a_child_that_gives_no_answer_is_ended(program: str, model: Path) -> None:
    service = TokenizerService(answer_seconds=0.2, command=[sys.executable, "-I", "-c", program])

    with pytest.raises(TokenizerFailed, match="did not answer"):
        await service.describe(model)

    assert service._child.process is None


async def test_the_child_ends_with_its_service(model: Path) -> None:
    service = TokenizerService()
    await service.describe(model)
    process = service._child.process
    assert process is not None

    del service

    assert process.poll() is not None


async def test_an_idle_child_is_ended_and_started_again_when_it_is_needed(model: Path) -> None:
    service = TokenizerService(idle_seconds=0.01)

    await service.describe(model)
    while service._child.process is not None:
        await asyncio.sleep(0.01)

    assert (await service.describe(model)).vocabulary == 512
    service.close()


async def test_requests_that_come_at_once_are_counted(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_service, "MAX_WAITING", 2)
    service = TokenizerService()

    found = await asyncio.gather(*(service.describe(model) for _ in range(5)), return_exceptions=True)

    assert sum(isinstance(each, TokenizerFailed) for each in found) == 3
    assert service._waiting == 0


async def test_too_many_waiting_requests_are_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_service, "MAX_WAITING", 0)
    service = TokenizerService()

    with pytest.raises(TokenizerFailed, match="wait for the tokenizer"):
        await service.describe(model)

    assert service._child.process is None


async def test_clients_that_leave_keep_no_thread_waiting(model: Path) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
    service = TokenizerService(command=[sys.executable, "-I", "-c", "import time; time.sleep(600)"])
    left = [asyncio.create_task(service.describe(model)) for _ in range(3)]
    while (process := service._child.process) is None:
        await asyncio.sleep(0.01)

    for each in left:
        each.cancel()
        for _ in range(5):  # the next one has its turn, if there is one
            await asyncio.sleep(0)
    answer = await asyncio.wait_for(asyncio.to_thread(lambda: "a thread is free"), 10)

    assert answer == "a thread is free"
    assert service._waiting == 1, "the child has not answered yet"
    process.kill()
    while service._waiting:
        await asyncio.sleep(0.01)


async def test_the_table_has_the_bytes_of_each_token(service: TokenizerService, model: Path) -> None:
    encoded = await service.encode(model, "a→b")

    table = await service.table(model)

    assert b"".join(table.pieces[token] for token in encoded.tokens) == "<|begin_of_text|>a→b".encode()
    assert table.special[encoded.tokens[0]] == "<|begin_of_text|>"
    assert await service.table(model) is table


async def test_tools_and_options_reach_the_template(service: TokenizerService, model: Path) -> None:
    (model / "chat_template.jinja").write_text("{{ tools | tojson }}{{ mood }}<tool_call>")

    encoded = await service.encode_conversation(model, [], tools=[{"name": "add"}], options={"mood": "!"}, begin="x")

    assert encoded.text == '[{"name": "add"}]!<tool_call>x'
    assert await service.tool_format(model) == "hermes"


async def test_text_can_be_encoded_without_tokens_that_the_tokenizer_adds(
    service: TokenizerService, model: Path
) -> None:
    plain = await service.encode(model, "a rope", adds_special=False)
    decoded = await service.decode(model, plain.tokens, singles=[])

    assert "".join(decoded.pieces) == "a rope"


async def test_more_tokens_than_are_wanted_are_counted(service: TokenizerService, model: Path) -> None:
    text = "a rope " * 10
    full = await service.encode(model, text)

    enough = await service.encode(model, text, most=full.count)
    more = await service.encode(model, text, most=full.count - 1)

    assert (full.count, full.is_exact) == (len(full.tokens), True)
    assert (enough.tokens, enough.text) == (full.tokens, "")
    assert (more.tokens, more.count, more.is_exact) == ((), full.count, True)


async def test_far_more_tokens_are_not_all_counted_unless_that_is_wanted(
    service: TokenizerService, model: Path
) -> None:
    text = "a rope → " * 20_000

    part = await service.encode(model, text, most=100)
    exact = await service.encode(model, text, most=100, is_exact=True)
    chat = await service.encode_conversation(model, [{"role": "user", "content": text}], most=100)

    assert (part.tokens, part.is_exact) == (exact.tokens, False) == ((), False)
    assert 100 < part.count < exact.count / 2
    assert exact.is_exact
    assert 100 < chat.count < exact.count


async def test_a_text_that_is_too_long_is_told_apart(service: TokenizerService, model: Path) -> None:
    with pytest.raises(TextTooLong, match="more than 4000000 characters"):
        await service.encode_chat(model, [ChatMessage("user", "a" * 4_000_001)])


async def test_integers_and_characters_reach_the_template_as_they_are(service: TokenizerService, model: Path) -> None:
    (model / "chat_template.jinja").write_text("{{ messages[0].content | tojson }}")

    for content in ("a\u2028→\r\n", {"n": 2**70}):
        encoded = await service.encode_conversation(model, [{"content": content}])
        assert json.loads(encoded.text) == content
