"""Marked text: grammars of text that is free up to a mark, behind which JSON follows.

Free text is any text and any added token that is no special one, such as ``<think>``. A mark is one whether it is
written as its own token or spelled out in others, because the parser cannot tell them apart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_BLANK: Final = r"\s\x1c-\x1f"  # what str.strip removes
_ANY: Final = r"(.|\n)"


def marked_grammar(
    mark: str, *, body: str, is_repeated: bool, is_bare: bool, added: Mapping[str, int], free_tokens: frozenset[int]
) -> str:
    """In Lark's syntax, without the rule ``json``. ``body``: what follows a mark, with that rule in it.

    ``is_repeated``: the text goes on after ``body``. ``is_bare``: a text that begins with ``{`` is JSON.
    ``added``: numbers of added tokens by their text. ``free_tokens``: those of them that text may have.
    """
    pattern = re.sub(r"([^A-Za-z0-9])", _escaped, mark)
    number = added.get(mark)
    own = "" if number is None else f" | <[{number}]>"
    free = sorted(free_tokens - {number})
    others = f" | <[{','.join(map(str, free))}]>" if free else ""
    rules = {
        "marked": f"(spelled{own}) {body}",
        "spelled[lazy]": f"/{_ANY}*{pattern}/",
        "piece": f"TEXT{others}",
        "TEXT": f"/{_ANY}+/",
    }
    rest = "(piece | marked)*" if is_repeated else "piece* marked?"
    if not is_bare:
        return _written({"start": rest, **rules})
    first = rf"[{_BLANK}]*[^{{{_BLANK}]"
    openings = [
        "BLANK? json (BETWEEN json)* BLANK?",
        f"OPENING {rest}",
        f"spelled_first {body}" + (f" {rest}" if is_repeated else ""),
        "BLANK?",
    ]
    if own:
        openings.append(f"BLANK? <[{number}]> {body}" + (f" {rest}" if is_repeated else ""))
    if free:
        openings.append(f"BLANK? <[{','.join(map(str, free))}]> {rest}")
    rules |= {
        "spelled_first[lazy]": f"/({first}{_ANY}*)?[{_BLANK}]*{pattern}/",
        "OPENING": f"/{first}{_ANY}*/",
        "BLANK": f"/[{_BLANK}]+/",
        "BETWEEN": f"/[{_BLANK}]*;[{_BLANK}]*/",
    }
    return _written({"start": " | ".join(openings), **rules})


def _written(rules: Mapping[str, str]) -> str:
    return "".join(f"{name}: {rule}\n" for name, rule in rules.items())


def _escaped(found: re.Match[str]) -> str:
    """In a regular expression between slashes."""
    return f"\\x{{{ord(found[0]):x}}}"
