"""The tokenizer of a made model: bytes, then common letters joined, then the special tokens of its family.

Nothing is trained or downloaded. Any text survives the way there and back, and every id below the
vocabulary's size stands for something, so that whatever a random model says can be shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, product
from typing import Any, Final

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing

from chockstone.cli.models.shape import Architecture

_LETTERS: Final = "etaoinshrdlcumwfgypbvkjxqz"  # the commonest first
_SPACE: Final = "\u0120"  # how byte-level vocabularies write it

_CHATML: Final = """\
{%- if tools %}
{{- '<|im_start|>system\\nTools:\\n' }}
{%- for tool in tools %}
{{- (tool | tojson) + '\\n' }}
{%- endfor %}
{{- 'Call one as <tool_call>\\n{"name": NAME, "arguments": OBJECT}\\n</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{%- set called = {'name': call.function.name, 'arguments': call.function.arguments} %}
{{- '<tool_call>\\n' + (called | tojson) + '\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}
{{- '<think>\\n\\n</think>\\n\\n' }}
{%- endif %}
{%- endif %}
"""

_HEADERS: Final = """\
{{- bos_token }}
{%- for message in messages %}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}
{{- (message.content or '') | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""


@dataclass(frozen=True, slots=True)
class Family:
    """What the tokenizers of one architecture share."""

    special: tuple[str, ...]
    words: tuple[str, ...]  # one token each, but shown when special ones are skipped
    begin: str | None  # opens every text
    end_of_turn: str
    ends: tuple[str, ...]  # any of these ends a generation
    padding: str
    chat_template: str


FAMILIES: Final[Mapping[Architecture, Family]] = {
    "qwen3": Family(
        special=("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        words=("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
        begin=None,
        end_of_turn="<|im_end|>",
        ends=("<|im_end|>", "<|endoftext|>"),
        padding="<|endoftext|>",
        chat_template=_CHATML,
    ),
    "llama": Family(
        special=(
            "<|begin_of_text|>",
            "<|end_of_text|>",
            "<|finetune_right_pad_id|>",
            "<|start_header_id|>",
            "<|end_header_id|>",
            "<|eom_id|>",
            "<|eot_id|>",
            "<|python_tag|>",
        ),
        words=(),
        begin="<|begin_of_text|>",
        end_of_turn="<|eot_id|>",
        ends=("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
        padding="<|finetune_right_pad_id|>",
        chat_template=_HEADERS,
    ),
}


def smallest_vocabulary(family: Family) -> int:
    return 256 + len(family.special) + len(family.words)


def build_tokenizer(family: Family, *, vocab_size: int) -> Tokenizer:
    """Exactly ``vocab_size`` tokens, at least ``smallest_vocabulary``; the special ones have the last ids."""
    vocabulary = {symbol: index for index, symbol in enumerate(sorted(ByteLevel.alphabet()))}
    merges: list[tuple[str, str]] = []
    for left, right in islice(_joins(), vocab_size - smallest_vocabulary(family)):
        merges.append((left, right))
        vocabulary[left + right] = len(vocabulary)
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in family.special])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in family.words])
    if family.begin is not None:
        begin_id = tokenizer.token_to_id(family.begin)
        tokenizer.post_processor = TemplateProcessing(
            single=[family.begin, "$A"],
            pair=[family.begin, "$A", f"{family.begin}:1", "$B:1"],
            special_tokens=[(family.begin, begin_id)],
        )
    return tokenizer


def tokenizer_config(family: Family, *, longest: int) -> dict[str, Any]:  # Any: JSON
    """What ``tokenizer_config.json`` says. ``longest``: how many tokens the model can look at."""
    begin = {} if family.begin is None else {"bos_token": family.begin}
    return {
        **begin,
        "clean_up_tokenization_spaces": False,
        "eos_token": family.end_of_turn,
        "model_max_length": longest,
        "pad_token": family.padding,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }


def _joins() -> Iterator[tuple[str, str]]:
    """What is joined to one token, in order: a space and a letter, two letters, two pairs of letters."""
    for letter in _LETTERS:
        yield _SPACE, letter
    pairs = sorted(product(_LETTERS, _LETTERS), key=lambda pair: sum(map(_LETTERS.index, pair)))
    yield from pairs
    joined = ["".join(pair) for pair in pairs]
    for total in range(2 * len(joined) - 1):  # diagonal by diagonal: common with common comes first
        for first in range(max(0, total - len(joined) + 1), min(total, len(joined) - 1) + 1):
            yield joined[first], joined[total - first]
