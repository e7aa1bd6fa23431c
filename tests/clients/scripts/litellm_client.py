"""LiteLLM against a server, as programs use it."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import litellm
from pydantic import BaseModel

litellm.suppress_debug_info = True
SERVER, KEY = os.environ["SERVER"], os.environ["KEY"]
HI = [{"role": "user", "content": "What holds a fall?"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "description": "Of a city.", "parameters": SCHEMA}}
STRICT = {"type": "function", "function": {**TOOL["function"], "strict": True}}  # type: ignore[dict-item]
OPENAI = {"model": "openai/tiny", "api_base": f"{SERVER}/v1", "api_key": KEY}
ANTHROPIC = {"model": "anthropic/tiny", "api_base": f"{SERVER}/anthropic", "api_key": KEY}


class Colour(BaseModel):
    is_red: bool


def ask(to: dict[str, str] = OPENAI, **more: Any) -> Any:
    seed = {"seed": 1} if to["model"].startswith("openai/") else {}
    return litellm.completion(**{**to, "messages": HI, "max_tokens": 16, **seed, **more})


def failure(**more: Any) -> str:
    try:
        ask(**more)
    except Exception as error:  # the class is what programs act on
        return type(error).__name__
    return "none"


def call_of(answer: Any) -> Any:
    [call] = answer.choices[0].message.tool_calls
    return [call.function.name, json.loads(call.function.arguments)["city"]]


def text_of(stream: Any) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


async def talk_at_once() -> bool:
    async def talk(seed: int) -> bool:
        asked: dict[str, Any] = {**OPENAI, "messages": HI, "max_tokens": 16, "seed": seed}
        whole = await litellm.acompletion(**asked)
        stream = await litellm.acompletion(**asked, stream=True)
        texts = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
        return "".join(texts) == (whole.choices[0].message.content or "")

    return all(await asyncio.gather(*map(talk, range(8))))


def main() -> None:
    required: dict[str, Any] = {"tools": [TOOL], "tool_choice": "required", "max_tokens": 200}
    called = ask(**required)
    result = {"role": "tool", "tool_call_id": called.choices[0].message.tool_calls[0].id, "content": "rain"}
    chunks = list(ask(**required, stream=True))
    usage = [getattr(chunk, "usage", None) for chunk in ask(stream=True, stream_options={"include_usage": True})]
    long = [{"role": "user", "content": "a b " * 20_000}]
    told = {
        "stream": text_of(ask(stream=True)) == ask().choices[0].message.content,
        "usage": usage[-1].total_tokens,
        "at_once": asyncio.run(talk_at_once()),
        "called": call_of(called),
        "called_in_a_stream": call_of(litellm.stream_chunk_builder(chunks)),
        "with_result": ask(tools=[TOOL], messages=[*HI, called.choices[0].message, result]).usage.prompt_tokens,
        "as_a_dict": ask(messages=[*HI, ask().choices[0].message.model_dump(), *HI]).usage.prompt_tokens,
        "strict": ask(tools=[STRICT]).choices[0].finish_reason,
        "schema": json.loads(ask(response_format=Colour, max_tokens=200).choices[0].message.content),
        "completion": litellm.text_completion(
            **{**OPENAI, "model": "text-completion-openai/tiny"}, prompt="Hi", max_tokens=4
        ).usage.completion_tokens,
        "response": litellm.responses(**OPENAI, input="Hi", max_output_tokens=4).usage.output_tokens,
        "logprobs": len(ask(logprobs=True, top_logprobs=2).choices[0].logprobs.content),
        "hosted_vllm": ask({**OPENAI, "model": "hosted_vllm/tiny"}).usage.completion_tokens,
        "anthropic": ask(ANTHROPIC).usage.completion_tokens,
        "anthropic_stream": len(text_of(ask(ANTHROPIC, stream=True))),
        "anthropic_called": call_of(ask(ANTHROPIC, **required)),
        "anthropic_begun": ask(ANTHROPIC, messages=[*HI, {"role": "assistant", "content": "It"}]).usage.prompt_tokens,
        "messages_by_responses": asyncio.run(litellm.anthropic.messages.acreate(**OPENAI, messages=HI, max_tokens=4))[
            "usage"
        ]["output_tokens"],
        "failures": {
            "context": failure(messages=long),
            "anthropic_context": failure(to=ANTHROPIC, messages=long),
            "model": failure(to={**OPENAI, "model": "openai/nothing"}),
            "key": failure(to={**OPENAI, "api_key": "tml-wrong"}),
            "penalty": failure(presence_penalty=0.5),
        },
    }
    print(json.dumps(told))


main()
