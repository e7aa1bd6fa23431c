"""The tokenizer process: encodes prompts and decodes tokens with the tokenizers of served models.

Runs as a script of its own. Reads one JSON request per line from standard input and writes one JSON reply per line;
ends when standard input ends. Imports nothing of ours, and never torch or transformers.
"""

from __future__ import annotations

import base64
import json
import os
import resource
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from jinja2 import Template
    from tokenizers import Tokenizer

MAX_PROMPT_CHARACTERS: Final = 4_000_000  # of a rendered chat template
_KEPT: Final = 4  # tokenizers in memory
_MEMORY_BYTES: Final = 4 << 30
_LONGEST_CHARACTER: Final = 6  # tokens that one character may take; more are no text
_LIKELY_CHARACTERS: Final = 16  # of a token, at most on average; longer text is first counted in pieces
_PIECE: Final = 1 << 16  # characters
_CUT_TOKENS: Final = 16  # that a piece may have more because it was cut from its neighbours
_UNKNOWN: Final = "\ufffd"
_SPECIAL: Final = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class TokenizerProblem(Exception):
    """What is wrong, for the person who asked."""


class TooMuchText(TokenizerProblem):
    pass


@dataclass(frozen=True, slots=True)
class LoadedTokenizer:
    tokenizer: Tokenizer
    chat_template: Template | None
    special_tokens: Mapping[str, str]
    tool_format: str | None = None  # how the template has the model write calls of tools; None: it knows no tools

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def encode_within(
        self, text: str, *, add_special_tokens: bool, most: int | None, is_exact: bool
    ) -> dict[str, Any]:  # Any: plain JSON
        """The tokens, unless there are more than ``most``, and their number. The number of far more may be a part of
        it, which takes less time, unless it is to be exact.
        """
        if most is not None and not is_exact and (count := self._count_roughly(text, most)) > most:
            return {"tokens": [], "count": count, "is_exact": False}
        tokens = self.encode(text, add_special_tokens=add_special_tokens)
        given = tokens if most is None or len(tokens) <= most else []
        return {"tokens": given, "count": len(tokens), "is_exact": True}

    def _count_roughly(self, text: str, most: int) -> int:
        """As many tokens as the text has at least; 0: it is too short to tell."""
        count = 0
        if len(text) > max(most * _LIKELY_CHARACTERS, _PIECE):
            for begin in range(0, len(text), _PIECE):
                piece = self.encode(text[begin : begin + _PIECE], add_special_tokens=False)
                count += max(len(piece) - _CUT_TOKENS, 0)
                if count > most:
                    break
        return count

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],  # Any: plain JSON
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,  # Any: as above
        options: Mapping[str, Any] | None = None,  # Any: as above
    ) -> str:
        """The messages as the chat template writes them, with the beginning of the answer. ``options``: variables of
        the template, such as ``enable_thinking``.
        """
        if self.chat_template is None:
            raise TokenizerProblem("the model's tokenizer has no chat template; use a plain prompt")
        parts: list[str] = []
        size = 0
        try:
            stream = self.chat_template.generate(
                **{
                    **(options or {}),
                    **self.special_tokens,
                    "messages": messages,
                    "tools": tools,
                    "add_generation_prompt": True,
                    "documents": None,
                }
            )
            for part in stream:
                size += len(part)
                if size > MAX_PROMPT_CHARACTERS:
                    raise TooMuchText(f"the chat template wrote more than {MAX_PROMPT_CHARACTERS} characters")
                parts.append(part)
        except TokenizerProblem:
            raise
        except Exception as error:  # noqa: BLE001  # the template is the model's own code
            raise TokenizerProblem(f"the chat template refuses these messages: {str(error)[:500]}") from None
        return "".join(parts)

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """The text that each token adds. A token that ends within a character adds nothing; the last one adds all."""
        found: list[str] = []
        begin = shown = 0
        for position in range(len(tokens)):
            before = self._decode(tokens[begin:shown])
            text = self._decode(tokens[begin : position + 1])
            is_partial = text.endswith(_UNKNOWN) and position + 1 - shown < _LONGEST_CHARACTER
            if is_partial and position + 1 < len(tokens):
                found.append("")
                continue
            found.append(text[len(before) :])
            begin, shown = shown, position + 1
        return found

    def table(self) -> dict[str, Any]:  # Any: plain JSON
        """The bytes of each token, one after the other, their lengths, and the text of the special ones."""
        added = self.tokenizer.get_added_tokens_decoder()
        to_bytes = _bytes_of_tokens(self.tokenizer)
        size = max(self.tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        pieces = [added[token].content.encode() if token in added else to_bytes(token) for token in range(size)]
        return {
            "bytes": base64.b64encode(b"".join(pieces)).decode(),
            "lengths": [len(piece) for piece in pieces],
            "special": {str(token): found.content for token, found in added.items() if found.special},
        }

    def singles(self, tokens: Sequence[int]) -> list[str]:
        return [self._decode([token]) for token in tokens]

    def _decode(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=False)) if tokens else ""


class TokenizerCache:
    def __init__(self) -> None:
        self._loaded: OrderedDict[str, LoadedTokenizer] = OrderedDict()

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:  # Any: plain JSON
        loaded = self._get(str(request["directory"]))
        match request["do"]:
            case "describe":
                return {"chat": loaded.chat_template is not None, "vocabulary": loaded.tokenizer.get_vocab_size()}
            case "tools":
                return {"format": loaded.tool_format}
            case "table":
                return loaded.table()
            case "encode":
                return _encoded(loaded, request, request["text"], adds_special=request.get("adds_special", True))
            case "encode_chat":
                text = loaded.render(
                    request["messages"], tools=request.get("tools"), options=request.get("options")
                ) + request.get("begin", "")
                return _encoded(loaded, request, text, adds_special=False)
            case "decode":
                return {"pieces": loaded.pieces(request["tokens"]), "singles": loaded.singles(request["singles"])}
            case other:
                raise TokenizerProblem(f"{other!r} is no request of the tokenizer process")

    def _get(self, directory: str) -> LoadedTokenizer:
        if (loaded := self._loaded.get(directory)) is None:
            loaded = self._loaded[directory] = load(Path(directory))
            if len(self._loaded) > _KEPT:
                self._loaded.popitem(last=False)
        self._loaded.move_to_end(directory)
        return loaded


def _encoded(
    loaded: LoadedTokenizer, request: Mapping[str, Any], text: str, *, adds_special: bool
) -> dict[str, Any]:  # Any: plain JSON
    most = request.get("most")
    found = loaded.encode_within(
        text, add_special_tokens=adds_special, most=most, is_exact=request.get("is_exact", False)
    )
    return {**found, "text": text if most is None else ""}


def load(directory: Path) -> LoadedTokenizer:
    """Raises TokenizerProblem for a directory without a tokenizer that can be read."""
    from tokenizers import Tokenizer

    file = directory / "tokenizer.json"
    if not file.is_file():
        raise TokenizerProblem("the model's directory has no tokenizer.json, which is needed to read and write text")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001  # of a library in Rust, which raises plain exceptions
        raise TokenizerProblem(f"the model's tokenizer.json cannot be read: {str(error)[:300]}") from None
    config = _json(directory / "tokenizer_config.json")
    special = {name: text for name in _SPECIAL if (text := _content(config.get(name))) is not None}
    source = _template_source(directory, config)
    template = None if source is None else compile_template(source)
    return LoadedTokenizer(tokenizer, template, special, tool_format_of(source or ""))


def tool_format_of(template: str) -> str | None:
    """The marks in a template tell the format of its family."""
    if "tools" not in template:
        return None
    if "<function=" in template:
        return "qwen_xml"
    if "<tool_call>" in template:
        return "hermes"
    if "[TOOL_CALLS]" in template:
        return "mistral"
    return "llama3" if "parameters" in template or "<|python_tag|>" in template else None


def _bytes_of_tokens(tokenizer: Tokenizer) -> Callable[[int], bytes]:
    """The bytes that a token adds to a text."""
    decoder = json.loads(tokenizer.to_str()).get("decoder") or {}
    kinds = {decoder.get("type"), *(each.get("type") for each in decoder.get("decoders", []))}
    if "ByteLevel" in kinds:
        byte_of = _byte_alphabet()

        def by_level(token: int) -> bytes:
            text = tokenizer.id_to_token(token) or ""
            return b"".join(bytes([byte_of[one]]) if one in byte_of else one.encode() for one in text)

        return by_level
    if "ByteFallback" in kinds or "Metaspace" in kinds:

        def by_fallback(token: int) -> bytes:
            text = tokenizer.id_to_token(token) or ""
            if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
                return bytes([int(text[3:5], 16)])
            return text.replace("\u2581", " ").encode()

        return by_fallback
    before = str(tokenizer.decode([0], skip_special_tokens=False))
    return lambda token: str(tokenizer.decode([0, token], skip_special_tokens=False))[len(before) :].encode()


def _byte_alphabet() -> dict[str, int]:
    """Byte-level vocabularies write a printable byte as its character, and the others as characters from 256 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + place): byte for place, byte in enumerate(others)}


def compile_template(source: str) -> Template:
    """In a sandbox: the template comes with the model."""
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationBlocks(Extension):
        """Templates mark what the model wrote as ``{% generation %}``, which training needs and a prompt does not."""

        tags = {"generation"}  # noqa: RUF012  # as jinja2 declares it

        def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
            next(parser.stream)
            return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))

    def refuse(message: str) -> None:
        raise ValueError(message)

    def to_json(value: object, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", GenerationBlocks],
        autoescape=False,  # the text goes to a tokenizer, not to a browser
    )
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    environment.filters["tojson"] = to_json
    try:
        return environment.from_string(source)
    except Exception as error:  # noqa: BLE001  # the template is the model's own code
        raise TokenizerProblem(f"the model's chat template cannot be read: {str(error)[:300]}") from None


def _template_source(directory: Path, config: Mapping[str, Any]) -> str | None:
    file = directory / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    found = config.get("chat_template")
    if isinstance(found, list):  # several, by name
        named = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def _json(file: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _content(token: object) -> str | None:
    """A special token is a string, or an object with its text in it."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def main() -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    cache = TokenizerCache()
    for line in sys.stdin.buffer:
        try:
            reply = cache.answer(json.loads(line))
        except TokenizerProblem as problem:
            reply = {"problem": str(problem), "is_too_long": isinstance(problem, TooMuchText)}
        except Exception as error:  # noqa: BLE001  # one bad request must not end the process
            reply = {"problem": f"the tokenizer failed: {str(error)[:300] or type(error).__name__}"}
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
