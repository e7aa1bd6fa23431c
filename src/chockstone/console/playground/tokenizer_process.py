"""The tokenizer process: encodes prompts and decodes tokens with the tokenizers of served models.

Runs as a script of its own. Reads one JSON request per line from standard input and writes one JSON reply per line;
ends when standard input ends. Imports nothing of ours, and never torch or transformers.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections import OrderedDict
from collections.abc import Mapping, Sequence
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
_UNKNOWN: Final = "\ufffd"
_SPECIAL: Final = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class TokenizerProblem(Exception):
    """What is wrong, for the person who asked."""


@dataclass(frozen=True, slots=True)
class LoadedTokenizer:
    tokenizer: Tokenizer
    chat_template: Template | None
    special_tokens: Mapping[str, str]

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The messages as the chat template writes them, with the beginning of the answer."""
        if self.chat_template is None:
            raise TokenizerProblem("the model's tokenizer has no chat template; use a plain prompt")
        parts: list[str] = []
        size = 0
        try:
            stream = self.chat_template.generate(
                messages=messages, add_generation_prompt=True, tools=None, documents=None, **self.special_tokens
            )
            for part in stream:
                size += len(part)
                if size > MAX_PROMPT_CHARACTERS:
                    raise TokenizerProblem(f"the chat template wrote more than {MAX_PROMPT_CHARACTERS} characters")
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
            case "encode":
                return {"tokens": loaded.encode(request["text"], add_special_tokens=True), "text": request["text"]}
            case "encode_chat":
                text = loaded.render(request["messages"])
                return {"tokens": loaded.encode(text, add_special_tokens=False), "text": text}
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


def load(directory: Path) -> LoadedTokenizer:
    """Raises TokenizerProblem for a directory without a tokenizer that can be read."""
    from tokenizers import Tokenizer

    file = directory / "tokenizer.json"
    if not file.is_file():
        raise TokenizerProblem(
            "the model's directory has no tokenizer.json, which the playground needs to read and write text"
        )
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001  # of a library in Rust, which raises plain exceptions
        raise TokenizerProblem(f"the model's tokenizer.json cannot be read: {str(error)[:300]}") from None
    config = _json(directory / "tokenizer_config.json")
    special = {name: text for name in _SPECIAL if (text := _content(config.get(name))) is not None}
    source = _template_source(directory, config)
    return LoadedTokenizer(tokenizer, None if source is None else compile_template(source), special)


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
    for line in sys.stdin:
        try:
            reply = cache.answer(json.loads(line))
        except TokenizerProblem as problem:
            reply = {"problem": str(problem)}
        except Exception as error:  # noqa: BLE001  # one bad request must not end the process
            reply = {"problem": f"the tokenizer failed: {str(error)[:300] or type(error).__name__}"}
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
