"""Short ids: completes an id from a unique prefix, and shortens ids for tables.

The id of a run is its session's id and a number, ``6f1c…:train:0``. Its session part can be shortened by itself:
``6f1c:train:0``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from chockstone.cli.output.exit_codes import ExitCode
from chockstone.cli.output.reporting import CommandFailed

_SHORTEST: Final = 8  # characters of a session's id in a table
_LISTED: Final = 10  # candidates in an error


class AmbiguousId(CommandFailed):
    """More than one id begins with the given prefix."""

    exit_code = ExitCode.USAGE


def complete_id(word: str, known: Iterable[str], *, noun: str) -> str | None:
    """The id that ``word`` is, or is the prefix of; None if no known id begins with it. Raises AmbiguousId."""
    ids = sorted(set(known))
    if word in ids:
        return word
    found = [each for each in ids if _is_short_for(word, each)]
    if len(found) > 1:
        more = f"\n  … and {len(found) - _LISTED:,} more" if len(found) > _LISTED else ""
        candidates = "".join(f"\n  {each}" for each in found[:_LISTED])
        raise AmbiguousId(f"{word!r} is the beginning of {len(found):,} {noun}s; add characters:{candidates}{more}")
    return found[0] if found else None


def shorten_ids(ids: Sequence[str]) -> dict[str, str]:
    """A short form of each id, as ``complete_id`` reads it: the head, and the tail where several ids have this head.

    The heads are equally long, and as long as they must be.
    """
    counts = Counter(each.partition(":")[0] for each in dict.fromkeys(ids))
    heads = list(counts)
    length = next(
        (
            n
            for n in range(_SHORTEST, max(map(len, heads), default=0))
            if len({head[:n] for head in heads}) == len(heads)
        ),
        None,
    )
    return {each: _cut(each, length, is_alone=counts[each.partition(":")[0]] == 1) for each in ids}


def _cut(full: str, length: int | None, *, is_alone: bool) -> str:
    head, colon, tail = full.partition(":")
    return head[:length] if is_alone else f"{head[:length]}{colon}{tail}"


def _is_short_for(word: str, full: str) -> bool:
    if not word:
        return False
    head, colon, tail = word.partition(":")
    full_head, _, full_tail = full.partition(":")
    return full.startswith(word) or (bool(colon) and full_head.startswith(head) and tail == full_tail)
