"""Routing records: which experts were chosen for the tokens of recent samples, kept until those tokens are trained.

Records are in memory only and bounded. A pass that is trained with one carries it in its journal record, so a replay
does not need them. A user's records are found for the same user only.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from chockstone.wire.codecs.routing import digest_tokens, join_records
from chockstone.wire.model_names import ModelName

KEPT_BYTES: Final = 256 << 20
_ENTRY_BYTES: Final = 200  # of a record beyond its content


class RoutingRecords:
    def __init__(self, *, kept_bytes: int = KEPT_BYTES) -> None:
        """``kept_bytes`` 0: nothing is kept."""
        self._kept_bytes = kept_bytes
        self._records: dict[str, OrderedDict[tuple[str, str], bytes]] = {}  # by owner; then model and digest, old first
        self._bytes: Counter[str] = Counter()  # by owner

    @property
    def size_bytes(self) -> int:
        return self._bytes.total()

    def add(self, owner: str, base_model: str, records: Mapping[str, bytes]) -> None:
        """Keep the newest of records with the same digest. The owner with the most bytes makes room."""
        kept = self._records.setdefault(owner, OrderedDict())
        model = ModelName.parse(base_model).base
        for digest, record in records.items():
            self._drop(owner, (model, digest))
            kept[model, digest] = record
            self._bytes[owner] += len(record) + _ENTRY_BYTES
        while self.size_bytes > self._kept_bytes:
            largest, _ = self._bytes.most_common(1)[0]
            self._drop(largest, next(iter(self._records[largest])))

    def has_any(self, owner: str) -> bool:
        return bool(self._records.get(owner))

    def find(self, owner: str, base_model: str, data: Sequence[npt.NDArray[np.int32]]) -> bytes:
        """The joined records of the datums of a pass; empty if there is none.

        A sample's record ends before its last token, which the model did not read. A datum may have that token.
        """
        kept = self._records.get(owner, OrderedDict())
        model = ModelName.parse(base_model).base
        found = [
            kept.get((model, digest_tokens(tokens))) or kept.get((model, digest_tokens(tokens[:-1]))) or b""
            for tokens in data
        ]
        return join_records(found) if any(found) else b""

    def _drop(self, owner: str, key: tuple[str, str]) -> None:
        record = self._records[owner].pop(key, None)
        if record is not None:
            self._bytes[owner] -= len(record) + _ENTRY_BYTES
