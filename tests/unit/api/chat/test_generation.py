from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chockstone.api.chat import generation as generation_module
from chockstone.api.chat.chat_service import ChatService
from chockstone.api.chat.generation import Delta, Finish, TextGeneration, _ChoiceReader
from chockstone.api.chat.orders import Conversation, GenerationParameters, NamedTool, PlainPrompt, TokenPrompt
from chockstone.api.chat.tool_calls import ToolCall
from chockstone.api.users import Caller
from chockstone.wire.codecs.samples import SampledSequence, TopK
from chockstone.wire.failures import BadRequest, ServerFailure
from support.api.users import MODEL
from support.chat import CALL, WEATHER, tokens_of, written
from support.engine.fake_backend import sequence_of
from support.engine.making import until
from support.served import Served

ASKED = Conversation(messages=[{"role": "user", "content": "Will it rain?"}], tools=[WEATHER])
HI = PlainPrompt("Hi")
OSLO = ToolCall("weather", '{"city": "Oslo"}')


@pytest.fixture
def directory(models: dict[str, Path]) -> Path:
    return models[MODEL]


async def start(
    chat: ChatService, caller: Caller, prompt: Any = HI, *, model: str = MODEL, **parameters: Any
) -> TextGeneration:
    return await chat.start(await chat.find_model(caller, model), prompt, GenerationParameters(**parameters))


async def read(generation: TextGeneration) -> list[Delta]:
    return [delta async for delta in generation]


def text_of(deltas: Sequence[Delta], choice: int = 0) -> str:
    parts = [part for delta in deltas if delta.choice == choice for part in delta.parts]
    return "".join(part for part in parts if isinstance(part, str))


async def test_text_comes_while_it_is_written(
    served: Served, chat: ChatService, caller: Caller, directory: Path
) -> None:
    served.backend.sequences = written(directory, "déjà vu 🙂")
    served.backend.hold("token 2")
    generation = await start(chat, caller)

    first = await anext(generation)
    served.backend.let_go("token 2")
    deltas = [first, *await read(generation)]

    assert len(deltas) > 2
    assert text_of(deltas) == "déjà vu 🙂"
    assert [delta.finish for delta in deltas if delta.finish] == [Finish("stop")]
    assert generation.choices[0].text == "déjà vu 🙂"


async def test_tokens_and_logprobs_are_those_of_the_sampler(
    served: Served, chat: ChatService, caller: Caller, directory: Path
) -> None:
    served.backend.sequences = written(directory, "hello there")
    tokens = tokens_of(directory, "hello there")
    generation = await start(chat, caller)
    await generation.finish()

    [choice] = generation.choices
    assert [each.token for each in choice.tokens] == tokens
    assert [each.logprob for each in choice.tokens] == [-place / 4 for place in range(len(tokens))]
    assert b"".join(each.data for each in choice.tokens) == b"hello there"
    assert (generation.completion_tokens, generation.cached_tokens) == (len(tokens), 0)


async def test_choices_are_read_each_for_itself(
    served: Served, chat: ChatService, caller: Caller, directory: Path
) -> None:
    served.backend.sequences = written(directory, "one", "the second one")
    generation = await start(chat, caller, choices=2)
    deltas = await read(generation)

    assert (text_of(deltas, 0), text_of(deltas, 1)) == ("one", "the second one")
    assert [choice.finish for choice in generation.choices] == [Finish("stop")] * 2


async def test_text_ends_before_a_stop_string_across_tokens(
    served: Served, chat: ChatService, caller: Caller, directory: Path
) -> None:
    served.backend.sequences = written(directory, "one two STOP")
    generation = await start(chat, caller, stop=("two STOP", "never"))
    deltas = await read(generation)

    assert text_of(deltas) == "one "
    assert generation.choices[0].finish == Finish("stop", "two STOP")
    assert b"".join(each.data for each in generation.choices[0].tokens) == b"one two STOP"


async def test_an_answer_that_is_cut_is_named_so(
    served: Served, chat: ChatService, caller: Caller, directory: Path
) -> None:
    served.backend.sequences = written(directory, "one tw", stop_reason="length")
    generation = await start(chat, caller, stop=("two",))
    deltas = await read(generation)

    assert (text_of(deltas), generation.choices[0].finish) == ("one tw", Finish("length"))


async def test_a_call_of_a_tool_is_no_text(
    served: Served, chat: ChatService, caller: Caller, models: dict[str, Path]
) -> None:
    served.backend.sequences = written(models["helper"], f"Let me look. {CALL}")
    generation = await start(chat, caller, ASKED, model="helper")
    deltas = await read(generation)

    assert [part for delta in deltas for part in delta.parts if isinstance(part, ToolCall)] == [OSLO]
    assert text_of(deltas).strip() == "Let me look."
    assert generation.choices[0].calls == [OSLO]
    assert generation.choices[0].finish == Finish("tool_calls")


async def test_an_answer_with_a_single_call_ends_with_it_and_is_cancelled(
    served: Served, chat: ChatService, caller: Caller, models: dict[str, Path]
) -> None:
    served.backend.sequences = written(models["helper"], f"{CALL}{CALL} and so on")
    end = len(tokens_of(models["helper"], CALL)) + 4
    served.backend.hold(f"token {end}")
    asked = Conversation(messages=ASKED.messages, tools=[WEATHER], single_call=True)
    generation = await start(chat, caller, asked, model="helper")
    deltas = await read(generation)

    assert [part for delta in deltas for part in delta.parts] == [OSLO]
    assert generation.choices[0].finish == Finish("tool_calls")
    await until(lambda: "cancel" in served.backend.words())


@pytest.mark.parametrize(
    ("choice", "begun"),
    [("required", '<tool_call>\n{"name": "'), (NamedTool("weather"), '<tool_call>\n{"name": "weather", "arguments": ')],
)
async def test_a_tool_that_must_be_called_is_begun_in_the_prompt(
    served: Served, chat: ChatService, caller: Caller, models: dict[str, Path], choice: Any, begun: str
) -> None:
    chat.can_constrain = False
    served.backend.sequences = written(models["helper"], CALL.removeprefix(begun))
    asked = Conversation(messages=ASKED.messages, tools=[WEATHER], tool_choice=choice)
    generation = await start(chat, caller, asked, model="helper")
    await generation.finish()

    assert generation.choices[0].parts == [OSLO]
    assert tuple(tokens_of(models["helper"], begun)[-3:]) == generation.prompt_tokens[-3:]


async def test_tools_that_the_model_may_not_call_are_not_in_the_prompt(
    served: Served, chat: ChatService, caller: Caller, models: dict[str, Path]
) -> None:
    served.backend.sequences = written(models["helper"], CALL)
    without = Conversation(messages=ASKED.messages)
    none = Conversation(messages=ASKED.messages, tools=[WEATHER], tool_choice="none")
    generation = await start(chat, caller, none, model="helper")
    await generation.finish()

    model = await chat.find_model(caller, "helper")
    assert len(generation.prompt_tokens) == await chat.count_tokens(model, without)
    assert generation.choices[0].text == CALL


async def test_alternatives_come_with_their_tokens(
    served: Served, chat: ChatService, caller: Caller, directory: Path
) -> None:
    tokens = tokens_of(directory, "ab")
    others = tokens_of(directory, "xy")
    topk = TopK(
        np.array([[tokens[0], others[0]], [tokens[1], 0]], np.int32),
        np.array([[-0.5, -1], [-0.25, -99999]], np.float32),
    )
    sequence = sequence_of(tokens)
    served.backend.sequences = [SampledSequence(sequence.tokens, sequence.logprobs, "stop", topk)]
    generation = await start(chat, caller, alternatives=2)
    deltas = await read(generation)

    found = [each for delta in deltas for each in delta.tokens]
    assert [each.alternatives for each in found] == [
        ((tokens[0], b"a", -0.5), (others[0], b"x", -1.0)),
        ((tokens[1], b"b", -0.25),),
    ]


def reading_threads(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """The threads in which pieces of answers are read from now on."""
    threads: list[threading.Thread] = []
    read_piece = _ChoiceReader.read

    def noted(*values: Any) -> Delta | None:
        threads.append(threading.current_thread())
        return read_piece(*values)

    monkeypatch.setattr(_ChoiceReader, "read", noted)
    return threads


async def test_whole_answers_with_alternatives_are_read_beside_the_event_loop(
    served: Served, chat: ChatService, caller: Caller, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred choices with twenty alternatives of each token took half a second."""
    threads = reading_threads(monkeypatch)
    served.backend.sequences = written(directory, "Hello.")
    await read(await start(chat, caller, alternatives=2))

    assert threads
    assert threading.main_thread() not in threads


async def test_many_stop_strings_are_looked_for_beside_the_event_loop(
    served: Served, chat: ChatService, caller: Caller, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = reading_threads(monkeypatch)
    monkeypatch.setattr(generation_module, "_LARGE_TOKENS", 3)
    served.backend.sequences = written(directory, "Hello.")
    await read(await start(chat, caller, stop=("1", "2", "3", "4")))

    assert threads
    assert threading.main_thread() not in threads


async def test_a_generation_that_is_closed_frees_its_place(
    served: Served, chat: ChatService, caller: Caller, directory: Path
) -> None:
    served.backend.sequences = written(directory, "a long answer")
    served.backend.hold("token 2")
    generation = await start(chat, caller)
    assert served.engine.sampling.waiting == 1

    await generation.aclose()

    await until(lambda: "cancel" in served.backend.words())


async def test_a_sample_that_is_refused_raises_before_an_answer_begins(
    served: Served, chat: ChatService, caller: Caller
) -> None:
    served.backend.fail_next("sample", BadRequest("the cache is too small"))
    with pytest.raises(BadRequest, match="the cache is too small"):
        await start(chat, caller)
    served.backend.fail_next("sample", ServerFailure("the disk is full"))
    with pytest.raises(ServerFailure, match="the disk is full"):
        await start(chat, caller)


async def test_a_stream_continues_after_the_worker_died(
    served: Served, chat: ChatService, caller: Caller, directory: Path
) -> None:
    served.backend.sequences = written(directory, "an answer in many tokens")
    served.backend.hold("token 4")
    generation = await start(chat, caller)
    deltas = [await anext(generation)]
    served.backend.die("killed")
    deltas += await read(generation)

    assert text_of(deltas) == "an answer in many tokens"
    tokens = tokens_of(directory, "an answer in many tokens")
    assert [each.token for delta in deltas for each in delta.tokens] == tokens


async def test_tokens_are_a_prompt_as_they_are(served: Served, chat: ChatService, caller: Caller) -> None:
    generation = await start(chat, caller, TokenPrompt((5, 6, 7)))
    await generation.finish()

    assert generation.prompt_tokens == (5, 6, 7)
