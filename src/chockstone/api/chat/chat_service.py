"""The chat service: from a conversation or a prompt to a generation, through the engine's sampling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

import orjson
from fastapi import Depends, Request

from chockstone.api.chat.generation import BeforeEnd, Reading, TextGeneration
from chockstone.api.chat.orders import Conversation, GenerationParameters, NamedTool, PlainPrompt, Prompt, TokenPrompt
from chockstone.api.chat.served_model import ListedModel, NamedModel, ServedModels
from chockstone.api.chat.storing import StoredRequest, choose_storing
from chockstone.api.chat.tool_calls import call_constraint, forced_beginning
from chockstone.api.context import Context
from chockstone.api.tokenizers.tokenizer_process import MAX_PROMPT_CHARACTERS
from chockstone.api.tokenizers.tokenizer_service import TokenizerBusy, TokenizerFailed, TokenizerService
from chockstone.api.users import Caller
from chockstone.engine.config import Busy
from chockstone.extras import is_installed
from chockstone.wire.codecs.sample_request import decode_constraint
from chockstone.wire.failures import BadRequest

MAX_CHOICES: Final = 128


class PromptTooLong(BadRequest):
    """The prompt leaves no room for an answer."""


@dataclass(frozen=True, slots=True)
class _Encoded:
    tokens: tuple[int, ...]
    tool_format: str | None = None  # None: no tools are offered
    begin: str = ""  # the beginning of the answer, which the prompt ends with
    constraint: Mapping[str, Any] | None = None  # Any: plain JSON. Of an answer that must be a call


class ChatService:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._models = ServedModels(context)
        self.tokenizers = TokenizerService()
        self.can_constrain = context.config.sampler != "vllm" and is_installed("llguidance")

    async def find_model(self, caller: Caller, name: str) -> NamedModel:
        """Raises RowMissing or BadRequest for what the caller may not sample from."""
        return await self._models.find(caller, name)

    async def list_models(self, caller: Caller) -> list[ListedModel]:
        return await self._models.list(caller)

    async def count_tokens(self, model: NamedModel, prompt: Prompt) -> int:
        """Of the prompt, as ``start`` would send it to the model."""
        return len((await self._encode(model, prompt)).tokens)

    async def choose_storing(self, caller: Caller, model: NamedModel, request: StoredRequest) -> BeforeEnd | None:
        """What keeps the conversation, for ``start``; None: nothing does. Raises ConversationsFull."""
        return await choose_storing(self._context.engine.conversations, caller, model, request)

    async def start(
        self,
        model: NamedModel,
        prompt: Prompt,
        parameters: GenerationParameters,
        *,
        before_end: BeforeEnd | None = None,
    ) -> TextGeneration:
        """Returns when the first tokens are there: what refuses the request raises before an answer begins.

        ``before_end`` is awaited before the last delta is given.

        Raises BadRequest, Busy, Stalled and ServerFailure. The caller closes the generation.
        """
        self._context.refuse_when_stopping()
        encoded = await self._encode(model, prompt)
        try:
            table = await self.tokenizers.table(model.directory)
        except TokenizerFailed as error:
            raise _refusal(error) from None
        body = _sample_body(model, encoded, parameters)
        stream = await self._context.engine.sampling.stream(model.source, body, num_samples=parameters.choices)
        reading = Reading(
            table=table,
            stop=parameters.stop,
            tool_format=encoded.tool_format,
            begin=encoded.begin,
            single_call=isinstance(prompt, Conversation) and prompt.single_call,
        )
        generation = TextGeneration(
            stream,
            reading,
            prompt_tokens=encoded.tokens,
            choices=parameters.choices,
            waits_for_end=parameters.alternatives > 0,
            before_end=before_end,
        )
        try:
            await generation.begin()
        except BaseException:
            await generation.aclose()
            raise
        return generation

    async def _encode(self, model: NamedModel, prompt: Prompt) -> _Encoded:
        try:
            match prompt:
                case TokenPrompt(tokens):
                    return _Encoded(tokens)
                case PlainPrompt(text):
                    if len(text) > MAX_PROMPT_CHARACTERS:
                        raise PromptTooLong(f"the prompt has more than {MAX_PROMPT_CHARACTERS} characters; send less")
                    return _Encoded((await self.tokenizers.encode(model.directory, text)).tokens)
                case Conversation():
                    return await self._encode_conversation(model, prompt)
        except TokenizerFailed as error:
            raise _refusal(error) from None

    async def _encode_conversation(self, model: NamedModel, prompt: Conversation) -> _Encoded:
        if model.max_context is not None and len(prompt.messages) > model.max_context:  # each is a token at least
            raise PromptTooLong(f"{len(prompt.messages)} messages do not fit the context; shorten the conversation")
        tools, tool_format, begin, constraint = prompt.offered_tools, None, "", None
        if tools:
            tool_format = await self.tokenizers.tool_format(model.directory)
            if tool_format is None:
                raise BadRequest(
                    f"the chat template of base model {model.base_model!r} knows no tools; leave out tools, or use a "
                    f"model whose template writes them"
                )
            if prompt.tool_choice == "required" or isinstance(prompt.tool_choice, NamedTool):
                name = prompt.tool_choice.name if isinstance(prompt.tool_choice, NamedTool) else None
                choices = [tool for tool in tools if name in (None, tool["function"]["name"])]
                constraint = call_constraint(tool_format, choices) if self.can_constrain else None
                begin = "" if constraint is not None else forced_beginning(tool_format, name)
        encoded = await self.tokenizers.encode_conversation(
            model.directory, prompt.messages, tools=tools or None, options=prompt.options, begin=begin
        )
        return _Encoded(encoded.tokens, tool_format, begin, constraint)


def _sample_body(model: NamedModel, encoded: _Encoded, parameters: GenerationParameters) -> bytes:
    """As JSON of an ``asample`` request. Raises BadRequest."""
    prompt, sampling = encoded.tokens, parameters.to_json()
    if model.max_context is not None:
        room = model.max_context - len(prompt)
        if room < 1:
            raise PromptTooLong(
                f"the prompt has {len(prompt)} tokens, and the context of {model.name[:300]!r} is {model.max_context} "
                f"tokens; shorten the prompt"
            )
        if (parameters.max_tokens or 0) >= room:
            del sampling["max_tokens"]
    body: dict[str, Any] = {
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": prompt}]},
        "sampling_params": sampling,
        "num_samples": parameters.choices,
    }
    if parameters.alternatives:
        body["topk_sample_logprobs"] = parameters.alternatives
    constraint = encoded.constraint or parameters.constraint
    if constraint is not None:
        decode_constraint(constraint, "the schema")
        body["constraint"] = constraint
    return orjson.dumps(body)


def _refusal(error: TokenizerFailed) -> Exception:
    return Busy(str(error)) if isinstance(error, TokenizerBusy) else BadRequest(str(error))


def _chat(request: Request) -> ChatService:
    chat: ChatService = request.app.state.chat
    return chat


ChatDep = Annotated[ChatService, Depends(_chat)]
