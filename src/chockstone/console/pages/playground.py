"""The playground: sample from a base model or a checkpoint, two side by side, and look at each token.

A sample is one request whose answer is a stream of lines. Leaving the page closes the stream, which cancels the sample.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import orjson
from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse

from chockstone.api.context import Context, ContextDep
from chockstone.api.tokenizers.tokenizer_service import (
    ChatMessage,
    EncodedPrompt,
    TokenizerFailed,
    TokenizerService,
)
from chockstone.api.users import Caller, CallerDep
from chockstone.catalog import CheckpointRow, RowMissing
from chockstone.catalog.searches.checkpoint_search import CheckpointQuery
from chockstone.console.forms import read_form
from chockstone.console.playground.sampling import (
    PlaygroundSampling,
    Sampled,
    SampledToken,
    SampleOrder,
    SampleRefused,
    SampleWaiting,
)
from chockstone.console.views import Views, ViewsDep
from chockstone.wire.failures import BadRequest
from chockstone.wire.paths import Kind

routes = APIRouter(prefix="/playground")
_LISTED: Final = 50  # checkpoints in the menu
_MOST_CHARACTERS: Final = 200_000  # of a prompt
_MOST_MESSAGES: Final = 60
_MOST_TOKENS: Final = 4096  # of an answer
_MOST_STOPS: Final = 16
_ROLES: Final = ("system", "user", "assistant")
_SHADES: Final = ((-0.1, 0), (-0.5, 1), (-1.0, 2), (-2.0, 3), (-3.5, 4), (-5.0, 5))  # logprob from which on, shade


@dataclass(frozen=True, slots=True)
class Choice:
    """A model or a checkpoint that can be sampled from."""

    value: str
    label: str
    note: str


@dataclass(frozen=True, slots=True)
class ShownToken:
    text: str
    token: int
    logprob: float
    probability: float  # in percent
    shade: int  # 0: sure, 6: a surprise
    alternatives: tuple[tuple[str, float], ...]  # text, probability in percent

    @property
    def label(self) -> str:
        """For a token that shows nothing."""
        return f"token {self.token}, {self.probability:.2g} %"

    @property
    def details(self) -> str:
        """For the script of the page."""
        return orjson.dumps(
            {
                "text": self.text,
                "token": self.token,
                "logprob": round(self.logprob, 4),
                "percent": round(self.probability, 2),
                "others": [[text, round(percent, 2)] for text, percent in self.alternatives],
            }
        ).decode()


@dataclass(frozen=True, slots=True)
class Answer:
    tokens: tuple[ShownToken, ...]
    text: str
    stop_reason: str
    prompt_tokens: int
    cached_tokens: int
    mean_logprob: float | None
    perplexity: float | None
    prompt: str  # as the model got it


@dataclass(frozen=True, slots=True)
class Source:
    """What a form asks to sample from."""

    directory: Path
    base_model: str | None = None
    model_path: str | None = None


def _tokenizers(request: Request) -> TokenizerService:
    tokenizers: TokenizerService = request.app.state.tokenizers
    return tokenizers


def _sampling(request: Request) -> PlaygroundSampling:
    sampling: PlaygroundSampling = request.app.state.playground
    return sampling


TokenizersDep = Annotated[TokenizerService, Depends(_tokenizers)]
SamplingDep = Annotated[PlaygroundSampling, Depends(_sampling)]


@routes.get("")
async def show(
    request: Request,
    context: ContextDep,
    caller: CallerDep,
    views: ViewsDep,
    path: Annotated[str, Query(max_length=600)] = "",
    model: Annotated[str, Query(max_length=300)] = "",
) -> Response:
    choices = await list_choices(context, caller)
    chosen, problem = path or model, None
    if chosen:
        try:
            await find_source(context, caller, chosen)
        except (BadRequest, RowMissing) as error:
            chosen, problem = "", str(error)
    first = chosen or (choices[0].value if choices else "")
    return await views.page(
        request,
        "playground",
        choices=choices,
        chosen=first,
        is_listed=any(choice.value == first for choice in choices),
        problem=problem,
        most_tokens=_MOST_TOKENS,
    )


@routes.get("/model")
async def describe_model(
    context: ContextDep,
    caller: CallerDep,
    tokenizers: TokenizersDep,
    source: Annotated[str, Query(max_length=600)],
) -> dict[str, Any]:
    """Whether the model has a chat template: the page then offers messages."""
    found = await find_source(context, caller, source)
    try:
        facts = await tokenizers.describe(found.directory)
    except TokenizerFailed as error:
        return {"chat": False, "problem": str(error)}
    return {"chat": facts.has_chat_template, "problem": None}


@routes.post("/sample")
async def sample(
    request: Request,
    context: ContextDep,
    caller: CallerDep,
    views: ViewsDep,
    tokenizers: TokenizersDep,
    sampling: SamplingDep,
) -> Response:
    """Lines of JSON: ``{"state": "waiting", "why": …}``, at last ``{"state": "done" or "failed", "html": …}``."""
    form = await read_form(request)
    source = await find_source(context, caller, form.get("source", ""))
    messages, text = read_prompt(form)
    try:
        if messages is None:
            prompt = await tokenizers.encode(source.directory, text)
        else:
            prompt = await tokenizers.encode_chat(source.directory, messages)
    except TokenizerFailed as error:
        raise BadRequest(str(error)) from None
    order = read_order(form, source, prompt.tokens)
    lines = _lines(request, views, tokenizers, sampling, caller, source, prompt, order)
    return StreamingResponse(lines, media_type="application/x-ndjson", headers={"X-Accel-Buffering": "no"})


async def _lines(
    request: Request,
    views: Views,
    tokenizers: TokenizerService,
    sampling: PlaygroundSampling,
    caller: Caller,
    source: Source,
    prompt: EncodedPrompt,
    order: SampleOrder,
) -> AsyncIterator[bytes]:
    async with aclosing(sampling.sample(caller, order)) as events:
        async for event in events:
            match event:
                case SampleWaiting(reason):
                    yield _line(state="waiting", why=reason)
                case SampleRefused(error):
                    html = await views.piece(request, "playground_failed", error=error)
                    yield _line(state="failed", html=html)
                case Sampled():
                    try:
                        answer = await decode(tokenizers, source, prompt, event)
                        html = await views.piece(request, "playground_answer", answer=answer)
                    except TokenizerFailed as error:
                        html = await views.piece(request, "playground_failed", error=str(error))
                        yield _line(state="failed", html=html)
                        continue
                    yield _line(state="done", html=html, text=answer.text)


async def decode(tokenizers: TokenizerService, source: Source, prompt: EncodedPrompt, found: Sampled) -> Answer:
    others = sorted({token for each in found.tokens for token, _ in each.alternatives})
    decoded = await tokenizers.decode(source.directory, [each.token for each in found.tokens], singles=others)
    pieces = zip(found.tokens, decoded.pieces, strict=True)
    tokens = tuple(_shown(each, piece, decoded.singles) for each, piece in pieces)
    logprobs = [each.logprob for each in found.tokens if math.isfinite(each.logprob)]
    mean = sum(logprobs) / len(logprobs) if logprobs else None
    return Answer(
        tokens=tokens,
        text="".join(decoded.pieces),
        stop_reason=found.stop_reason,
        prompt_tokens=len(prompt.tokens),
        cached_tokens=found.cached_tokens,
        mean_logprob=mean,
        perplexity=None if mean is None else math.exp(min(50.0, -mean)),
        prompt=prompt.text,
    )


async def list_choices(context: Context, caller: Caller) -> list[Choice]:
    """Served models, then the caller's newest checkpoints of these models, then published ones."""
    choices = [Choice(name, name, "base model") for name in sorted(context.models)]
    for public in (None, True):
        query = CheckpointQuery(
            owner=caller.user_id if public is None else None,
            kinds=("weights", "sampler_weights"),
            state="ready",
            public=public,
            base_models=sorted(context.models),
            limit=_LISTED,
        )
        rows = (await context.catalog.checkpoint_search.find(query, now=context.now())).rows
        known = {choice.value for choice in choices}
        choices += [_choice(row, caller) for row in rows if row.path not in known]
    return choices


async def find_source(context: Context, caller: Caller, value: str) -> Source:
    """Raises BadRequest or RowMissing for what the caller may not sample from."""
    if not value:
        raise BadRequest("choose a model or a checkpoint to sample from")
    if not value.startswith("tinker://"):
        return Source(context.model(value).directory, base_model=value)
    row = (await context.checkpoint(value, caller, kinds=(Kind.WEIGHTS, Kind.SAMPLER_WEIGHTS))).row
    return Source(context.model(row.base_model).directory, model_path=row.path)


def read_prompt(form: Mapping[str, str]) -> tuple[tuple[ChatMessage, ...] | None, str]:
    """The messages of a chat, or None and a plain prompt. Raises BadRequest."""
    if form.get("mode") != "chat":
        return None, _text(form.get("prompt", ""), "the prompt")
    messages = []
    for number in range(_MOST_MESSAGES + 1):
        if (content := form.get(f"content-{number}")) is None:
            continue
        if (role := form.get(f"role-{number}", "user")) not in _ROLES:
            raise BadRequest(f"{role[:80]!r} is not a role of a message; there are {', '.join(_ROLES)}")
        if number == _MOST_MESSAGES:
            raise BadRequest(f"a conversation has at most {_MOST_MESSAGES} messages here")
        if content.strip():
            messages.append(ChatMessage(role, content))
    if not messages:
        raise BadRequest("write a message first")
    _text("".join(message.content for message in messages), "the conversation")
    return tuple(messages), ""


def read_order(form: Mapping[str, str], source: Source, prompt: tuple[int, ...]) -> SampleOrder:
    """Raises BadRequest."""
    stop = tuple(each for each in form.get("stop", "").split("\n") if each.strip())
    if len(stop) > _MOST_STOPS:
        raise BadRequest(f"there are {len(stop)} stop texts; {_MOST_STOPS} are allowed")
    seed = form.get("seed", "").strip()
    return SampleOrder(
        prompt=prompt,
        base_model=source.base_model,
        model_path=source.model_path,
        max_tokens=round(_number(form, "max_tokens", 128, low=1, high=_MOST_TOKENS)),
        temperature=_number(form, "temperature", 1.0, low=0, high=10),
        top_p=_number(form, "top_p", 1.0, low=0.001, high=1),
        seed=None if not seed else round(_number(form, "seed", 0, low=0, high=2**53)),
        stop=stop,
    )


def shade_of(logprob: float) -> int:
    return next((shade for least, shade in _SHADES if logprob >= least), 6)


def _shown(found: SampledToken, piece: str, texts: Mapping[int, str]) -> ShownToken:
    return ShownToken(
        piece,
        found.token,
        found.logprob,
        _percent(found.logprob),
        shade_of(found.logprob),
        tuple((texts[token] or f"token {token}", _percent(logprob)) for token, logprob in found.alternatives),
    )


def _percent(logprob: float) -> float:
    return 100 * math.exp(min(0.0, logprob)) if not math.isnan(logprob) else 0.0


def _choice(row: CheckpointRow, caller: Caller) -> Choice:
    whose = "" if row.owner == caller.user_id else f" of {row.owner}"
    return Choice(row.path, f"{row.name} ({row.run_id[:8]})", f"{row.base_model}{whose}")


def _text(text: str, what: str) -> str:
    if not text.strip():
        raise BadRequest(f"{what} is empty; write something for the model to continue")
    if len(text) > _MOST_CHARACTERS:
        raise BadRequest(f"{what} has {len(text):,} characters; the playground takes {_MOST_CHARACTERS:,}")
    return text


def _number(form: Mapping[str, str], name: str, default: float, *, low: float, high: float) -> float:
    text = form.get(name, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise BadRequest(f"{name.replace('_', ' ')} is {text[:40]!r}; it must be between {low:g} and {high:g}")
    return value


def _line(**values: object) -> bytes:
    return orjson.dumps(values) + b"\n"
