"""Call constraints: what an answer must be so that its calls of tools match their schemas, as sample requests have it.

None where there is no such constraint: the format is not JSON, or a schema refers to what is outside of itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from chockstone.api.chat.tool_calls import FORMATS

Schema = dict[str, Any]  # Any: plain JSON
Tool = Mapping[str, Any]  # Any: as above
_VALUES: Final = frozenset({"const", "default", "enum", "examples"})  # keywords whose values are no schemas
_NAMED: Final = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})


def call_constraint(tool_format: str, tools: Sequence[Tool], strict: Collection[str] | None = None) -> Schema | None:
    """The answer is one call of one of the tools, and its arguments match their schema.

    ``strict``: the tools for which that must hold; None: all. Arguments of the others are any object if their schema
    refers to what is outside of itself.
    """
    if strict is not None:
        tools = [_any_object(tool) if _name(tool) not in strict and refers_elsewhere(tool) else tool for tool in tools]
    if tool_format == "qwen_xml" or (schema := _call_schema(tool_format, tools, strict=None)) is None:
        return None
    begin, end = FORMATS[tool_format].begin, FORMATS[tool_format].end
    if tool_format == "mistral":
        return {"json_schema": {**_listed(schema), "maxItems": 1}, "prefix": begin}
    if tool_format == "llama3":
        return {"json_schema": schema}
    return {"json_schema": schema, "prefix": f"{begin}\n", "suffix": f"\n{end}"}


def strict_constraint(
    tool_format: str, tools: Sequence[Tool], strict: Collection[str], *, has_text: bool = False
) -> Schema | None:
    """The answer is any text, perhaps with calls of the tools. The arguments of those in ``strict`` match their schema,
    and those of the others are any object. ``has_text``: the answer has begun with text already.
    """
    if tool_format == "qwen_xml" or (schema := _call_schema(tool_format, tools, strict=strict)) is None:
        return None
    begin, end = FORMATS[tool_format].begin, FORMATS[tool_format].end
    if tool_format == "mistral":
        return {"json_schema": _listed(schema), "prefix": begin, "mark": begin}
    if tool_format == "llama3":
        return {"json_schema": schema, "prefix": begin, "mark": begin, "bare": not has_text}
    return {"json_schema": schema, "prefix": f"{begin}\n", "suffix": f"\n{end}", "mark": begin}


def refers_elsewhere(tool: Tool) -> bool:
    """Whether the schema of its arguments refers to something outside of itself."""
    try:
        _moved(tool["function"]["parameters"], "#")
    except _Elsewhere:
        return True
    return False


def _any_object(tool: Tool) -> Tool:
    return {**tool, "function": {**tool["function"], "parameters": {"type": "object"}}}


def _name(tool: Tool) -> str:
    name: str = tool["function"]["name"]
    return name


def _listed(schema: Schema) -> Schema:
    """A list of such calls. Definitions stay at the root, where references look for them."""
    definitions = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    inner = {name: value for name, value in schema.items() if name != "$defs"}
    return {"type": "array", "items": inner, "minItems": 1, **definitions}


def _call_schema(tool_format: str, tools: Sequence[Tool], *, strict: Collection[str] | None) -> Schema | None:
    """``strict`` None: all of them are."""
    field = "parameters" if tool_format == "llama3" else "arguments"
    calls: list[Schema] = []
    definitions: Schema = {}
    for place, function in enumerate(tool["function"] for tool in tools):
        arguments: Schema = {"type": "object"}
        if strict is None or function["name"] in strict:
            arguments = function["parameters"]
            root = f"#/$defs/{place}"
            try:
                moved = _moved(arguments, root)
            except _Elsewhere:
                return None
            if moved != arguments:
                definitions[str(place)], arguments = moved, {"$ref": root}
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": function["name"]}, field: arguments},
                "required": ["name", field],
                "additionalProperties": False,
            }
        )
    schema: Schema = calls[0] if len(calls) == 1 else {"anyOf": calls}
    return {**schema, "$defs": definitions} if definitions else schema


class _Elsewhere(Exception):
    """A schema refers to something outside of itself."""


def _moved(schema: Any, root: str) -> Any:  # Any: plain JSON
    """The schema with references as they are when it stands at ``root``. Expects it to be of limited depth."""
    if isinstance(schema, list):
        return [_moved(each, root) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if isinstance(schema.get("$id"), str):
        raise _Elsewhere
    return {keyword: _moved_value(keyword, value, root) for keyword, value in schema.items()}


def _moved_value(keyword: str, value: Any, root: str) -> Any:  # Any: plain JSON
    if keyword == "$ref" and isinstance(value, str):
        if value != "#" and not value.startswith("#/"):  # an anchor would need its own new place
            raise _Elsewhere
        return root + value[1:]
    if keyword in _NAMED and isinstance(value, dict):  # schemas by names, which may be those of keywords
        return {name: _moved(each, root) for name, each in value.items()}
    return value if keyword in _VALUES else _moved(value, root)
