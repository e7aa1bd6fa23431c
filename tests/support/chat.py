"""Chat on a backend of numbers: tokens of texts, and templates that offer tools."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from chockstone.api.chat.generation import Reading, TextGeneration
from chockstone.api.tokenizers.tokenizer_service import TokenTable
from chockstone.engine.futures import Result
from chockstone.engine.samples.streams import SampleStream
from chockstone.wire.codecs.sample_result import encode_sample_result
from chockstone.wire.codecs.samples import SampledSequence, SampleRequest, SampleResult, SamplingParams, StopReason
from support.engine.fake_backend import sequence_of
from support.tokenizers import VOCABULARY, write_tokenizer

CONTEXT = 1024
HERMES = """\
{%- if tools %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\nTools:\\n' }}
{%- for tool in tools %}{{- tool | tojson + '\\n' }}{%- endfor %}
{{- 'Call them as <tool_call>{"name": ..., "arguments": ...}</tool_call><|eot_id|>' }}
{%- endif %}
{%- for message in messages %}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}
{{- message.content or '' }}
{%- for call in message.tool_calls or [] %}
{%- set called = {'name': call.function.name, 'arguments': call.function.arguments} %}
{{- '<tool_call>\\n' + called | tojson + '\\n</tool_call>' }}
{%- endfor %}
{{- '<|eot_id|>' }}
{%- endfor %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
"""
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


def make_chat_model(directory: Path, *, template: str | None = None) -> Path:
    """A model directory with a tokenizer and without weights."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {"architectures": ["Tiny"], "max_position_embeddings": CONTEXT, "vocab_size": VOCABULARY}
    (directory / "config.json").write_text(json.dumps(config))
    write_tokenizer(directory)
    if template is not None:
        (directory / "chat_template.jinja").write_text(template)
    return directory


def tokens_of(directory: Path, text: str) -> list[int]:
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def written(directory: Path, *texts: str, stop_reason: StopReason = "stop") -> Sequence[SampledSequence]:
    """What a backend is to answer: a choice per text."""
    return [sequence_of(tokens_of(directory, text), stop_reason=stop_reason) for text in texts]


async def generated(*texts: str, tool_format: str | None = None, stop_reason: StopReason = "stop") -> TextGeneration:
    """A generation that is finished: a choice per text, each byte of which is a token."""
    table = TokenTable(tuple(bytes([byte]) for byte in range(256)), {})
    stream = SampleStream("request", close=lambda: None)
    sequences = [sequence_of(list(text.encode()), stop_reason=stop_reason) for text in texts]
    body = encode_sample_result(
        SampleResult(tuple(sequences)), SampleRequest(np.array([1], np.int32), len(sequences), SamplingParams())
    )
    stream.end(Result(body, "sample"))
    reading = Reading(table=table, tool_format=tool_format)
    generation = TextGeneration(stream, reading, prompt_tokens=(1, 2, 3), choices=len(texts))
    await generation.finish()
    return generation
