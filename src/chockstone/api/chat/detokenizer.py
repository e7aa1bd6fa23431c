"""The detokenizer: text from tokens as they come.

Bytes that are the beginning of a character are held back, and so is text that may be the beginning of a stop string.
The time that a stop string takes grows with the text, not with the length of the stop string: a client chooses both.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable, Sequence

from chockstone.api.tokenizers.tokenizer_service import TokenTable


class Detokenizer:
    """Of one answer. Text from a stop string on is left out, and so are special tokens but those in ``keep``."""

    def __init__(self, table: TokenTable, *, stops: Sequence[str] = (), keep: Collection[str] = ()) -> None:
        self._table = table
        self._stops = [_StopFinder(stop) for stop in stops if stop]
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
        ends = [(stop, end) for stop in self._stops if (end := stop.find(text)) is not None]
        before, text = len(self._held), self._held + text
        if ends:
            stop, end = min(ends, key=lambda each: each[1] - len(each[0].text))
            self.stop_string, self._held = stop.text, ""
            return text[: before + end - len(stop.text)]
        kept = 0 if is_last else max((stop.matched for stop in self._stops), default=0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]


class _StopFinder:
    """Finds one stop string in a text that comes in pieces, as Knuth, Morris and Pratt do."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0  # characters at the end of what came that are the beginning of the stop string
        self._shorter = [0, 0]  # by characters matched: how many may still be matched if the next one is another
        self._border = 0  # of as many characters as the last of these is for: how many begin and end them

    def find(self, piece: str) -> int | None:
        """How much of ``piece`` belongs to the text up to the end of the first stop string; None: none ends in it."""
        place = 0
        while place < len(piece):
            if not self.matched and (place := piece.find(self.text[0], place)) < 0:
                return None
            self.matched = self._continued(self.matched, piece[place])
            place += 1
            if self.matched == len(self.text):
                return place
            if self.matched == len(self._shorter):
                self._extend()
        return None

    def _extend(self) -> None:
        count = len(self._shorter)
        self._border = self._continued(self._border, self.text[count - 1])
        is_same = self.text[self._border] == self.text[count]  # then it helps as little
        self._shorter.append(self._shorter[self._border] if is_same else self._border)

    def _continued(self, matched: int, character: str) -> int:
        """How many are matched after one more character."""
        while matched and self.text[matched] != character:
            matched = self._shorter[matched]
        return matched + (self.text[matched] == character)
