"""Directories with the tokenizer and the chat template of a made model, and no weights."""

from __future__ import annotations

import json
from pathlib import Path

from chockstone.cli.models.tokenizer import FAMILIES, build_tokenizer, tokenizer_config

VOCABULARY = 512


def write_tokenizer(directory: Path) -> Path:
    family = FAMILIES["llama"]
    build_tokenizer(family, vocab_size=VOCABULARY).save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(family, longest=128)))
    (directory / "chat_template.jinja").write_text(family.chat_template)
    return directory
