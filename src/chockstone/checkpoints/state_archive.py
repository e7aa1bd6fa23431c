"""State archives: a state that does not change is written to an archive without a copy of it in memory.

For states that are files already, such as the checkpoints of other programs that an import maps. A live state goes
through ``Checkpointer.save``, which copies it first. Both write the same bytes.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from chockstone.checkpoints.errors import UnstorableValue
from chockstone.checkpoints.file_archive import SavedFiles, write_files
from chockstone.checkpoints.format.deferred_tensor import DeferredTensor
from chockstone.checkpoints.format.host_memory import Bytes
from chockstone.checkpoints.format.safetensors_header import SUFFIX
from chockstone.checkpoints.format.tree import STATE, Leaf, flatten
from chockstone.checkpoints.saving.file_image import MemberSource
from chockstone.checkpoints.saving.snapshot import Section, arrange, encode_state
from chockstone.checkpoints.stores.store import Store

_NONE: Final[Mapping[str, Any]] = MappingProxyType({})  # Any: plain JSON of the caller's


def write_state(
    store: Store,
    name: str,
    state: Mapping[str, object],
    *,
    files: Mapping[str, Path | bytes] = _NONE,
    kind: str = "weights",
    step: int | None = None,
    metadata: Mapping[str, Any] = _NONE,
    created_at: datetime,
    on_bytes: Callable[[int], None] = lambda _: None,
    on_plan: Callable[[int], None] = lambda _: None,
    check: Callable[[], None] = lambda: None,
) -> SavedFiles:
    """Commit an archive of ``state`` under a name that is not taken. Durable on return; nothing is visible when it
    raises.

    The caller must not change ``state`` before this returns. It may hold a DeferredTensor, which is made when it is
    written. ``check`` is called before the commit and may raise.
    Raises UnstorableValue for what an archive cannot hold, and for tensors of which this process has only shards.
    ``on_plan`` is called once with the size of the archive, and ``on_bytes`` from several threads.
    """
    tree = flatten(state, takes_deferred=True)
    for leaf in tree.leaves:
        if leaf.shards is not None:
            raise UnstorableValue(f"{leaf.group}.{leaf.key}", "a sharded tensor is saved with Checkpointer.save")
    arrangement = arrange(tree.leaves)
    members: dict[str, Path | bytes | MemberSource] = {
        STATE: encode_state(tree.skeleton),
        **files,
    }
    for section in arrangement.sections:
        members[section.name] = TensorMember(section, tree.leaves, arrangement.places, check)
    return write_files(
        store,
        name,
        members,
        kind=kind,
        step=step,
        metadata=metadata,
        created_at=created_at,
        on_bytes=on_bytes,
        on_plan=on_plan,
    )


class TensorMember:
    """A safetensors member whose bytes are taken from the tensors when they are written."""

    def __init__(
        self, section: Section, leaves: Sequence[Leaf], places: Sequence[int], check: Callable[[], None]
    ) -> None:
        self.size = len(section.header) + section.size
        self._header = np.frombuffer(section.header, dtype=np.uint8)
        shift = len(section.header) - section.start
        pairs = zip(places, leaves, strict=True)
        own = sorted(((place + shift, leaf) for place, leaf in pairs if _is_in(leaf, section)), key=itemgetter(0))
        self._starts = [start for start, _ in own]
        self._leaves = [leaf for _, leaf in own]
        self._check = check
        self._made = threading.local()

    def read_into(self, start: int, target: memoryview) -> None:
        """Fill ``target`` with the bytes of the member from ``start`` on."""
        memory = np.frombuffer(target, dtype=np.uint8)
        _copy(self._header, 0, memory, start)
        index = max(bisect_right(self._starts, start) - 1, 0)
        while index < len(self._starts) and self._starts[index] < start + len(memory):
            _copy(self._bytes_of(index), self._starts[index], memory, start)
            index += 1

    def check(self) -> None:
        self._check()

    def _bytes_of(self, index: int) -> Bytes:
        """The bytes of a tensor. One that is not contiguous is copied once for all of its chunks in this thread."""
        last: tuple[int, Bytes] | None = getattr(self._made, "last", None)
        if last is None or last[0] != index:
            last = self._made.last = (index, _flat(self._leaves[index].value))
        return last[1]


def _is_in(leaf: Leaf, section: Section) -> bool:
    return leaf.group + SUFFIX == section.name and 0 not in leaf.shape


def _flat(value: Any) -> Bytes:  # Any: a torch tensor, a numpy array or a DeferredTensor
    if isinstance(value, DeferredTensor):
        value = value.numbers()
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    import torch

    plain = value.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    flat: Bytes = plain.view(torch.uint8).numpy()
    return flat


def _copy(content: Bytes, offset: int, memory: Bytes, start: int) -> None:
    """Copy into ``memory``, which begins at ``start``, what lies in it of the content that belongs at ``offset``."""
    first, last = max(offset, start), min(offset + len(content), start + len(memory))
    if first < last:
        memory[first - start : last - start] = content[first - offset : last - offset]
