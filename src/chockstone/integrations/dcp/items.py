"""Items of a save plan as a state: what each rank has of which tensor, and the values that are no tensors.

Each rank collects its items. Rank 0 gets the names and shapes of all ranks and their values, and makes the state of
them, nested as it was before DCP flattened it. The other ranks get the list of its tensors.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType

from chockstone.checkpoints.errors import SaveFailed, UnstorableValue
from chockstone.checkpoints.format.byte_runs import box_runs
from chockstone.checkpoints.format.dtypes import BY_NAME, numpy_dtype
from chockstone.checkpoints.format.shards import Box, Boxes, TensorShards
from chockstone.checkpoints.format.tree import Json, Leaf, TensorReference, Tree, flatten, unflatten

Path = tuple[str | int, ...]  # from the top of the state


@dataclass(slots=True)
class RankTensor:
    """One tensor, and what this rank has of it."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    parts: list[tuple[Box, torch.Tensor]] = field(default_factory=list)

    def boxes(self) -> Boxes:
        """Its parts in rising order. Parts that interleave in the file are cut into their rows."""
        parts = sorted(self.parts, key=lambda part: part[0].offsets)
        spans = [_span(self.shape, box) for box, _ in parts]
        if all(before[1] <= after[0] for before, after in pairwise(spans)):
            return Boxes(self.shape, self.dtype, [(box.offsets, tensor) for box, tensor in parts])
        rows = sorted(row for box, tensor in parts for row in _rows(self.shape, box, tensor))
        return Boxes(self.shape, self.dtype, [((first,), row) for first, _, row in rows], is_flat=True)


def _span(shape: tuple[int, ...], box: Box) -> tuple[int, int]:
    """First element of a box in its tensor, and the one after its last."""
    runs = box_runs(shape, box, 1)
    return runs[0].start, runs[-1].start + (runs[-1].times - 1) * runs[-1].stride + runs[-1].length


def _rows(shape: tuple[int, ...], box: Box, tensor: torch.Tensor) -> Iterator[tuple[int, int, torch.Tensor]]:
    """The stretches of a box that are contiguous in its tensor: place in it, a number that is unique, and content."""
    content, position = tensor.reshape(-1), 0
    for run in box_runs(shape, box, 1):
        for number in range(run.times):
            yield run.start + number * run.stride, position, content[position : position + run.length]
            position += run.length


@dataclass(slots=True)
class RankItems:
    """What one rank writes."""

    paths: dict[str, Path]  # of everything in this rank's state, by flat name
    is_flat: bool  # whether the planner flattened the state
    tensors: dict[str, RankTensor] = field(default_factory=dict)
    values: dict[str, object] = field(default_factory=dict)

    def describe(self, *, packs_values: bool) -> Json:
        """For rank 0: names, shapes and values. Rank 0 needs no copy of its own values."""
        tensors = [
            [name, self.path(name), str(tensor.dtype)[6:], tensor.shape] for name, tensor in self.tensors.items()
        ]
        values = [
            [name, self.path(name), _pack(self.path(name), value) if packs_values else None]
            for name, value in self.values.items()
        ]
        return {"tensors": tensors, "values": values}

    def path(self, name: str) -> Path:
        return self.paths.get(name, (name,))


def collect_items(plan: SavePlan, planner: SavePlanner) -> RankItems:
    """The items of a plan, with their data. Tensors are referred to, not copied."""
    is_flat = isinstance(plan.planner_data, Mapping)
    items = RankItems(dict(plan.planner_data) if is_flat else {}, is_flat)
    for item in plan.items:
        name = item.index.fqn
        if item.type is WriteItemType.BYTE_IO:
            items.values[name] = _value(planner, item)
            continue
        assert item.tensor_data is not None, "every tensor item says what it is"
        data = planner.resolve_data(item)
        if not isinstance(data, torch.Tensor):
            raise UnstorableValue(name, f"the planner gives a {type(data).__name__} for an item that is a tensor")
        shape, chunk = tuple(item.tensor_data.size), item.tensor_data.chunk
        tensor = items.tensors.setdefault(name, RankTensor(data.dtype, shape))
        box = Box(tuple(chunk.offsets), tuple(chunk.sizes))
        if box.elements:
            if tuple(data.shape) != box.sizes or data.dtype != tensor.dtype or data.layout is not torch.strided:
                found = f"{data.dtype}, {data.layout}, {list(data.shape)}"
                raise UnstorableValue(name, f"its part {list(box.sizes)} of {tensor.dtype} is here as {found}")
            tensor.parts.append((box, data.detach()))
    return items


def _value(planner: SavePlanner, item: WriteItem) -> object:
    """A value that is no tensor, as it is in the state. The default planner would pickle it."""
    if isinstance(planner, DefaultSavePlanner) and all(
        getattr(type(planner), method) is getattr(DefaultSavePlanner, method)
        for method in ("resolve_data", "transform_object")
    ):
        return planner.lookup_object(item.index)
    data = planner.resolve_data(item)
    assert isinstance(data, io.BytesIO), "every other item is bytes"
    data.seek(0)
    try:
        return torch.load(data, weights_only=True)
    except Exception as error:
        raise UnstorableValue(
            item.index.fqn,
            f"the planner {type(planner).__name__} gives bytes that torch.load(weights_only=True) does not read, and "
            "pickles are not stored. Give it as numbers, strings, containers or tensors",
        ) from error


def make_tree(items: Sequence[Json], own: RankItems) -> tuple[Tree, list[str | None]]:
    """On rank 0: the state of all ranks, and the flat name of each of its tensors; None for one inside a value.

    ``items``: what each rank described, in order. ``own``: the items of this rank.
    """
    places: dict[str, Path] = {}
    contents: dict[str, object] = {}
    for rank, described in enumerate(items):
        for name, path, dtype, shape in described["tensors"]:
            known = contents.get(name)
            if known is None:
                mine = own.tensors.get(name) or RankTensor(getattr(torch, dtype), tuple(shape))
                places[name], contents[name] = tuple(path), mine.boxes()
            elif not isinstance(known, Boxes) or (str(known.dtype)[6:], list(known.shape)) != (dtype, list(shape)):
                raise SaveFailed(f"{name}: rank {rank} has {dtype}{list(shape)}, and another rank something else")
        for name, path, packed in described["values"]:
            places[name] = tuple(path)
            contents[name] = own.values[name] if name in own.values else _unpack(packed)
    order = {name: number for number, name in enumerate(own.paths)}  # as rank 0's state has them
    state: dict[str, Any] = {}
    for name in sorted(contents, key=lambda name: order.get(name, len(order))):
        set_element(state, places[name], contents[name])
    tree = flatten(state)
    names = {id(content): name for name, content in contents.items()}
    for leaf in tree.leaves:
        if leaf.shards is None and isinstance(leaf.value, torch.Tensor):  # inside a value, which rank 0 alone has
            shape = tuple(leaf.shape)
            leaf.shards = TensorShards(shape, (Box((0,) * len(shape), shape),) if math.prod(shape) else ())
            leaf.local_tensors = (leaf.value,)
    return tree, [names.get(id(leaf.value)) for leaf in tree.leaves]


def single_tree(own: RankItems) -> Tree:
    """The state of a process that saves alone. Whole tensors stand in it as they are, so that tied ones are found."""
    state: dict[str, Any] = {}
    order = {name: number for number, name in enumerate(own.paths)}
    contents: dict[str, object] = {name: _whole(tensor) for name, tensor in own.tensors.items()} | own.values
    for name in sorted(contents, key=lambda name: order.get(name, len(order))):
        set_element(state, own.path(name), contents[name])
    return flatten(state)


def _whole(tensor: RankTensor) -> object:
    if not math.prod(tensor.shape):
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    boxes = [box for box, _ in tensor.parts]
    return tensor.parts[0][1] if len(boxes) == 1 and boxes[0].sizes == tensor.shape else tensor.boxes()


def describe_leaves(tree: Tree, names: Sequence[str | None]) -> Json:
    """For the other ranks: the tensors of the state, in the order of the archive."""
    leaves = zip(tree.leaves, names, strict=True)
    return [[leaf.group, leaf.key, leaf.dtype.name, leaf.shape, leaf.aliases, name] for leaf, name in leaves]


def join_tree(described: Json, own: RankItems) -> Tree:
    """On the other ranks: the same tensors, with what this rank has of them. Rank 0 alone has the rest of the state."""
    leaves = []
    for group, key, dtype, shape, aliases, name in described:
        leaf = Leaf(group, key, BY_NAME[dtype], tuple(shape), None, tuple(aliases), TensorShards(tuple(shape), ()))
        if name in own.tensors:
            boxes = own.tensors[name].boxes()
            leaf.shards, leaf.local_tensors = boxes.shards, boxes.tensors
        leaves.append(leaf)
    return Tree({}, leaves)


def _pack(path: Path, value: object) -> Json:
    """A value as JSON, with the tensors and arrays in it."""
    try:
        tree = flatten({"value": value})
    except UnstorableValue as error:
        where = "".join(f".{part}" if isinstance(part, str) else f"[{part}]" for part in path)[1:]
        raise UnstorableValue(where + error.path.removeprefix("value"), error.why) from None
    arrays = {}
    for leaf in tree.leaves:
        content = leaf.value
        if isinstance(content, torch.Tensor):
            content = content.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        arrays[leaf.key] = [leaf.dtype.name, list(leaf.shape), base64.b64encode(content.tobytes()).decode("ascii")]
    return {"skeleton": tree.skeleton, "arrays": arrays}


def _unpack(packed: Json) -> object:
    def array(reference: TensorReference) -> object:
        name, shape, content = packed["arrays"][reference.key]
        memory = np.frombuffer(bytearray(base64.b64decode(content)), np.uint8)
        if reference.form == "torch":
            dtype = getattr(torch, BY_NAME[name].torch_name)
            return torch.from_numpy(memory).view(dtype).view(shape) if len(memory) else torch.empty(shape, dtype=dtype)
        found = memory.view(numpy_dtype(BY_NAME[name], reference.key)).reshape(shape)
        return found[()] if reference.form == "numpy.scalar" else found

    return unflatten(packed["skeleton"], array)["value"]
