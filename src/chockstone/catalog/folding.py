"""Folding: text as searches compare it.

Done here and stored, since databases disagree about letters outside ASCII.
"""

from __future__ import annotations

import unicodedata


def folded(text: str) -> str:
    """Without case, and the same however its accents were typed."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
