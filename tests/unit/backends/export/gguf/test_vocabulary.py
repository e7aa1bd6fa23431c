from __future__ import annotations

import json
from typing import Any

import pytest
from gguf import GGUFWriter, TokenType
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
from tokenizers.processors import TemplateProcessing

from chockstone.backends.export.gguf.byte_level import NAMES, TEKKEN
from chockstone.backends.export.gguf.vocabulary import Vocabulary, read_vocabulary
from chockstone.checkpoints.errors import ExportRefused
from chockstone.cli.models.tokenizer import FAMILIES, build_tokenizer, tokenizer_config

SPACE = "\u2581"
Json = dict[str, Any]


def made(family: str = "llama") -> tuple[Json, Json]:
    """Document and settings of the tokenizer of a made model: 280 tokens."""
    tokenizer = build_tokenizer(FAMILIES["llama" if family == "llama" else "qwen3"], vocab_size=280)
    return json.loads(tokenizer.to_str()), tokenizer_config(
        FAMILIES["llama" if family == "llama" else "qwen3"], longest=64
    )


def pieces() -> tuple[Json, Json]:
    """One like Llama's second: 256 bytes, letters, spaces, and a word."""
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), SPACE, "h", "i", "hi", f"{SPACE}hi"]
    merges = [("h", "i"), (SPACE, "hi")]
    model = models.BPE(
        {text: n for n, text in enumerate(texts)}, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in texts[:3]])
    tokenizer.add_tokens([AddedToken(f"{SPACE}tool{SPACE}", normalized=False)])
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)])
    return json.loads(tokenizer.to_str()), {"bos_token": {"content": "<s>"}, "eos_token": "</s>"}


def read(document: Json, settings: Json, *, size: int = 300, config: Json | None = None, **files: bytes) -> Vocabulary:
    companions = {
        "tokenizer.json": json.dumps(document).encode(),
        "tokenizer_config.json": json.dumps(settings).encode(),
        **{name.replace("__", "."): content for name, content in files.items()},
    }
    return read_vocabulary(companions, config or {}, size=size)


def test_a_byte_level_tokenizer_keeps_tokens_merges_and_marks() -> None:
    document, settings = made()
    vocabulary = read(document, settings, chat_template__jinja=b"{{ messages }}")

    assert (vocabulary.model, vocabulary.pre_tokenizer, len(vocabulary.tokens)) == ("gpt2", "gpt-2", 300)
    assert vocabulary.scores is None and vocabulary.merges is not None and vocabulary.merges[0] == "\u0120 e"
    begin = vocabulary.tokens.index("<|begin_of_text|>")
    assert vocabulary.special == {"bos": begin, "eos": 278, "pad": 274}
    assert (vocabulary.adds_begin, vocabulary.adds_end, vocabulary.adds_space) == (True, False, None)
    assert vocabulary.types[begin] is TokenType.CONTROL and vocabulary.types[0] is TokenType.NORMAL
    assert vocabulary.chat_template == "{{ messages }}" and vocabulary.notes == ()


def test_embeddings_without_a_token_get_names_of_their_own() -> None:
    document, settings = made()
    document["added_tokens"].append({**document["added_tokens"][0], "id": 280, "content": "[PAD285]"})
    vocabulary = read(document, settings)

    assert vocabulary.tokens[281:284] == ("[PAD281]", "[PAD282]", "[PAD283]")
    assert vocabulary.tokens[285] == "[[PAD285]]"
    assert len(set(vocabulary.tokens)) == 300
    assert set(vocabulary.types[281:]) == {TokenType.UNUSED}


def test_pieces_of_sentencepiece_have_scores_and_kinds() -> None:
    vocabulary = read(*pieces())

    kinds = dict(zip(vocabulary.tokens, vocabulary.types, strict=True))
    assert (vocabulary.model, vocabulary.pre_tokenizer, vocabulary.merges) == ("llama", "default", None)
    assert (kinds["<unk>"], kinds["</s>"], kinds["<0x41>"], kinds[f"{SPACE}hi"], kinds[" tool "]) == (
        TokenType.UNKNOWN,
        TokenType.CONTROL,
        TokenType.BYTE,
        TokenType.NORMAL,
        TokenType.USER_DEFINED,
    )
    assert vocabulary.scores is not None
    scores = dict(zip(vocabulary.tokens, vocabulary.scores, strict=True))
    assert scores["hi"] > scores[f"{SPACE}hi"] > scores["h"]
    assert vocabulary.adds_space is True and vocabulary.adds_begin and vocabulary.notes == ()


def test_it_is_added_to_a_file() -> None:
    writer = GGUFWriter(None, "llama")

    read(*pieces()).add_to(writer)

    values = {key.removeprefix("tokenizer.ggml."): value.value for key, value in writer.kv_data[0].items()}
    assert values["bos_token_id"] == 1 and values["eos_token_id"] == 2
    assert values["add_bos_token"] is True and values["add_eos_token"] is False and values["add_space_prefix"] is True
    assert len(values["tokens"]) == len(values["scores"]) == len(values["token_type"]) == 300


def test_marks_come_from_the_model_if_the_tokenizer_names_none() -> None:
    document, settings = made("qwen3")
    nameless = {key: value for key, value in settings.items() if not key.endswith("_token")}
    generation = json.dumps({"eos_token_id": [270, 271]}).encode()

    assert read(document, nameless, config={"eos_token_id": 272}).special == {"eos": 272}
    assert read(document, nameless, generation_config__json=generation).special == {"eos": 270}
    assert read(
        document, nameless, config={"eos_token_id": 999, "bos_token_id": 9}, generation_config__json=generation
    ).special == {
        "eos": 270,
        "bos": 9,
    }
    with pytest.raises(ExportRefused, match="names a token that ends texts"):
        read(document, nameless)


def test_settings_decide_whether_a_text_gets_a_first_token() -> None:
    document, settings = made()

    assert not read(document, {**settings, "add_bos_token": False}).adds_begin
    assert read(*made("qwen3")).adds_begin is False


def test_deviations_of_llama_cpp_are_noted() -> None:
    document, settings = made()
    [note] = read({**document, "normalizer": {"type": "NFC"}}, settings).notes
    assert "NFC" in note

    document, settings = made()
    split = {
        "type": "Split",
        "pattern": {"Regex": next(each.pattern for each, name in NAMES.items() if name == TEKKEN)},
        "behavior": "Isolated",
        "invert": False,
    }
    steps = [split, {**document["pre_tokenizer"], "use_regex": False}]
    document["model"]["ignore_merges"] = True
    [note] = read({**document, "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}}, settings).notes
    assert "accented capitals" in note

    document, settings = pieces()
    metaspace = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first", "split": False}
    [note] = read({**document, "normalizer": None, "pre_tokenizer": metaspace}, settings).notes
    assert "puts a space before text" in note


def test_named_chat_templates_are_read() -> None:
    document, settings = made()
    named = [{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}]

    assert read(document, {**settings, "chat_template": named}).chat_template == "d"
    assert read(document, {**settings, "chat_template": "plain"}).chat_template == "plain"
    assert read(document, {**settings, "chat_template": named[:1]}).chat_template is None


def with_token(text: str, token_id: Any) -> tuple[Json, Json]:
    document, settings = made()
    document["model"]["vocab"][text] = token_id
    return document, settings


def with_added(**changes: Any) -> tuple[Json, Json]:
    document, settings = made()
    document["added_tokens"][0] |= changes
    return document, settings


def with_model(**changes: Any) -> tuple[Json, Json]:
    document, settings = made()
    document["model"] |= changes
    return document, settings


HOSTILE = {
    "NUL in a token": (*with_token("a\0b", 285), "which llama.cpp cannot read"),
    "an empty token": (*with_token("", 285), "which llama.cpp cannot read"),
    "more tokens than embeddings": (*with_token("zz", 300), "the model has embeddings for 300"),
    "an id twice": (*with_token("zz", 5), "stands twice"),
    "half of a surrogate pair": (*with_token("\ud800", 285), "is not a tokenizer that can be exported"),
    "an added token at another place": (*with_added(id=290), "has another id than 290|stands twice"),
    "spaces around an added token": (*with_added(lstrip=True), "together with what is beside it"),
    "an added token twice": (*with_added(id=273), "id 273 stands twice in its added tokens"),
    "another model": ({"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}, {}, "only BPE can be"),
    "dropout": (*with_model(dropout=0.1), "knows no dropout"),
    "no such merge": (*with_model(merges=[["a", "b", "c"]]), "is not a tokenizer that can be exported"),
    "no bytes": ({**made()[0], "pre_tokenizer": None}, made()[1], "neither byte-level nor"),
    "nothing": ({}, {}, "is not a tokenizer that can be exported"),
    "a template with NUL": (made()[0], {**made()[1], "chat_template": "a\0"}, "NUL character"),
    "another first token": (made()[0], {**made()[1], "bos_token": "<|eot_id|>"}, "begins texts with token"),
}  # fmt: skip


@pytest.mark.parametrize(("document", "settings", "complaint"), HOSTILE.values(), ids=HOSTILE)
def test_what_llama_cpp_would_read_otherwise_is_refused(document: Json, settings: Json, complaint: str) -> None:
    with pytest.raises(ExportRefused, match=complaint) as caught:
        read(document, settings)

    assert str(caught.value).endswith("--no-tokenizer exports the model without a tokenizer")


def test_pieces_with_the_same_text_are_refused() -> None:
    document, settings = pieces()
    document["added_tokens"].append({**document["added_tokens"][-1], "id": 265, "content": f" tool{SPACE}"})

    with pytest.raises(ExportRefused, match="two of its tokens have the same text"):
        read(document, settings)


def test_pieces_without_a_byte_are_refused() -> None:
    document, settings = pieces()
    vocab = document["model"]["vocab"]
    vocab["<0x4G>"] = vocab.pop("<0x41>")

    with pytest.raises(ExportRefused, match="it has no token '<0x41>'"):
        read(document, settings)


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b"[" * 5000, b'{"model": 3}', b"\xff\xfe"])
def test_files_that_are_no_tokenizer_are_refused(content: bytes) -> None:
    with pytest.raises(ExportRefused, match=r"tokenizer\.json of the base model is not a tokenizer"):
        read_vocabulary({"tokenizer.json": content}, {}, size=300)
    with pytest.raises(ExportRefused, match=r"has no tokenizer\.json"):
        read_vocabulary({}, {}, size=300)


def test_two_marks_before_a_text_are_refused() -> None:
    document, settings = made()
    tokenizer = Tokenizer.from_str(json.dumps(document))
    tokenizer.post_processor = TemplateProcessing(
        single="<|eot_id|> <|eot_id|> $A", pair=None, special_tokens=[("<|eot_id|>", 278)]
    )

    with pytest.raises(ExportRefused, match="more special tokens to a text than one before"):
        read(json.loads(tokenizer.to_str()), settings)
