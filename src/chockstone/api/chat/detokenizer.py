"""The detokenizer: text from tokens as they come.

Bytes that are the beginning of a character are held back, and so is text that may be the beginning of a stop string.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable, Sequence

from chockstone.api.tokenizers.tokenizer_service import TokenTable


class Detokenizer:
    """Of one answer. Text from a stop string on is left out, and so are special tokens but those in ``keep``."""

    def __init__(self, table: TokenTable, *, stops: Sequence[str] = (), keep: Collection[str] = ()) -> None:
        self._table = table
        self._stops = tuple(stop for stop in stops if stop)
        self._hidden = frozenset(token for token, text in table.special.items() if text not in keep)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.stop_string: str | None = None  # the one that ended the text

    def add(self, tokens: Iterable[int]) -> str:
        """The text that is certain from here on."""
        return self._take(self._decoder.decode(b"".join(map(self._bytes, tokens))), is_last=False)

    def finish(self) -> str:
        """The text that was held back."""
        return self._take(self._decoder.decode(b"", final=True), is_last=True)

    def bytes_of(self, token: int) -> bytes:
        """Of any token, a special one included; empty for one that the tokenizer does not know."""
        pieces = self._table.pieces
        return pieces[token] if 0 <= token < len(pieces) else b""

    def _bytes(self, token: int) -> bytes:
        return b"" if token in self._hidden else self.bytes_of(token)

    def _take(self, text: str, *, is_last: bool) -> str:
        if self.stop_string is not None:
            return ""
        text = self._held + text
        found = [(place, stop) for stop in self._stops if (place := text.find(stop)) >= 0]
        if found:
            place, self.stop_string = min(found, key=lambda each: each[0])
            self._held = ""
            return text[:place]
        kept = 0 if is_last else held_back(text, self._stops)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]


def held_back(text: str, marks: Sequence[str]) -> int:
    """How many characters at the end of ``text`` may be the beginning of a mark."""
    longest = 0
    for mark in marks:
        for size in range(min(len(mark) - 1, len(text)), longest, -1):
            if mark.startswith(text[-size:]):
                longest = size
                break
    return longest
