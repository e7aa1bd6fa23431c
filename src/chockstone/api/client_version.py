"""Client versions: what an older SDK cannot read is left out of its answers.

The SDK validates answers strictly and sends its version with every request. A client that names no version gets
everything.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Final

from fastapi import Depends, Request

from chockstone.catalog import CheckpointKind

_VERSION_HEADER: Final = "X-Stainless-Package-Version"
_FIRST_WITH_EXTERNAL: Final = (0, 28)  # older ones fail on a list that holds an external checkpoint
_VERSION: Final = re.compile(r"([0-9]{1,6})\.([0-9]{1,6})(?:\.|$)", re.ASCII)


def kinds_known_to(version: str | None) -> Sequence[CheckpointKind] | None:
    """The kinds of checkpoints that an SDK of this version can list; None for all of them."""
    found = _VERSION.match(version or "")
    if found is None or (int(found[1]), int(found[2])) >= _FIRST_WITH_EXTERNAL:
        return None
    return "weights", "sampler_weights"


def _kinds(request: Request) -> Sequence[CheckpointKind] | None:
    return kinds_known_to(request.headers.get(_VERSION_HEADER))


KnownKindsDep = Annotated[Sequence[CheckpointKind] | None, Depends(_kinds)]
