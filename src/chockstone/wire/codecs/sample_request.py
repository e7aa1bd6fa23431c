"""Sample requests: the JSON of an asample call as a checked SampleRequest.

The API accepts a request by ``peek_sample``; the sampler decodes it by ``decode_sample``.
Unknown fields are let pass: clients older and newer than this server send them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from chockstone.wire.codecs import tensors
from chockstone.wire.codecs.json_values import (
    HIGHEST,
    describe,
    read_bool,
    read_integer,
    read_integers,
    read_number,
    read_object,
    read_text,
)
from chockstone.wire.codecs.pass_request import MAX_TOKEN, tokens_from_json
from chockstone.wire.codecs.samples import Constraint, SampleRequest, SamplingParams, Targets
from chockstone.wire.failures import BadRequest

MAX_NUM_SAMPLES: Final = 4096
LOWEST_TEMPERATURE: Final = 1e-20  # logits divided by less are not finite in float32
MAX_ALTERNATIVES: Final = 1024
MAX_ALTERNATIVE_CELLS: Final = 1 << 24  # positions times alternatives: 8 bytes each in the answer
MAX_STOPS: Final = 256
MAX_STOP_CHARACTERS: Final = 10_000
MAX_INT32: Final = 2**31 - 1
MAX_IDENTIFIER_CHARACTERS: Final = 1000
MAX_SCHEMA_CHARACTERS: Final = 128 << 10  # of its JSON, without spaces
MAX_SCHEMA_VALUES: Final = 10_000  # objects, lists, texts and numbers in it
MAX_SCHEMA_DEPTH: Final = 64
MAX_PROPERTIES: Final = 1000  # of one object: the time to compile them grows with their square
MAX_FIXED_CHARACTERS: Final = 1000
_KNOWN: Final = {"bare", "json_object", "json_schema", "mark", "prefix", "suffix"}
_ANY_OBJECT: Final = '{"type":"object"}'


@dataclass(frozen=True, slots=True)
class SampleHead:
    """What must be known of a sample to accept it: who is to answer, and how many sequences.

    Either ``sampling_session_id`` and ``seq_id`` are given, or one of ``model_path`` and ``base_model``.
    """

    sampling_session_id: str | None
    seq_id: int | None
    base_model: str | None
    model_path: str | None
    num_samples: int
    prompt_tokens: int = 0  # of a prompt that is wrong: any number
    max_tokens: int | None = None  # likewise

    def check_context(self, limit: int) -> None:
        """Raises BadRequest for more than a context of ``limit`` tokens can hold."""
        asked = 1 if self.max_tokens is None else self.max_tokens
        is_scored_only = self.prompt_tokens == limit and self.max_tokens == 1  # what is sampled is never read
        if self.prompt_tokens + asked > limit and not is_scored_only:
            raise BadRequest(
                f"this is longer than the context: {self.prompt_tokens} prompt tokens + {asked} max_tokens > {limit}; "
                f"shorten the prompt or ask for fewer tokens"
            )


def peek_sample(value: object) -> SampleHead:
    fields = read_object(value, "the body")
    head = SampleHead(
        sampling_session_id=_read_optional_text(fields, "sampling_session_id"),
        seq_id=_read_optional_integer(fields, "seq_id", low=0, high=HIGHEST),
        base_model=_read_optional_text(fields, "base_model"),
        model_path=_read_optional_text(fields, "model_path"),
        num_samples=_read_num_samples(fields),
        prompt_tokens=_count_tokens(fields.get("prompt")),
        max_tokens=_peek_max_tokens(fields.get("sampling_params")),
    )
    if head.sampling_session_id is not None and head.seq_id is None:
        raise BadRequest("seq_id is missing. It is needed with sampling_session_id.")
    if head.sampling_session_id is None and head.base_model is None and head.model_path is None:
        raise BadRequest("sampling_session_id is missing. Create a sampling session and name it with a seq_id.")
    decode_constraint(fields.get("constraint"), "constraint")  # too large a schema is never recorded
    return head


def _count_tokens(prompt: object) -> int:
    """Without a look at the tokens, which ``decode_sample`` checks."""
    chunks = prompt.get("chunks") if isinstance(prompt, dict) else None
    found = (
        [chunk.get("tokens") for chunk in chunks or () if isinstance(chunk, dict)] if isinstance(chunks, list) else []
    )
    return sum(len(tokens) for tokens in found if isinstance(tokens, list))


def _peek_max_tokens(params: object) -> int | None:
    found = params.get("max_tokens") if isinstance(params, dict) else None
    return found if isinstance(found, int) and found > 0 else None


def decode_sample(value: object) -> SampleRequest:
    fields = read_object(value, "the body")
    prompt = tokens_from_json(fields.get("prompt"), "prompt")
    prompt_logprobs = _read_flag(fields, "prompt_logprobs")
    last_n = _read_optional_integer(fields, "prompt_logprobs_last_n", low=1, high=HIGHEST)
    if last_n is not None and not prompt_logprobs:
        raise BadRequest("prompt_logprobs_last_n applies to prompt_logprobs. Set that to true as well.")
    if last_n is not None and last_n >= prompt.size:
        raise BadRequest(
            f"prompt_logprobs_last_n is {last_n}, but of a prompt of {prompt.size} tokens only the last "
            f"{prompt.size - 1} can be scored. Leave it out to score them all."
        )
    topk_prompt_logprobs = _read_alternatives(fields, "topk_prompt_logprobs", positions=prompt.size)
    return SampleRequest(
        prompt=prompt,
        num_samples=_read_num_samples(fields),
        params=_read_params(fields.get("sampling_params")),
        prompt_logprobs=prompt_logprobs or topk_prompt_logprobs > 0,  # other servers' answers hold both
        prompt_logprobs_last_n=last_n,
        topk_prompt_logprobs=topk_prompt_logprobs,
        topk_sample_logprobs=_read_alternatives(fields, "topk_sample_logprobs", positions=1),
        prompt_alt_tokens_k=_read_alternatives(fields, "prompt_alt_tokens_k", positions=prompt.size),
        targets=_read_targets(fields.get("target_prompt_logprobs"), positions=prompt.size - 1),
        constraint=decode_constraint(fields.get("constraint"), "constraint"),
    )


def limit_context(request: SampleRequest, max_context: int | None) -> SampleRequest:
    """The request within a context that may be shorter than the model's own; None is no limit.

    Raises BadRequest for a request that needs more.
    """
    if max_context is None:
        return request
    length, wanted = request.prompt.size, request.params.max_tokens
    space = max_context - length
    if space == 0 and wanted == 1:
        return request  # to score a full context: what follows its last token is sampled and never read
    if space < 1 or (wanted is not None and wanted > space):
        asked = "" if wanted is None else f" and max_tokens={wanted}"
        raise BadRequest(
            f"a prompt of {length} tokens{asked} does not fit the context of {max_context} that the model's name asks "
            f"for; shorten the prompt{'' if wanted is None else ', ask for fewer tokens'} or name the model without it"
        )
    return request if wanted is not None else replace(request, params=replace(request.params, max_tokens=space))


def _read_params(value: object) -> SamplingParams:
    fields = read_object({} if value is None else value, "sampling_params")
    temperature = read_number(_given(fields, "temperature", 1.0), "temperature")
    if temperature < 0:
        raise BadRequest(f"temperature must not be negative, not {temperature}. 0 takes the most likely token.")
    if 0 < temperature < LOWEST_TEMPERATURE:
        raise BadRequest(
            f"temperature must be 0 or at least {LOWEST_TEMPERATURE}, not {temperature}. 0 takes the most likely token."
        )
    top_p = read_number(_given(fields, "top_p", 1.0), "top_p")
    if not 0 < top_p <= 1:
        raise BadRequest(f"top_p must be above 0 and at most 1, not {top_p}. 1 turns it off.")
    strings, tokens = _read_stop(fields.get("stop"))
    return SamplingParams(
        max_tokens=_read_optional_integer(fields, "max_tokens", low=1, high=MAX_INT32),
        seed=_read_optional_integer(fields, "seed", low=-(2**63), high=2**64 - 1),
        stop_strings=strings,
        stop_tokens=tokens,
        stops_at_eos=fields.get("stop") != [],  # stops are in addition to EOS; an empty list is none at all
        temperature=temperature,
        top_k=read_integer(_given(fields, "top_k", -1), "top_k", low=-1, high=MAX_INT32) or -1,  # 0 is off, too
        top_p=top_p,
    )


def _read_stop(stop: object) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Stop strings and stop tokens. One string, a list of strings or a list of token ids."""
    if stop is None:
        return (), ()
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list):
        raise BadRequest(f"stop must be a string, a list of strings or a list of token ids, not {describe(stop)}.")
    if len(stops) > MAX_STOPS:
        raise BadRequest(f"stop has {len(stops)} entries, more than {MAX_STOPS}.")
    if not any(isinstance(entry, str) for entry in stops):
        return (), tuple(read_integers(stops, "stop", low=0, high=MAX_TOKEN).tolist())
    for index, entry in enumerate(stops):
        if len(read_text(entry, f"stop[{index}]")) > MAX_STOP_CHARACTERS:
            raise BadRequest(f"stop[{index}] has {len(entry)} characters, more than {MAX_STOP_CHARACTERS}.")
    return tuple(stops), ()


def _read_targets(value: object, *, positions: int) -> Targets | None:
    if value is None:
        return None
    name = "target_prompt_logprobs"
    tensor = tensors.from_json(value, where=name)
    if tensor.values.dtype != np.int64:
        raise BadRequest(f"{name}: dtype must be 'int64', the tokens to score.")
    if tensor.shape is None or len(tensor.shape) != 2 or tensor.shape[0] != positions:
        raise BadRequest(
            f"{name}: shape must be [{positions}, K], one row for each prompt token but the first, "
            f"not {describe(None) if tensor.shape is None else list(tensor.shape)[:10]}."
        )
    if tensor.shape[1] > MAX_ALTERNATIVES and tensor.csr is None:
        raise BadRequest(f"{name}: {tensor.shape[1]} tokens per position are more than {MAX_ALTERNATIVES}.")
    tokens = tensor.spread(where=name, limit_bytes=8 * MAX_ALTERNATIVE_CELLS, fill=-1).astype(np.int64, copy=False)
    if tokens.size and (tokens.min() < -1 or tokens.max() > MAX_TOKEN):
        raise BadRequest(f"{name}: tokens must be between 0 and {MAX_TOKEN}, or -1 for none.")
    return Targets(tokens=tokens, is_sparse=tensor.csr is not None)


def _read_num_samples(fields: dict[str, Any]) -> int:
    return read_integer(_given(fields, "num_samples", 1), "num_samples", low=1, high=MAX_NUM_SAMPLES)


def _read_alternatives(fields: dict[str, Any], name: str, *, positions: int) -> int:
    count = read_integer(_given(fields, name, 0), name, low=0, high=MAX_ALTERNATIVES)
    if count * positions > MAX_ALTERNATIVE_CELLS:
        raise BadRequest(
            f"{name} is {count} over {positions} positions, more than {MAX_ALTERNATIVE_CELLS} in all. Ask for fewer."
        )
    return count


def _read_flag(fields: dict[str, Any], name: str) -> bool:
    return read_bool(_given(fields, name, False), name)


def _read_optional_integer(fields: dict[str, Any], name: str, *, low: int, high: int) -> int | None:
    value = fields.get(name)
    return None if value is None else read_integer(value, name, low=low, high=high)


def _read_optional_text(fields: dict[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is None:
        return None
    text = read_text(value, name)
    if len(text) > MAX_IDENTIFIER_CHARACTERS or "\0" in text:
        raise BadRequest(f"{name} must have at most {MAX_IDENTIFIER_CHARACTERS} characters and no NUL.")
    return text


def _given(fields: dict[str, Any], name: str, default: object) -> object:
    value = fields.get(name)
    return default if value is None else value


def decode_constraint(value: object, name: str) -> Constraint | None:
    """``{"json_object": true}`` or ``{"json_schema": {...}}``, perhaps with ``prefix``, ``suffix``, ``mark`` and
    ``bare``; None is none. Raises BadRequest.
    """
    if value is None:
        return None
    fields = read_object(value, name)
    if unknown := sorted(set(fields) - _KNOWN):
        raise BadRequest(f"{name} has the unknown field {unknown[0]!r:.80}. It has {', '.join(sorted(_KNOWN))}.")
    schema = fields.get("json_schema")
    if (schema is None) == (fields.get("json_object") is None):
        raise BadRequest(f"{name} must have either json_object or json_schema.")
    if schema is None and fields["json_object"] is not True:
        raise BadRequest(f"{name}.json_object must be true, not {describe(fields['json_object'])}.")
    prefix, suffix, mark = (_read_fixed(fields, key, name) for key in ("prefix", "suffix", "mark"))
    is_bare = read_bool(_given(fields, "bare", False), f"{name}.bare")
    if not prefix.startswith(mark):
        raise BadRequest(f"{name}.prefix must begin with {name}.mark, {mark[:80]!r}.")
    if is_bare and not mark:
        raise BadRequest(f"{name}.bare needs {name}.mark.")
    encoded = _ANY_OBJECT if schema is None else _encode_schema(schema, f"{name}.json_schema")
    return Constraint(encoded, prefix, suffix, mark, is_bare)


def _encode_schema(schema: object, name: str) -> str:
    _check_size(read_object(schema, name), name)
    text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    if len(text) > MAX_SCHEMA_CHARACTERS:
        raise BadRequest(f"{name} has {len(text)} characters, more than {MAX_SCHEMA_CHARACTERS}. Make it smaller.")
    return text


def _check_size(schema: dict[str, Any], name: str) -> None:
    """Does not recurse: a schema may be as deep as its sender likes."""
    level: list[object] = [schema]
    values, depth = 0, 0
    while level:
        values, depth = values + len(level), depth + 1
        if depth > MAX_SCHEMA_DEPTH:
            raise BadRequest(f"{name} is nested more than {MAX_SCHEMA_DEPTH} levels deep. Make it flatter.")
        if values > MAX_SCHEMA_VALUES:
            raise BadRequest(f"{name} has more than {MAX_SCHEMA_VALUES} values. Make it smaller.")
        below: list[object] = []
        for value in level:
            if isinstance(value, dict):
                if len(value) > MAX_PROPERTIES:
                    raise BadRequest(
                        f"{name} has an object of {len(value)} properties, more than {MAX_PROPERTIES}. Make it smaller."
                    )
                below.extend(value.values())
            elif isinstance(value, list):
                below.extend(value)
        level = below


def _read_fixed(fields: dict[str, Any], key: str, name: str) -> str:
    text = read_text("" if fields.get(key) is None else fields[key], f"{name}.{key}", may_be_empty=True)
    if len(text) > MAX_FIXED_CHARACTERS:
        raise BadRequest(f"{name}.{key} has {len(text)} characters, more than {MAX_FIXED_CHARACTERS}.")
    return text
