"""Completion answers: generations as a completion of plain prompts, and as the chunks of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from chockstone.api.chat.generation import Delta, GeneratedChoice, TextGeneration
from chockstone.api.openai.answer_head import AnswerHead, usage_of
from chockstone.api.openai.completions.completion_request import CompletionRequest
from chockstone.api.openai.logprobs import CompletionLogprobs

PlainJson = dict[str, Any]  # Any: plain JSON


class CompletionAnswer:
    def __init__(self, head: AnswerHead, request: CompletionRequest, generations: Sequence[TextGeneration]) -> None:
        """One generation per prompt, each with the same number of choices."""
        self._head = head
        self._request = request
        self._generations = generations
        self._logprobs = [CompletionLogprobs() for _ in range(request.parameters.choices * len(generations))]

    def whole(self) -> PlainJson:
        """Of generations that are finished."""
        found = [(generation, choice) for generation in self._generations for choice in generation.choices]
        choices = [self._choice(number, generation, choice) for number, (generation, choice) in enumerate(found)]
        return {**self._head.to_json("text_completion"), "choices": choices, "usage": usage_of(*self._generations)}

    def chunks(self, delta: Delta) -> Iterator[PlainJson]:
        """What a client gets of a delta. Nothing, if nothing of it can be shown yet."""
        text = "".join(part for part in delta.parts if isinstance(part, str))
        if not text and delta.finish is None and not self._request.has_logprobs and not self._request.has_token_ids:
            return
        choice: PlainJson = {
            "index": delta.choice,
            "text": text,
            "logprobs": self._logprobs[delta.choice].encode(delta.tokens) if self._request.has_logprobs else None,
            "finish_reason": None if delta.finish is None else delta.finish.reason,
        }
        if self._request.has_token_ids:
            choice["token_ids"] = [each.token for each in delta.tokens]
        chunk = {**self._head.to_json("text_completion"), "choices": [choice]}
        yield {**chunk, "usage": None} if self._request.has_usage else chunk

    def usage_chunk(self) -> PlainJson:
        return {**self._head.to_json("text_completion"), "choices": [], "usage": usage_of(*self._generations)}

    def _choice(self, number: int, generation: TextGeneration, choice: GeneratedChoice) -> PlainJson:
        assert choice.finish is not None, "the generation is finished"
        found: PlainJson = {
            "index": number,
            "text": choice.text,
            "logprobs": self._logprobs[number].encode(choice.tokens) if self._request.has_logprobs else None,
            "finish_reason": choice.finish.reason,
        }
        if self._request.has_token_ids:
            found["token_ids"] = [each.token for each in choice.tokens]
            found["prompt_token_ids"] = generation.prompt_tokens
        return found
