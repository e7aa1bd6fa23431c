"""Restoring: an archive's state put back into live objects.

First everything is compared and every tensor gets a place; a mismatch is raised then, with nothing
touched. Then the tensors are read, verified on the way, and last ``load_state_dict`` of the objects is called. A tensor
that the target already has is filled in place; others are made.
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import replace
from typing import Any, Final

from chockstone.checkpoints.errors import DamagedArchive, RestoreFailed, RestoreMismatch
from chockstone.checkpoints.format.safetensors_header import SUFFIX
from chockstone.checkpoints.format.shards import UnsupportedSharding, local_tensor_of
from chockstone.checkpoints.format.tree import TensorReference, unflatten
from chockstone.checkpoints.reading.archive import Archive
from chockstone.checkpoints.reading.reader import FileMapping, Reader
from chockstone.checkpoints.restoring.destinations import RestoreDestinations, fits, is_tensor, show
from chockstone.checkpoints.restoring.optimizer_templates import add_templates
from chockstone.checkpoints.restoring.random_state import RandomState
from chockstone.checkpoints.restoring.receipt import Restored, RestoredPart

_NAMED: Final = 8  # differences that a message spells out
_PLAIN_VALUES: Final = frozenset({bool, bytes, float, int, str, type(None)})


def restore_state(
    archive: Archive,
    into: MutableMapping[str, Any],
    *,
    strict: bool = True,
    on_bytes: Callable[[int], None] = lambda _: None,
    agree: Callable[[], None] | None = None,
) -> Restored:
    """Restore the archive's state into ``into``. Raises RestoreMismatch before anything is changed.

    Damage is found while some tensors are already filled. The target is then neither old nor new: restore another
    archive into it, or discard it.

    Each rank reads its shards of sharded tensors. Ranks that restore together pass ``agree``. It is called before
    anything is changed and again when everything is read, and raises on all ranks if one of them failed.
    """
    plan = _Plan(archive)
    with Reader(archive, None if agree is None else ()) as reader:  # what lies ahead may be for other ranks alone
        plan.place(archive.state(), into)
        if plan.wrong or (strict and (plan.missing or plan.unexpected)):
            raise plan.mismatch()
        if agree is not None:
            agree()
        try:
            reader.deliver(plan.destinations.targets, on_bytes=on_bytes)
            if agree is not None:
                agree()
        except DamagedArchive as error:
            error.touched = True
            raise
    for step in (*plan.destinations.copies, *plan.early, *plan.late):
        step()
    parts = tuple(replace(part, detail=describe()) for part, describe in plan.parts)
    return Restored(parts, tuple(plan.missing), tuple(plan.unexpected))


def load_state(archive: Archive) -> dict[str, Any]:
    """The archive's state as new objects, verified.

    Where the archive is a file, its tensors are views of it, mapped privately: nothing is copied,
    writing to them does not change the file, and they outlive ``archive``.
    """
    memory = archive.map()
    mapping = None if memory is None else FileMapping(memory)
    plan = _Plan(archive, mapping)
    into: dict[str, Any] = {}
    plan.place(archive.state(), into)
    if plan.wrong:
        raise plan.mismatch()
    if mapping is not None:
        mapping.verify(archive, plan.destinations.spans)
    plan.destinations.read()
    for step in plan.early:
        step()
    return into


def load_tensor(archive: Archive, member: str, key: str) -> Any:
    """One tensor, verified, without reading the rest: ``load_tensor(archive, "model", "embed.weight")``."""
    destinations = RestoreDestinations(archive)
    reference = TensorReference(member.removesuffix(SUFFIX), key, None, None, "torch")
    made = destinations.make(reference, *destinations.find(reference))
    destinations.read()
    return made


class _Plan:
    """What goes where, and what does not fit."""

    def __init__(self, archive: Archive, mapping: FileMapping | None = None) -> None:
        self.destinations = RestoreDestinations(archive, mapping)
        self.early: list[Callable[[], object]] = []
        self.late: list[Callable[[], object]] = []  # random states: loading other things may draw
        self.parts: list[tuple[RestoredPart, Callable[[], str]]] = []  # with what describes it once it is restored
        self.missing: list[str] = []
        self.unexpected: list[str] = []
        self.wrong: list[str] = []
        self._tensors = 0
        self._bytes = 0

    def place(self, skeleton: Any, into: MutableMapping[Any, Any]) -> None:
        try:
            self.place_mapping(unflatten(skeleton, lambda reference: reference), into, "")
        except RecursionError as error:
            raise DamagedArchive("state.json is nested deeper than any state that was saved") from error

    def place_mapping(self, saved: Any, into: MutableMapping[Any, Any], path: str) -> None:
        """Fit ``saved`` into a mapping of live things; an empty one takes everything."""
        if not isinstance(saved, Mapping):
            self.wrong.append(f"{path or 'state'}: the archive holds a {type(saved).__name__}, not a mapping")
            return
        if into:
            self._compare(saved, into, path)
        for key, value in saved.items():
            if not into or key in into:
                self._place_thing(value, into, key, _join(path, key))

    def _place_thing(self, saved: Any, into: MutableMapping[Any, Any], key: Any, path: str) -> None:
        live: Any = into.get(key)
        if isinstance(live, MutableMapping) and _holds_stateful(live):
            self.place_mapping(saved, live, path)
            return
        if isinstance(live, list | tuple) and _holds_stateful(live):
            self._place_sequence(saved, live, path)
            return
        self._tensors = self._bytes = 0
        if _is_module(live):
            tree = self._place_module(saved, live, path)
        elif _is_stateful(live):
            live_state = add_templates(
                saved, live.state_dict(), live, lambda reference: self.destinations.find(reference)[1:]
            )
            tree = self._fill(saved, live_state, path, exact=False)
            self._compare_groups(saved, live, path)
            steps = self.late if isinstance(live, RandomState) else self.early
            steps.append(lambda: _load_state_dict(live, tree, path))
        else:
            tree = self._fill(saved, live, path, exact=True)
            self.early.append(lambda: _assign(into, key, live, tree))
        what = type(tree if live is None else live).__name__
        describe = (lambda: live.restored) if isinstance(live, RandomState) else (lambda: _describe(tree))
        self.parts.append((RestoredPart(path, what, self._tensors, self._bytes), describe))

    def _place_sequence(self, saved: Any, live: Any, path: str) -> None:
        """Fit a list or tuple that holds live objects; each item is restored where it is."""
        if not isinstance(saved, list | tuple) or len(saved) != len(live):
            self.wrong.append(f"{path}: the target has {len(live)} items, the archive {_count(saved)}")
            return
        items = dict(enumerate(live))
        self.place_mapping(dict(enumerate(saved)), items, path)
        if isinstance(live, list):
            self.early.append(lambda: live.__setitem__(slice(None), items.values()))

    def _place_module(self, saved: Any, module: Any, path: str) -> Any:
        if not isinstance(saved, dict):
            self.wrong.append(f"{path}: the archive holds a {type(saved).__name__}, not the state of a module")
            return saved
        tree = self._fill(saved, module.state_dict(), path, exact=True)
        if not _is_own(module, tree):
            self.early.append(lambda: _load_state_dict(module, tree, path, strict=False))
        return tree

    def _fill(self, saved: Any, live: Any, path: str, *, exact: bool) -> Any:
        """``saved`` with every reference replaced by the tensor that will hold its bytes.

        ``exact``: ``live`` and the saved state must have the same structure. Otherwise ``live`` only provides tensors
        to fill, as with optimizers, which allocate their moments late.
        """
        if isinstance(saved, TensorReference):
            return self._tensor(saved, live, path, exact=exact)
        if exact and is_tensor(live):
            self.wrong.append(f"{path}: the target is {show(live)}, the archive holds a {type(saved).__name__}")
            return live
        if isinstance(saved, dict):
            inner = live if isinstance(live, Mapping) else {}
            if exact and inner:
                self._compare(saved, inner, path)
            items: dict[Any, Any] = {}
            for key, item in saved.items():
                there = inner.get(key)
                if type(item) is TensorReference and self._fill_plain(item, there):
                    items[key] = there
                elif key in inner or not (exact and inner):
                    items[key] = self._fill(item, there, _join(path, key), exact=exact)
            return _like(saved, items)
        if type(saved) in (list, tuple):
            sequence = live if isinstance(live, list | tuple) and len(live) == len(saved) else [None] * len(saved)
            if exact and sequence is not live and isinstance(live, list | tuple) and any(map(is_tensor, live)):
                self.wrong.append(f"{path}: the target has {len(live)} items, the archive {len(saved)}")
            filled = [self._fill(item, sequence[i], f"{path}[{i}]", exact=exact) for i, item in enumerate(saved)]
            return filled if isinstance(saved, list) else tuple(filled)
        return saved

    def _fill_plain(self, reference: TensorReference, live: Any) -> bool:
        """As ``_tensor`` for the tensors that most states consist of; False: nothing was done."""
        size = self.destinations.use_plain(reference, live)
        if size is None:
            return False
        self._tensors += 1
        self._bytes += size
        return True

    def _tensor(self, reference: TensorReference, live: Any, path: str, *, exact: bool) -> Any:
        tensor, dtype, shape = self.destinations.find(reference)
        self._tensors += 1
        self._bytes += tensor.entry.size
        if fits(live, dtype, shape):
            try:
                self.destinations.use(live, tensor)
            except UnsupportedSharding as error:
                self.wrong.append(f"{path}: {error}")
            return live
        if exact and is_tensor(live):
            self.wrong.append(f"{path}: the archive holds {dtype.torch_name}{list(shape)}, the target {show(live)}")
            return live
        return self.destinations.make(reference, tensor, dtype, shape)

    def _compare(self, saved: Mapping[Any, Any], live: Mapping[Any, Any], path: str) -> None:
        if live.keys() == saved.keys():
            return
        self.missing += [_join(path, key) for key in live if key not in saved]
        self.unexpected += [_join(path, key) for key in saved if key not in live]

    def _compare_groups(self, saved: Any, live: Any, path: str) -> None:
        """Compare parameter counts early: the optimizer would notice only after other objects have been restored."""
        groups = saved.get("param_groups") if isinstance(saved, Mapping) else None
        live_groups = getattr(live, "param_groups", None)
        if not (isinstance(groups, list) and isinstance(live_groups, list)):
            return
        counts, live_counts = _parameter_counts(groups), _parameter_counts(live_groups)
        if counts != live_counts:
            self.wrong.append(
                f"{path}: parameters per group are {counts} in the archive and {live_counts} in the target"
            )

    def mismatch(self) -> RestoreMismatch:
        lines = [f"wrong: {line}" for line in self.wrong]
        lines += [f"missing from the archive: {path}" for path in self.missing]
        lines += [f"unexpected in the archive: {path}" for path in self.unexpected]
        if len(lines) > _NAMED:
            lines[_NAMED:] = [f"… and {len(lines) - _NAMED} more"]
        advice = "" if self.wrong else " Pass strict=False to take what fits."
        return RestoreMismatch(
            "the archive does not fit what it is restored into; nothing was changed.\n  "
            + "\n  ".join(lines)
            + f"\nRestore into the structure that was saved.{advice}",
            missing=tuple(self.missing),
            unexpected=tuple(self.unexpected),
        )


def _join(path: str, key: object) -> str:
    if not path:
        return str(key)
    return f"{path}.{key}" if isinstance(key, str) else f"{path}[{key!r}]"


def _like(saved: dict[Any, Any], items: dict[Any, Any]) -> dict[Any, Any]:
    if isinstance(saved, Counter):
        return Counter(items)
    if not isinstance(saved, OrderedDict):
        return items
    ordered = OrderedDict(items)
    if hasattr(saved, "_metadata"):
        ordered._metadata = saved._metadata  # type: ignore[attr-defined]  # nn.Module's own habit
    return ordered


def _assign(into: MutableMapping[Any, Any], key: Any, live: Any, tree: Any) -> None:
    """Assign a plain value: into the existing container, or replacing the old value."""
    if isinstance(live, dict) and isinstance(tree, dict):
        live.clear()
        live.update(tree)
    elif isinstance(live, list) and isinstance(tree, list):
        live[:] = tree
    elif tree is not live or key not in into:
        into[key] = tree


def _load_state_dict(live: Any, tree: Any, path: str, **options: Any) -> None:
    try:
        live.load_state_dict(tree, **options)
    except Exception as error:
        raise RestoreFailed(
            f"{path}: {type(live).__name__} does not take the state that the archive holds: "
            f"{type(error).__name__}: {str(error)[:300]}. Tensors are restored already; do not use this target."
        ) from error


def _is_stateful(value: object) -> bool:
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def _is_module(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def _is_own(module: Any, tree: Mapping[str, Any]) -> bool:
    """Whether filling these tensors restores the module: all of them are its own parameters and buffers."""
    own = {local_tensor_of(tensor).data_ptr() for tensor in (*module.parameters(), *module.buffers())}
    return all(
        is_tensor(value) and (local_tensor_of(value).data_ptr() in own or not value.numel()) for value in tree.values()
    )


def _is_plain_value(value: object) -> bool:
    kind, torch = type(value), sys.modules.get("torch")
    return kind in _PLAIN_VALUES or (torch is not None and kind is torch.Tensor)


def _holds_stateful(value: object) -> bool:
    if _is_plain_value(value):
        return False  # asked first: most values are such, and torch takes long to say what attribute a tensor lacks
    if isinstance(value, Mapping):
        return any(map(_holds_stateful, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_holds_stateful, value))
    return _is_stateful(value)


def _count(saved: Any) -> str:
    return str(len(saved)) if isinstance(saved, list | tuple) else f"a {type(saved).__name__}"


def _parameter_counts(groups: Iterable[Any]) -> list[int]:
    parameters = [group.get("params") if isinstance(group, Mapping) else None for group in groups]
    return [len(params) if isinstance(params, list) else -1 for params in parameters]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or (is_tensor(value) and tuple(value.shape) == ())


def _describe(tree: Any) -> str:
    """The line about an optimizer in the receipt."""
    states = tree.get("state") if isinstance(tree, Mapping) and "param_groups" in tree else None
    if not isinstance(states, Mapping):
        return ""
    slots = [state for state in states.values() if isinstance(state, Mapping)]
    names = sorted({str(name) for state in slots for name in state})
    counts = sorted({int(state["step"]) for state in slots if _is_number(state.get("step"))})
    steps = f"; step counts {', '.join(map(str, counts))}" if counts else ""
    return f"{len(slots)} parameters with {', '.join(names) or 'no state yet'}{steps}"
