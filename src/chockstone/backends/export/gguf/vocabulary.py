"""The tokenizer of a GGUF file, read from ``tokenizer.json`` and ``tokenizer_config.json`` of the base model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gguf import GGUFWriter, TokenType
from tokenizers import Tokenizer

from chockstone.backends.export.gguf.byte_level import GPT2, TEKKEN, is_byte_level, name_pre_tokenizer, read_merges
from chockstone.backends.export.gguf.sentencepiece import (
    BYTES,
    LLAMA,
    SPACE,
    adds_space,
    is_sentencepiece,
    score_tokens,
    spares_space,
)
from chockstone.checkpoints.errors import ExportRefused
from chockstone.wire.codecs.json_files import parse_json

Json = Any  # plain JSON
NONE: Final = "none"  # how GGUF calls the tokenizer of a file without one
_FILE: Final = "tokenizer.json"
_CONFIG: Final = "tokenizer_config.json"
_GENERATION: Final = "generation_config.json"
_SPECIAL: Final = ("bos", "eos", "unk", "sep", "pad", "mask")
_PLAIN_SCORE: Final = -1000.0  # of tokens that no merge makes; llama.cpp compares scores of merged ones only
_PROBE: Final = "a"
_NORMALISED: Final = "llama.cpp does not normalise text to NFC, as this tokenizer does; write prompts in NFC"
_SPARED: Final = (
    "llama.cpp puts a space before text that begins with one, and before text behind a special token, where this "
    "tokenizer may put none"
)
_NEARLY: Final = (
    "llama.cpp splits words with combining marks or with accented capitals inside otherwise than this tokenizer"
)
_ADVICE: Final = "--no-tokenizer exports the model without a tokenizer"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a file says about tokens. ``add_to`` is its only use."""

    model: str
    pre_tokenizer: str
    tokens: tuple[str, ...]
    types: tuple[TokenType, ...]
    scores: tuple[float, ...] | None
    merges: tuple[str, ...] | None
    special: Mapping[str, int]  # "bos" and so on
    adds_begin: bool
    adds_end: bool
    adds_space: bool | None
    chat_template: str | None
    notes: tuple[str, ...]

    def add_to(self, writer: GGUFWriter) -> None:
        writer.add_tokenizer_model(self.model)
        writer.add_tokenizer_pre(self.pre_tokenizer)
        writer.add_token_list(self.tokens)
        writer.add_token_types(self.types)
        if self.scores is not None:
            writer.add_token_scores(self.scores)
        if self.merges is not None:
            writer.add_token_merges(self.merges)
        for name, token_id in self.special.items():
            getattr(writer, f"add_{name}_token_id")(token_id)
        writer.add_add_bos_token(self.adds_begin)
        writer.add_add_eos_token(self.adds_end)
        if self.adds_space is not None:
            writer.add_add_space_prefix(self.adds_space)
        if self.chat_template is not None:
            writer.add_chat_template(self.chat_template)


def read_vocabulary(companions: Mapping[str, bytes], config: Mapping[str, Json], *, size: int) -> Vocabulary:
    """The tokenizer of a model with ``size`` embeddings. Raises ExportRefused if llama.cpp would read text otherwise.

    ``companions``: files of the model's directory. ``config``: its config.json, for special tokens without a name.
    """
    if _FILE not in companions:
        raise ExportRefused(f"the base model has no {_FILE}, from which a tokenizer can be exported; {_ADVICE}")
    try:
        document = parse_json(companions[_FILE])
        settings = parse_json(companions.get(_CONFIG, b"{}"))
        tokenizer = Tokenizer.from_buffer(companions[_FILE])
        generation = parse_json(companions.get(_GENERATION, b"{}"))
        return _Reading(document, settings, [config, generation], tokenizer, companions, size).vocabulary()
    except ExportRefused as error:
        raise ExportRefused(f"the tokenizer of the base model cannot be exported: {error}; {_ADVICE}") from error
    except Exception as error:  # what foreign JSON can bring, and whatever the package tokenizers raises
        raise ExportRefused(
            f"{_FILE} of the base model is not a tokenizer that can be exported: {str(error)[:300]}; {_ADVICE}"
        ) from error


class _Reading:
    def __init__(
        self,
        document: Json,
        settings: Json,
        configs: list[Json],
        tokenizer: Tokenizer,
        companions: Mapping[str, bytes],
        size: int,
    ) -> None:
        self._document = document
        self._settings = settings
        self._configs = configs
        self._tokenizer = tokenizer
        self._companions = companions
        self._size = size
        self._added: dict[int, dict[str, Json]] = {}

    def vocabulary(self) -> Vocabulary:
        _check_model(self._document["model"])
        self._read_added()
        by_id = self._by_id()
        is_pieces = is_sentencepiece(self._document)
        if not is_pieces and not is_byte_level(self._document):
            raise ExportRefused("it is neither byte-level nor made of sentencepiece's with bytes")
        types = {token_id: self._type(token_id, text, is_pieces=is_pieces) for token_id, text in by_id.items()}
        notes = []
        scores = merges = None
        pre_tokenizer = "default" if is_pieces else name_pre_tokenizer(self._document)
        if is_pieces:
            if missing := BYTES - set(by_id.values()):
                raise ExportRefused(f"it has no token {min(missing)!r}")
            plain = {by_id[token_id] for token_id, kind in types.items() if kind is TokenType.NORMAL}
            ranks = score_tokens(self._document, plain)
            scores = {token_id: ranks.get(text, _PLAIN_SCORE) for token_id, text in by_id.items()}
            if spares_space(self._document):
                notes.append(_SPARED)
        else:
            merges = tuple(read_merges(self._document))
            if self._document.get("normalizer") is not None:
                notes.append(_NORMALISED)
            if pre_tokenizer == TEKKEN:
                notes.append(_NEARLY)
        texts = {
            token_id: text.replace(SPACE, " ") if is_pieces and types[token_id] is TokenType.USER_DEFINED else text
            for token_id, text in by_id.items()
        }
        if len(set(texts.values())) < len(texts):
            raise ExportRefused("two of its tokens have the same text where spaces are written as such")
        fillers = _name_fillers(set(texts.values()), [n for n in range(self._size) if n not in texts])
        adds_begin, adds_end, special = self._special()
        return Vocabulary(
            model=LLAMA if is_pieces else GPT2,
            pre_tokenizer=pre_tokenizer,
            tokens=tuple(texts[n] if n in texts else fillers[n] for n in range(self._size)),
            types=tuple(types.get(n, TokenType.UNUSED) for n in range(self._size)),
            scores=None if scores is None else tuple(scores.get(n, _PLAIN_SCORE) for n in range(self._size)),
            merges=merges,
            special=special,
            adds_begin=adds_begin,
            adds_end=adds_end,
            adds_space=adds_space(self._document) if is_pieces else None,
            chat_template=self._chat_template(),
            notes=tuple(notes),
        )

    def _read_added(self) -> None:
        for token in self._document.get("added_tokens", ()):
            if any(token.get(flag) for flag in ("lstrip", "rstrip", "single_word")):
                raise ExportRefused(f"llama.cpp cannot match {token['content']!r:.80} together with what is beside it")
            if self._added.setdefault(token["id"], token) is not token:
                raise ExportRefused(f"id {token['id']!r:.80} stands twice in its added tokens")

    def _by_id(self) -> dict[int, str]:
        """All tokens. llama.cpp ends texts at NUL and aborts if two are the same, so these are refused."""
        by_id: dict[int, str] = {}
        known: set[str] = set()
        tokens = [*self._document["model"]["vocab"].items()]
        tokens += [(token["content"], token["id"]) for token in self._added.values()]
        for text, token_id in tokens:
            if type(token_id) is not int or not 0 <= token_id < self._size:
                raise ExportRefused(
                    f"token {text!r:.80} has the id {token_id!r:.80}, and the model has embeddings for {self._size}"
                )
            if not text or "\0" in text:
                raise ExportRefused(f"token {token_id} has the text {text!r:.80}, which llama.cpp cannot read")
            if by_id.get(token_id, text) != text or (text in known and by_id.get(token_id) != text):
                raise ExportRefused(f"token {text!r:.80} stands twice in it, or its id {token_id} does")
            if self._tokenizer.token_to_id(text) != token_id:
                raise ExportRefused(f"token {text!r:.80} has another id than {token_id} when the file is read")
            text.encode()  # not half of a surrogate pair
            by_id[token_id] = text
            known.add(text)
        return by_id

    def _type(self, token_id: int, text: str, *, is_pieces: bool) -> TokenType:
        if is_pieces and text == self._document["model"].get("unk_token"):
            return TokenType.UNKNOWN
        if token_id in self._added:
            return TokenType.CONTROL if self._added[token_id].get("special") else TokenType.USER_DEFINED
        return TokenType.BYTE if is_pieces and text in BYTES else TokenType.NORMAL

    def _special(self) -> tuple[bool, bool, dict[str, int]]:
        """Whether texts get a first and a last token, and the ids of special ones."""
        special = {name: token_id for name in _SPECIAL if (token_id := self._named(name)) is not None}
        bare = self._tokenizer.encode(_PROBE, add_special_tokens=False).ids
        full = self._tokenizer.encode(_PROBE).ids
        start = next((n for n in range(len(full)) if full[n : n + len(bare)] == bare), None)
        if start is None or start > 1 or len(full) - start - len(bare) > 1:
            raise ExportRefused("it adds more special tokens to a text than one before and one behind")
        before, behind = full[:start], full[start + len(bare) :]
        if before and special.setdefault("bos", before[0]) != before[0]:
            raise ExportRefused(f"it begins texts with token {before[0]}, and {_CONFIG} says {special['bos']}")
        if behind and special.setdefault("eos", behind[0]) != behind[0]:
            raise ExportRefused(f"it ends texts with token {behind[0]}, and {_CONFIG} says {special['eos']}")
        if "eos" not in special:
            raise ExportRefused(
                "neither it nor config.json names a token that ends texts (eos_token), and llama.cpp would take another"
            )
        adds_begin, adds_end = (
            self._settings[key] if isinstance(self._settings.get(key), bool) else is_added
            for key, is_added in (("add_bos_token", bool(before)), ("add_eos_token", bool(behind)))
        )
        return adds_begin and "bos" in special, adds_end, special

    def _named(self, name: str) -> int | None:
        """The id of the special token ``name``: as the settings of the tokenizer say, otherwise those of the model."""
        found = self._settings.get(f"{name}_token")
        text = found.get("content") if isinstance(found, dict) else found
        if isinstance(text, str) and (token_id := self._tokenizer.token_to_id(text)) is not None:
            return token_id
        for config in self._configs:
            given = config.get(f"{name}_token_id")
            first = given[0] if isinstance(given, list) and given else given
            if type(first) is int and 0 <= first < self._size:
                return first
        return None

    def _chat_template(self) -> str | None:
        if "chat_template.jinja" in self._companions:
            text: Json = self._companions["chat_template.jinja"].decode()
        else:
            text = self._settings.get("chat_template")
        if isinstance(text, list):  # named ones
            text = next((each.get("template") for each in text if each.get("name") == "default"), None)
        if not isinstance(text, str):
            return None
        if "\0" in text:
            raise ExportRefused("its chat template has a NUL character")
        return text


def _check_model(model: Mapping[str, Json]) -> None:
    if model.get("type") != "BPE":
        raise ExportRefused(f"it is of type {str(model.get('type'))[:80]!r}, and only BPE can be exported")
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            raise ExportRefused(f"llama.cpp knows no {key}")


def _name_fillers(taken: set[str], free: list[int]) -> dict[int, str]:
    """Texts of embeddings that belong to no token, each another one."""
    names = {token_id: f"[PAD{token_id}]" for token_id in free}
    while clashes := [token_id for token_id, name in names.items() if name in taken]:
        names |= {token_id: f"[{names[token_id]}]" for token_id in clashes}
    return names
