"""Schemas: what the OpenAPI document says of the bodies. The readers of the requests are what decides."""

from __future__ import annotations

from typing import Any, Final

Schema = dict[str, Any]  # Any: plain JSON

_TEXT: Final[Schema] = {"type": "string"}
_FLAG: Final[Schema] = {"type": "boolean"}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 1}
_SAMPLING: Final[Schema] = {
    "model": {"type": "string", "description": "a base model, a checkpoint (tinker://…) or an alias"},
    "temperature": {"type": "number", "minimum": 0},
    "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    "top_k": {"type": "integer", "minimum": -1},
    "seed": {"type": "integer"},
    "stop": {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]},
    "n": {"type": "integer", "minimum": 1, "maximum": 128},
    "stream": _FLAG,
    "stream_options": {"type": "object", "properties": {"include_usage": _FLAG}},
    "return_token_ids": _FLAG,
    "metadata": {"type": "object", "additionalProperties": _TEXT},
    "store": {"type": "boolean", "description": "keep the conversation, to train on it"},
    "user": _TEXT,
}
_FUNCTION: Final[Schema] = {
    "type": "object",
    "required": ["name"],
    "properties": {"name": _TEXT, "description": _TEXT, "parameters": {"type": "object"}, "strict": _FLAG},
}
_MESSAGE: Final[Schema] = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
        "content": {
            "anyOf": [
                _TEXT,
                {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["type", "text"],
                        "properties": {"type": {"const": "text"}, "text": _TEXT},
                    },
                },
            ]
        },
        "tool_call_id": _TEXT,
        "tool_calls": {"type": "array", "items": {"type": "object"}},
    },
}
CHAT_REQUEST: Final[Schema] = {
    "type": "object",
    "required": ["model", "messages"],
    "properties": {
        **_SAMPLING,
        "messages": {"type": "array", "minItems": 1, "items": _MESSAGE},
        "max_tokens": _COUNT,
        "max_completion_tokens": _COUNT,
        "logprobs": _FLAG,
        "top_logprobs": {"type": "integer", "minimum": 0, "maximum": 20},
        "tools": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["type", "function"],
                "properties": {"type": {"const": "function"}, "function": _FUNCTION},
            },
        },
        "tool_choice": {"anyOf": [{"enum": ["auto", "none", "required"]}, {"type": "object"}]},
        "parallel_tool_calls": _FLAG,
        "response_format": {
            "type": "object",
            "required": ["type"],
            "properties": {
                "type": {"enum": ["text", "json_object", "json_schema"]},
                "json_schema": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {"name": _TEXT, "schema": {"type": "object"}, "strict": _FLAG},
                },
            },
        },
        "chat_template_kwargs": {"type": "object"},
    },
}
COMPLETION_REQUEST: Final[Schema] = {
    "type": "object",
    "required": ["model", "prompt"],
    "properties": {
        **_SAMPLING,
        "prompt": {
            "anyOf": [
                _TEXT,
                {"type": "array", "items": {"type": "integer", "minimum": 0}},
                {"type": "array", "items": _TEXT},
            ]
        },
        "max_tokens": _COUNT,
        "logprobs": {"type": "integer", "minimum": 0, "maximum": 20},
    },
}

RESPONSE_REQUEST: Final[Schema] = {
    "type": "object",
    "required": ["model", "input"],
    "properties": {
        **{name: _SAMPLING[name] for name in ("model", "temperature", "top_p", "stream", "metadata", "store", "user")},
        "input": {"anyOf": [_TEXT, {"type": "array", "minItems": 1, "items": {"type": "object"}}]},
        "instructions": _TEXT,
        "max_output_tokens": _COUNT,
        "tools": {
            "type": "array",
            "items": {**_FUNCTION, "properties": {"type": {"const": "function"}, **_FUNCTION["properties"]}},
        },
        "tool_choice": CHAT_REQUEST["properties"]["tool_choice"],
        "parallel_tool_calls": _FLAG,
        "include": {"type": "array", "items": {"enum": ["message.output_text.logprobs"]}},
        "top_logprobs": {"type": "integer", "minimum": 0, "maximum": 20},
    },
}


def documented(schema: Schema) -> Schema:
    """Of a route that reads its body itself."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
