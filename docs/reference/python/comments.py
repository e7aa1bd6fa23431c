"""Griffe extension: a comment behind a field is that field's documentation.

Sources write ``keep_every: int | None = None  # steps divisible by this``; the pages show the comment below the field.
"""

from __future__ import annotations

import io
import tokenize
from typing import Any

import griffe


class FieldComments(griffe.Extension):
    def on_attribute(self, *, attr: griffe.Attribute, **_: Any) -> None:  # Any: other versions pass more
        if attr.docstring is not None or attr.lineno is None or attr.parent is None or attr.parent.is_module:
            return
        if text := trailing_comment("\n".join(attr.lines)):
            attr.docstring = griffe.Docstring(text, parent=attr, lineno=attr.lineno)


def trailing_comment(source: str) -> str:
    """The last comment of a statement as a sentence, without remarks to the linter."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(source.strip()).readline))
    except (tokenize.TokenError, IndentationError):
        return ""
    comments = [token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT]
    kept = [part for comment in comments for part in comment.split("# ") if not part.startswith(("noqa", "type:"))]
    text = kept[-1].strip() if kept else ""
    return f"{text[:1].upper()}{text[1:]}." if text else ""
