"""Orders: what an API asks of a model, free of the vendor's shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class NamedTool:
    """The model must call this tool."""

    name: str


ToolChoice = Literal["auto", "none", "required"] | NamedTool


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Messages and tools as chat templates read them. Arguments of earlier calls are objects."""

    messages: Sequence[Mapping[str, Any]]  # Any: plain JSON
    tools: Sequence[Mapping[str, Any]] = ()  # Any: as above
    strict_tools: frozenset[str] = frozenset()  # names of tools whose arguments must match their schema
    tool_choice: ToolChoice = "auto"
    single_call: bool = False  # the answer ends with its first call of a tool
    options: Mapping[str, Any] = field(default_factory=dict)  # Any: variables of the template
    begin: str = ""  # of the answer, which the model continues

    @property
    def offered_tools(self) -> Sequence[Mapping[str, Any]]:  # Any: plain JSON
        return () if self.tool_choice == "none" else self.tools

    @property
    def must_call(self) -> bool:
        return self.tool_choice == "required" or isinstance(self.tool_choice, NamedTool)

    @property
    def chosen_tool(self) -> str | None:
        """The name of the only tool that may be called; None: any of those that are offered."""
        return self.tool_choice.name if isinstance(self.tool_choice, NamedTool) else None

    @property
    def callable_tools(self) -> Sequence[Mapping[str, Any]]:  # Any: plain JSON
        chosen = self.chosen_tool
        return [tool for tool in self.offered_tools if chosen in (None, tool["function"]["name"])]


@dataclass(frozen=True, slots=True)
class PlainPrompt:
    """The model continues the text."""

    text: str


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    tokens: tuple[int, ...]


Prompt = Conversation | PlainPrompt | TokenPrompt


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationParameters:
    max_tokens: int | None = None  # at most; None, or more than there is room for: until the context is full
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1  # -1: off
    seed: int | None = None
    stop: tuple[str, ...] = ()
    choices: int = 1
    alternatives: int = 0  # of each token, with their logprobs. They are known when the whole answer is.
    constraint: Mapping[str, Any] | None = None  # Any: plain JSON, as sample requests have it; None: any text

    def to_json(self) -> dict[str, Any]:  # Any: plain JSON
        """As ``sampling_params`` of a sample request."""
        params: dict[str, Any] = {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k}
        if self.max_tokens is not None:
            params["max_tokens"] = self.max_tokens
        if self.seed is not None:
            params["seed"] = self.seed
        if self.stop:
            params["stop"] = list(self.stop)
        return params
