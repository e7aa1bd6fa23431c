"""Tool calls: finds them in what a model writes, in the format of its family.

Text goes through as it comes. A call is given as a whole, when its end is there. What looks like a call and is none is
text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    arguments: str  # JSON


@dataclass(frozen=True, slots=True)
class _Format:
    begin: str
    end: str | None  # None: the end of the answer


FORMATS: Final[Mapping[str, _Format]] = {
    "hermes": _Format("<tool_call>", "</tool_call>"),
    "qwen_xml": _Format("<tool_call>", "</tool_call>"),
    "mistral": _Format("[TOOL_CALLS]", None),
    "llama3": _Format("<|python_tag|>", None),
}
MARKS: Final = frozenset(
    {each.begin for each in FORMATS.values()} | {each.end for each in FORMATS.values() if each.end}
)
_FUNCTION: Final = re.compile(r"<function=([^>\n]{1,300})>")
_PARAMETER: Final = re.compile(r"<parameter=([^>\n]{1,300})>")


def forced_beginning(tool_format: str, name: str | None) -> str:
    """How an answer begins that calls this tool, or any."""
    if tool_format == "hermes":
        return '<tool_call>\n{"name": "' + ("" if name is None else f'{name}", "arguments": ')
    if tool_format == "qwen_xml":
        return "<tool_call>\n<function=" + ("" if name is None else f"{name}>\n")
    if tool_format == "mistral":
        return '[TOOL_CALLS][{"name": "' + ("" if name is None else f'{name}", "arguments": ')
    return '{"name": "' + ("" if name is None else f'{name}", "parameters": ')


class ToolCallParser:
    """Of one answer."""

    def __init__(self, tool_format: str, *, has_text: bool = False) -> None:
        """``has_text``: the answer has begun with text already."""
        self._name = tool_format
        self._format = FORMATS[tool_format]
        self._held = ""
        self._is_inside = False
        self._has_text = has_text

    def add(self, text: str) -> list[str | ToolCall]:
        """Text and calls that are certain from here on."""
        self._held += text
        found: list[str | ToolCall] = []
        while True:
            if not self._is_inside and not self._enter(found):
                break
            end = self._format.end
            if end is None or (place := self._held.find(end)) < 0:
                break
            inner, self._held = self._held[:place], self._held[place + len(end) :]
            self._is_inside = False
            found += self._calls(inner) or [f"{self._format.begin}{inner}{end}"]
        return found

    def finish(self) -> list[str | ToolCall]:
        """What was held back. A last call may lack its end."""
        held, self._held = self._held, ""
        if not self._is_inside:
            return [held] if held else []
        is_bare = self._name == "llama3" and held.lstrip().startswith("{")
        return [*self._calls(held)] or [held if is_bare else self._format.begin + held]

    def _enter(self, found: list[str | ToolCall]) -> bool:
        """Pass on text before a call. Returns whether a call begins."""
        begin = self._format.begin
        if self._name == "llama3" and not self._has_text and self._held.lstrip().startswith("{"):
            self._is_inside = True
            return True
        place = self._held.find(begin)
        if place >= 0:
            before, self._held = self._held[:place], self._held[place + len(begin) :]
            self._is_inside = True
        else:
            kept = _begun(self._held, begin)
            before, self._held = self._held[: len(self._held) - kept], self._held[len(self._held) - kept :]
        if before.strip() or (before and place < 0):
            self._has_text = self._has_text or bool(before.strip())
            found.append(before)
        return self._is_inside

    def _calls(self, text: str) -> list[ToolCall]:
        return _xml_calls(text) if self._name == "qwen_xml" else _json_calls(text)


def _begun(text: str, mark: str) -> int:
    """How many characters at the end of ``text`` may be the beginning of ``mark``."""
    sizes = range(min(len(mark) - 1, len(text)), 0, -1)
    return next((size for size in sizes if mark.startswith(text[-size:])), 0)


def _xml_calls(text: str) -> list[ToolCall]:
    """A last function may lack its end."""
    calls: list[ToolCall] = []
    for name, body, _ in _elements(text, _FUNCTION, "</function>"):
        values = {
            key.strip(): _value(value.removeprefix("\n").removesuffix("\n"))
            for key, value, is_whole in _elements(body, _PARAMETER, "</parameter>")
            if is_whole
        }
        calls.append(ToolCall(name.strip(), json.dumps(values)))
    return calls


def _elements(text: str, begin: re.Pattern[str], end: str) -> Iterator[tuple[str, str, bool]]:
    """Name and content of each element, and whether it has its end. Reads the text once, whatever is in it."""
    place = 0
    while (found := begin.search(text, place)) is not None:
        close = text.find(end, found.end())
        if close < 0:
            yield found[1], text[found.end() :], False
            return
        yield found[1], text[found.end() : close], True
        place = close + len(end)


def _json_calls(text: str) -> list[ToolCall]:
    """Objects with a name and arguments: one, several one after the other, or a list of them. Empty: it is none."""
    decoder, calls, place = json.JSONDecoder(), list[ToolCall](), 0
    while place < len(text):
        if text[place] in " \t\r\n;,":
            place += 1
            continue
        try:
            value, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            return calls
        for each in value if isinstance(value, list) else [value]:
            if (call := _call(each)) is None:
                return []
            calls.append(call)
    return calls


def _call(value: object) -> ToolCall | None:
    if not isinstance(value, dict) or not isinstance(name := value.get("name"), str) or not name:
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    try:
        written = arguments if isinstance(arguments, str) else _written(arguments)
        f"{name}{written}".encode()
    except (ValueError, RecursionError):
        return None
    return ToolCall(name, written)


def _value(text: str) -> Any:  # Any: JSON
    try:
        value = json.loads(text)
        _written(value)
    except (ValueError, RecursionError):
        return text
    return value


def _written(value: object) -> str:
    """As JSON that every client reads. Raises ValueError for NaN, infinity and half characters, which Python takes."""
    written = json.dumps(value, ensure_ascii=False, allow_nan=False)
    written.encode()
    return written
