"""The chat service: from a conversation or a prompt to a generation, through the engine's sampling."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

import orjson
from fastapi import Depends, Request

from chockstone.api.chat.call_constraints import call_constraint, refers_elsewhere, strict_constraint
from chockstone.api.chat.generation import BeforeEnd, Reading, TextGeneration
from chockstone.api.chat.orders import Conversation, GenerationParameters, PlainPrompt, Prompt, TokenPrompt
from chockstone.api.chat.served_model import ListedModel, NamedModel, ServedModels
from chockstone.api.chat.storing import StoredRequest, choose_storing
from chockstone.api.chat.tool_calls import forced_beginning
from chockstone.api.context import Context
from chockstone.api.tokenizers.tokenizer_process import MAX_PROMPT_CHARACTERS
from chockstone.api.tokenizers.tokenizer_service import TextTooLong, TokenizerBusy, TokenizerFailed, TokenizerService
from chockstone.api.users import Caller
from chockstone.engine.config import Busy
from chockstone.engine.conversations import ConversationMissing, KeptConversation
from chockstone.extras import is_installed
from chockstone.wire.codecs.sample_request import decode_constraint
from chockstone.wire.failures import BadParameter, BadRequest

MAX_CHOICES: Final = 128
MAX_ALTERNATIVES: Final = 1 << 21  # of one answer; each takes up to a kilobyte while it is written as JSON


class PromptTooLong(BadRequest):
    """The prompt leaves no room for an answer."""


@dataclass(frozen=True, slots=True)
class _Encoded:
    tokens: tuple[int, ...]
    count: int  # of tokens
    is_exact: bool = True
    tool_format: str | None = None  # None: no tools are offered
    begin: str = ""  # the beginning of a call, which the prompt ends with
    constraint: Mapping[str, Any] | None = None  # Any: plain JSON. Of the calls in the answer


class ChatService:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._models = ServedModels(context)
        self.tokenizers = TokenizerService()
        self.can_constrain = is_installed("llguidance")
        self._samples_by_vllm = context.config.sampler == "vllm"

    async def find_model(self, caller: Caller, name: str) -> NamedModel:
        """Raises ModelMissing or BadRequest for what the caller may not sample from."""
        return await self._models.find(caller, name)

    async def list_models(self, caller: Caller) -> list[ListedModel]:
        return await self._models.list(caller)

    async def count_tokens(self, model: NamedModel, prompt: Prompt) -> int:
        """Of the prompt, as ``start`` would send it to the model."""
        return (await self._encode(model, prompt, counts_only=True)).count

    async def choose_storing(self, caller: Caller, model: NamedModel, request: StoredRequest) -> BeforeEnd | None:
        """What keeps the conversation, for ``start``; None: nothing does. Raises ConversationsFull."""
        return await choose_storing(self._context.engine.conversations, caller, model, request)

    async def stored(self, caller: Caller, conversation_id: str, *, prefix: str) -> KeptConversation:
        """A stored conversation of the caller, whose id begins with ``prefix``. Raises ConversationMissing."""
        _check_prefix(conversation_id, prefix)
        return await self._context.engine.conversations.get(caller.user_id, conversation_id)

    async def delete_stored(self, caller: Caller, conversation_id: str, *, prefix: str) -> None:
        """Delete such a conversation, with its rewards and corrections. Raises ConversationMissing."""
        _check_prefix(conversation_id, prefix)
        await self._context.delete_conversation(caller, conversation_id)

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
            table = await self.tokenizers.table(model.directory, owner=model.source.owner)
        except TokenizerFailed as error:
            raise _refusal(error) from None
        body = await asyncio.to_thread(_sample_body, model, encoded, parameters)
        stream = await self._context.engine.sampling.stream(model.source, body, num_samples=parameters.choices)
        reading = Reading(
            table=table,
            stop=parameters.stop,
            tool_format=encoded.tool_format,
            begin=encoded.begin,
            single_call=isinstance(prompt, Conversation) and prompt.single_call,
            has_begun=isinstance(prompt, Conversation) and bool(prompt.begin.strip()),
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

    async def _encode(self, model: NamedModel, prompt: Prompt, *, counts_only: bool = False) -> _Encoded:
        """Raises PromptTooLong, unless it ``counts_only``: then there are no tokens, and there may be any number."""
        limit = None if model.max_context is None else model.max_context - 1  # the answer has a token at least
        most = 0 if counts_only else limit
        try:
            match prompt:
                case TokenPrompt(tokens):
                    encoded = _Encoded(tokens, len(tokens))
                case PlainPrompt(text):
                    if len(text) > MAX_PROMPT_CHARACTERS:
                        raise TextTooLong(f"the text has more than {MAX_PROMPT_CHARACTERS} characters; send less")
                    found = await self.tokenizers.encode(
                        model.directory, text, most=most, is_exact=counts_only, owner=model.source.owner
                    )
                    encoded = _Encoded(found.tokens, found.count, found.is_exact)
                case Conversation():
                    encoded = await self._encode_conversation(model, prompt, most=most, is_exact=counts_only)
        except TokenizerFailed as error:
            raise _refusal(error) from None
        if limit is not None and encoded.count > limit and not counts_only:
            raise _too_long(encoded.count, limit + 1, is_exact=encoded.is_exact)
        return encoded

    async def _encode_conversation(
        self, model: NamedModel, prompt: Conversation, *, most: int | None, is_exact: bool
    ) -> _Encoded:
        if model.max_context is not None and len(prompt.messages) > model.max_context:  # each is a token at least
            raise _too_long(len(prompt.messages), model.max_context, is_exact=False)
        tools, tool_format, begin, constraint = prompt.offered_tools, None, "", None
        if tools:
            tool_format = await self.tokenizers.tool_format(model.directory, owner=model.source.owner)
            if tool_format is None:
                raise BadRequest(
                    f"the chat template of base model {model.base_model!r} knows no tools; leave out tools, or use a "
                    f"model whose template writes them"
                )
            if prompt.must_call or prompt.strict_tools:  # schemas may be large
                constraint = await asyncio.to_thread(self._call_constraint, prompt, tool_format)
            if prompt.must_call and constraint is None:
                begin = forced_beginning(tool_format, prompt.chosen_tool)
        found = await self.tokenizers.encode_conversation(
            model.directory,
            prompt.messages,
            tools=tools or None,
            options=prompt.options,
            begin=prompt.begin + begin,
            most=most,
            is_exact=is_exact,
            owner=model.source.owner,
        )
        return _Encoded(found.tokens, found.count, found.is_exact, tool_format, begin, constraint)

    def _call_constraint(self, prompt: Conversation, tool_format: str) -> dict[str, Any] | None:  # Any: plain JSON
        """What the answer must be, for its calls to match their schemas; None: any text.

        Raises BadParameter for a strict tool that cannot be held to its schema here.
        """
        tools = prompt.callable_tools
        strict = prompt.strict_tools.intersection(tool["function"]["name"] for tool in tools)
        constraint = None
        if prompt.must_call and self.can_constrain and (strict or not self._samples_by_vllm):
            constraint = call_constraint(tool_format, tools, strict or None)
        elif strict and self.can_constrain:
            constraint = strict_constraint(tool_format, tools, strict, has_text=bool(prompt.begin.strip()))
        if strict and constraint is None:
            held = {tool["function"]["name"]: tool for tool in tools if tool["function"]["name"] in strict}
            name, why = min(held), f"the model writes calls as {tool_format!r}"
            if not self.can_constrain:
                why = "this server has no constrained decoding (its extra 'constrained')"
            elif failed := [each for each, tool in held.items() if refers_elsewhere(tool)]:
                name, why = failed[0], "its schema refers to what is outside of it, or to an anchor or an $id"
            raise BadParameter(f"tool {name!r} cannot be strict here: {why}; leave out strict", param="tools")
        return constraint


def _sample_body(model: NamedModel, encoded: _Encoded, parameters: GenerationParameters) -> bytes:
    """As JSON of an ``asample`` request. Raises BadRequest."""
    prompt, sampling = encoded.tokens, parameters.to_json()
    if model.max_context is not None and (parameters.max_tokens or 0) >= model.max_context - len(prompt):
        del sampling["max_tokens"]
    body: dict[str, Any] = {
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": prompt}]},
        "sampling_params": sampling,
        "num_samples": parameters.choices,
    }
    if parameters.alternatives:
        _check_alternatives(model, parameters, prompt_tokens=len(prompt))
        body["topk_sample_logprobs"] = parameters.alternatives
    constraint = encoded.constraint or parameters.constraint
    if constraint is not None:
        decode_constraint(constraint, "the schema")
        body["constraint"] = constraint
    return orjson.dumps(body)


def _check_alternatives(model: NamedModel, parameters: GenerationParameters, *, prompt_tokens: int) -> None:
    room = math.inf if model.max_context is None else model.max_context - prompt_tokens
    most = min(parameters.max_tokens or math.inf, room)
    if most < math.inf and parameters.choices * most * parameters.alternatives > MAX_ALTERNATIVES:
        raise BadRequest(
            f"{parameters.choices} choices of up to {most} tokens with {parameters.alternatives} alternatives each are "
            f"more than {MAX_ALTERNATIVES} alternatives; ask for fewer choices, tokens or alternatives"
        )


def _check_prefix(conversation_id: str, prefix: str) -> None:
    if not conversation_id.startswith(prefix):
        raise ConversationMissing(conversation_id)


def _too_long(tokens: int, limit: int, *, is_exact: bool) -> PromptTooLong:
    """In the words by which clients know that the conversation must be shortened: Claude Code, inspect-ai, LiteLLM."""
    count = tokens if is_exact else f"at least {tokens}"
    return PromptTooLong(
        f"prompt is too long: {count} tokens > {limit} maximum. This model's maximum context length is {limit}, prompt "
        f"and answer together; shorten the prompt."
    )


def _refusal(error: TokenizerFailed) -> Exception:
    if isinstance(error, TextTooLong):
        return PromptTooLong(f"prompt is too long: {error}")
    return Busy(str(error)) if isinstance(error, TokenizerBusy) else BadRequest(str(error))


def _chat(request: Request) -> ChatService:
    chat: ChatService = request.app.state.chat
    return chat


ChatDep = Annotated[ChatService, Depends(_chat)]
