"""Random state: every generator a training step may draw from, as one thing to save and restore.

``RandomState(per_rank=True)`` saves the state of each rank: one row of bytes per rank and generator.
"""

from __future__ import annotations

import hashlib
import random
import struct
import sys
from collections.abc import Mapping, Sequence
from operator import index
from typing import Any, Final

import numpy as np

from chockstone.checkpoints.errors import RestoreFailed, UnstorableValue
from chockstone.checkpoints.format.shards import Pieces
from chockstone.extras import require

_ROWS: Final = "rows"  # the key below which the states of all ranks stand
_PYTHON: Final = struct.Struct("<625I?d")  # words and position; whether a normal number is kept back, and which
_NUMPY_WORDS: Final = 624
_NUMPY: Final = struct.Struct("<624Iiid")  # words, position; whether a normal number is kept back, and which


class RandomState:
    """The global generators of Python, numpy, torch and each CUDA device.

    Put one into the state to be saved. Generators of your own go in beside it, as
    ``generator.get_state()`` or ``rng.bit_generator.state``.

    A save of several ranks takes the generators of rank 0, and a restore gives them to all ranks. With ``per_rank``
    each rank saves its own generators and gets them back; of CUDA, that of its current device. After a restore on more
    ranks than were saved, a rank without a saved state is seeded from the state of rank 0 and its own number, and the
    receipt says so.
    """

    def __init__(self, *, per_rank: bool = False) -> None:
        self._per_rank = per_rank
        self._restored = ""

    @property
    def restored(self) -> str:
        """Which ranks got their state in the last restore; empty unless states of ranks were asked for or saved."""
        return self._restored

    def state_dict(self) -> dict[str, Any]:
        return {_ROWS: _take_rows()} if self._per_rank else _take()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        by_rank = _ROWS in state
        rank, world_size = _position() if self._per_rank or by_rank else (0, 1)
        own, saved = _own_rows(state[_ROWS], rank, world_size) if by_rank else (state, 1)
        if rank < saved:
            _set(_decode(own) if by_rank else state)
        else:
            _seed(own, rank)
        self._restored = _describe(saved, world_size) if self._per_rank or by_rank else ""


def states_of_ranks(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The generators of each saved rank, as their modules take them: ``python``, ``numpy``, ``torch`` and ``cuda``.

    ``state`` is what a RandomState saved, loaded as whole tensors.
    """
    if _ROWS not in state:
        return [dict(state)]
    rows = state[_ROWS]
    return [_decode({name: value[rank] for name, value in rows.items()}) for rank in range(len(rows["torch"]))]


def join_ranks(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The inverse of ``states_of_ranks``: generators of each rank as a RandomState with ``per_rank`` restores them."""
    require("torch", "the random state of each rank")
    import torch

    rows = [_encode(state) for state in states]
    common = [name for name in rows[0] if all(name in row for row in rows)]
    return {_ROWS: {name: torch.stack([row[name] for row in rows]) for name in common}}


def _take() -> dict[str, Any]:
    state: dict[str, Any] = {"python": random.getstate(), "numpy": np.random.get_state()}
    if (torch := sys.modules.get("torch")) is not None:
        state["torch"] = torch.get_rng_state()
        if torch.cuda.is_available():
            state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def _set(state: Mapping[str, Any]) -> None:
    _check_numpy(state["numpy"])
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    if "torch" in state:
        require("torch", "the generator of torch")
        import torch

        torch.set_rng_state(state["torch"])
        if "cuda" not in state or not torch.cuda.is_available():
            return
        if isinstance(state["cuda"], torch.Tensor):
            torch.cuda.set_rng_state(state["cuda"])
        else:
            torch.cuda.set_rng_state_all(state["cuda"])


def _check_numpy(state: Any) -> None:
    """Raise RestoreFailed for a state that numpy would take and then read outside of its memory."""
    match state:
        case ("MT19937", keys, position, kept_back, _):
            words = np.shape(keys)
        case _:
            return  # numpy refuses other generators
    try:
        is_sound = words == (_NUMPY_WORDS,) and 0 <= index(position) <= _NUMPY_WORDS and index(kept_back) in (0, 1)
    except TypeError:
        is_sound = False
    if not is_sound:
        raise RestoreFailed(
            f"the random state of numpy in the checkpoint is not one: {list(words)} words, position {position!r:.40}. "
            "Restore another checkpoint, or leave out the RandomState"
        )


def _take_rows() -> dict[str, Pieces]:
    """The generators of this rank, each as its row of a tensor of bytes."""
    require("torch", "the random state of each rank")
    import torch

    state = {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state().cpu()
    rows = _encode(state)
    rank, world_size = _position()
    return {
        each: Pieces((world_size, row.numel()), torch.uint8, [(rank * row.numel(), row)]) for each, row in rows.items()
    }


def _encode(state: Mapping[str, Any]) -> dict[str, Any]:
    """The generators of one rank as rows of bytes."""
    _, words, kept_back = state["python"]
    name, keys, position, has_kept_back, normal = state["numpy"]
    if name != "MT19937":
        raise UnstorableValue("numpy", f"the generator {name!r} cannot be stored for each rank, only 'MT19937'")
    rows = {
        "python": _row(_PYTHON.pack(*words, kept_back is not None, kept_back or 0.0)),
        "numpy": _row(_NUMPY.pack(*map(int, keys), position, has_kept_back, normal)),
    }
    return rows | {name: state[name] for name in ("torch", "cuda") if name in state}


def _decode(rows: Mapping[str, Any]) -> dict[str, Any]:
    """The generators of one rank, from its rows."""
    *words, has_kept_back, normal = _PYTHON.unpack(bytes(rows["python"].tolist()))
    state: dict[str, Any] = {"python": (3, tuple(words), normal if has_kept_back else None)}
    *keys, position, has_kept_back, normal = _NUMPY.unpack(bytes(rows["numpy"].tolist()))
    state["numpy"] = ("MT19937", np.array(keys, dtype=np.uint32), position, has_kept_back, normal)
    return state | {name: rows[name].clone() for name in ("torch", "cuda") if name in rows}


def _own_rows(rows: Mapping[str, Any], rank: int, world_size: int) -> tuple[dict[str, Any], int]:
    """This rank's row of each generator, or rank 0's if there is none; and how many ranks were saved."""
    own: dict[str, Any] = {}
    saved = 0
    for name, value in rows.items():
        if isinstance(value, Pieces):  # of as many ranks as there are now: only the own row was read
            own[name], saved = value.pieces[0][1], world_size
        else:
            saved = len(value)
            own[name] = value[rank if rank < saved else 0]
    return own, saved


def _seed(first: Mapping[str, Any], rank: int) -> None:
    """Seed all generators of a rank that has no saved state, from the generators of rank 0: the same each time."""
    origin = first["torch"].tolist() if "torch" in first else first["python"]
    seed = int.from_bytes(hashlib.sha256(f"{origin} {rank}".encode()).digest()[:7], "little")
    random.seed(seed)
    np.random.seed(seed % 2**32)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(seed)


def _describe(saved: int, world_size: int) -> str:
    if saved > world_size:
        return f"states of {world_size} of the {saved} ranks that were saved"
    states = f"states of {saved} ranks" if saved > 1 else "the state of 1 rank"
    if saved == world_size:
        return states
    new = f"ranks {saved} to {world_size - 1}" if world_size - saved > 1 else f"rank {saved}"
    return f"{states}; seeded anew: {new}"


def _position() -> tuple[int, int]:
    """Rank and world size of this process."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return 0, 1
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def _row(content: bytes) -> Any:  # Any: a torch tensor; torch is not imported at the top
    import torch

    return torch.frombuffer(bytearray(content), dtype=torch.uint8)
