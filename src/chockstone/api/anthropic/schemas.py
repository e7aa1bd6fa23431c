"""Schemas: what the OpenAPI document says of the bodies. The readers of the requests are what decides."""

from __future__ import annotations

from typing import Any, Final

Schema = dict[str, Any]  # Any: plain JSON

_TEXT: Final[Schema] = {"type": "string"}
_FLAG: Final[Schema] = {"type": "boolean"}
_OBJECT: Final[Schema] = {"type": "object"}
_TEXT_BLOCK: Final[Schema] = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"const": "text"}, "text": _TEXT},
}
_TEXTS: Final[Schema] = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT_BLOCK}]}
_TOOL_USE: Final[Schema] = {
    "type": "object",
    "required": ["type", "id", "name", "input"],
    "properties": {
        "type": {"const": "tool_use"},
        "id": _TEXT,
        "name": _TEXT,
        "input": _OBJECT,
    },
}
_TOOL_RESULT: Final[Schema] = {
    "type": "object",
    "required": ["type", "tool_use_id"],
    "properties": {
        "type": {"const": "tool_result"},
        "tool_use_id": _TEXT,
        "content": _TEXTS,
        "is_error": _FLAG,
    },
}
_MESSAGE: Final[Schema] = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "role": {"enum": ["user", "assistant", "system"]},
        "content": {
            "anyOf": [
                _TEXT,
                {
                    "type": "array",
                    "items": {"anyOf": [_TEXT_BLOCK, _TOOL_USE, _TOOL_RESULT]},
                },
            ]
        },
    },
}
_TOOL: Final[Schema] = {
    "type": "object",
    "required": ["name", "input_schema"],
    "properties": {
        "type": {"const": "custom"},
        "name": _TEXT,
        "description": _TEXT,
        "input_schema": _OBJECT,
        "strict": _FLAG,
    },
}
_PROMPT: Final[Schema] = {
    "model": {
        "type": "string",
        "description": "a base model, a checkpoint (tinker://…) or an alias",
    },
    "messages": {"type": "array", "minItems": 1, "items": _MESSAGE},
    "system": _TEXTS,
    "tools": {"type": "array", "items": _TOOL},
    "tool_choice": {
        "type": "object",
        "required": ["type"],
        "properties": {
            "type": {"enum": ["auto", "any", "tool", "none"]},
            "name": _TEXT,
            "disable_parallel_tool_use": _FLAG,
        },
    },
    "thinking": {
        "type": "object",
        "properties": {"type": {"enum": ["disabled", "adaptive"]}},
    },
    "output_config": {
        "type": "object",
        "properties": {
            "effort": {"enum": ["low", "medium", "high", "xhigh", "max"]},
            "format": {
                "type": "object",
                "required": ["type", "schema"],
                "properties": {"type": {"const": "json_schema"}, "schema": _OBJECT},
            },
        },
    },
}
COUNT_REQUEST: Final[Schema] = {
    "type": "object",
    "required": ["model", "messages"],
    "properties": _PROMPT,
}
MESSAGE_REQUEST: Final[Schema] = {
    "type": "object",
    "required": ["model", "messages", "max_tokens"],
    "properties": {
        **_PROMPT,
        "max_tokens": {"type": "integer", "minimum": 1},
        "stop_sequences": {
            "type": "array",
            "items": {"type": "string", "minLength": 1},
        },
        "temperature": {"type": "number", "minimum": 0, "maximum": 2},
        "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        "top_k": {"type": "integer", "minimum": 0},
        "seed": {
            "type": "integer",
            "minimum": 0,
            "description": "of this server; Anthropic has none",
        },
        "stream": _FLAG,
        "metadata": _OBJECT,
    },
}


def documented(schema: Schema) -> Schema:
    """Of a route that reads its body itself."""
    return {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    }
