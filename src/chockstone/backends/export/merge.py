# tensors carry their axes
"""Merging: writes a saved run and its base model as one Hugging Face directory that needs neither of them.

For a LoRA run ``W + scale * up @ down`` is computed in float32 and written in the type of the base. If the run was
trained on a quantised base, ``W`` is the dequantised weight. For a rank-0 run its weights replace those of the base.
The base is read and the result written a few megabytes at a time.

Shapes: I in, O out, R rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from chockstone.backends.export.base_files import BaseFiles, TensorShape, row_ranges
from chockstone.backends.export.expert_files import KNOWN, choose_expert_files
from chockstone.backends.export.model_files import CONFIG, read_companions, read_config, render_config, untied
from chockstone.backends.export.peft_matrices import read_peft_matrices
from chockstone.backends.export.quantised_base import BaseNumbers, open_as_trained, unquantised
from chockstone.backends.export.shards import SHARD_BYTES, Output, write_file, write_shards
from chockstone.backends.export.weight_sources import find_sources, find_ties
from chockstone.backends.quantisation.layers import FULL, PRECISIONS, quantised_layers
from chockstone.backends.run_spec import ALPHA, RunSpec
from chockstone.checkpoints import Archive
from chockstone.checkpoints.errors import ExportRefused
from chockstone.checkpoints.format.dtypes import BY_NAME
from chockstone.checkpoints.reading.archive import ArchiveTensor
from chockstone.checkpoints.reading.reader import ReadTarget, read_targets
from chockstone.checkpoints.restoring.new_directory import new_directory
from chockstone.checkpoints.stores.posix import fsync_directory
from chockstone.sampling.adapter import LowRank
from chockstone.sampling.experts.modules import make_experts_adaptable
from chockstone.wire.failures import BadRequest, RequestError

_MERGEABLE: Final = ("F64", "F32", "BF16", "F16")  # tensors of other types cannot be merged


@dataclass(frozen=True, slots=True)
class MergedModel:
    """A run merged into its base model. The weights are computed when they are read, a few megabytes at a time."""

    outputs: Sequence[Output]  # named and cut as the files of the base, or as in memory
    config: dict[str, Any]  # Any: JSON, of its config.json
    parsed_config: Any  # Any: the config of transformers, for text only
    companions: Mapping[str, bytes]  # files of the tokenizer and the generation settings
    shapes: Mapping[str, tuple[int, ...]]  # of all weights, by their names in memory
    names: Mapping[str, str]  # by the key of an output: the weight that it is, or is a part of; not for unused tensors
    embedding: str  # name of the input embeddings' weight
    head: str  # name of the output layer's weight
    is_tied: bool  # the output layer has no weight of its own, unless the outputs have one


def merge_archive(
    archive: Archive,
    base: Path,
    directory: Path,
    *,
    on_bytes: Callable[[int], None] = lambda _: None,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write the model into ``directory``, which must not exist; its parent must.

    ``archive`` is of any kind and not encrypted. ``base`` is the directory of the run's base model. ``on_bytes`` is
    called with numbers of bytes written. On return everything is durable. Raises ExportRefused, DamagedArchive or
    StoreError, and leaves nothing behind then.
    """
    with open_merged(archive, base) as model, new_directory(directory) as partial:
        write_shards(model.outputs, partial, shard_bytes=shard_bytes, on_bytes=on_bytes)
        for name, content in {CONFIG: render_config(model.config), **model.companions}.items():
            write_file(partial / name, content)
            on_bytes(len(content))
        fsync_directory(partial)


@contextmanager
def open_merged(archive: Archive, base: Path) -> Iterator[MergedModel]:
    """The merged model, which can be read inside the block. Raises as merge_archive does."""
    try:
        config = read_config(base)
        companions = read_companions(base)
        spec = _spec(archive)
    except RequestError as error:
        raise ExportRefused(str(error)) from error
    with BaseFiles(base) as files:
        layout = _Layout(base, files)
        merging: _Full | _Lora
        if spec.is_full:
            merging = _Full(archive, files, layout)
        else:
            numbers = open_as_trained(files, config, layout.layers, trained_on=_precision(archive))
            merging = _Lora(archive, numbers, layout, spec)
        outputs = merging.outputs()
        yield MergedModel(
            outputs,
            unquantised(untied(config) if merging.unties else config),
            layout.config,
            companions,
            layout.shapes,
            {output.key: name for output in outputs if (name := layout.name(output.key)) is not None},
            layout.embedding,
            layout.head,
            layout.is_tied and not merging.unties,
        )


def _spec(archive: Archive) -> RunSpec:
    state = archive.state()
    if isinstance(state, dict) and state.get("encrypted"):
        raise ExportRefused("the checkpoint is encrypted; merge the one it was exported from, or another save of it")
    try:
        return RunSpec.from_json(state["run"]["spec"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ExportRefused("the archive is not a checkpoint of a run, so there is nothing to merge") from error


def _precision(archive: Archive) -> str:
    """The precision of the base model that a run was trained on."""
    precision = archive.state()["run"].get("base_precision", FULL)
    if precision not in PRECISIONS:
        raise ExportRefused(
            f"the run was trained on a base model of precision {precision!r:.80}, which this version does not know"
        )
    return str(precision)


class _Layout:
    """How the weights of a base model are named in its files, and which are tied or stored transposed.

    ``layers`` are the weights that a quantised base has quantised, by their keys in the files.
    """

    def __init__(self, base: Path, files: BaseFiles) -> None:
        try:
            config = AutoConfig.from_pretrained(base, local_files_only=True, trust_remote_code=False)
            with torch.device("meta"):
                model: Any = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]  # transformers'
                    config, trust_remote_code=False
                )
            names = {id(module): name for name, module in model.named_modules()}
            experts: dict[str, Any] = dict(make_experts_adaptable(model))  # Any: the attributes are transformers'
            self.experts = {name: bool(module.is_transposed) for name, module in experts.items()}  # [E, I, O]
            has_gate = all(module.has_gate for module in experts.values())
            self.first_name = "gate_up_proj" if has_gate else "up_proj"
            self.expert_files = choose_expert_files(str(config.get_text_config().model_type))
            self.embedding = f"{names[id(model.get_input_embeddings())]}.weight"
            self.head = f"{names[id(model.get_output_embeddings())]}.weight"
            self._sources = find_sources(model, files.shapes)
            self._names = {key: name for name, source in self._sources.items() for _, key in source.keys}
            self.shapes = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
            self.config = config.get_text_config()
            self.is_tied = self.head in find_ties(model)
            self.layers = {
                self.file_key(f"{name}.weight"): (layer.out_features, layer.in_features)
                for name, layer in quantised_layers(model).items()
            }
        except Exception as error:  # each file format raises its own
            raise ExportRefused(f"the model in {str(base)!r} is none that can be merged into: {error}") from error
        self.transposed = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, Conv1D)}

    def file_key(self, name: str) -> str:
        """The key of a weight in the files; its own name if the files have it under no other."""
        source = self._sources.get(name)
        return name if source is None or source.converter is not None else source.keys[0][1]

    def name(self, key: str) -> str | None:
        """The weight that a key of the files is, or is a part of; None if it is of no weight."""
        return self._names.get(key, key if key in self.shapes else None)

    def joined_keys(self, name: str) -> set[str]:
        """The keys of a weight in the files, if several tensors of the files become it in memory."""
        source = self._sources.get(name)
        return set() if source is None or source.converter is None else {key for _, key in source.keys}


class _Lora:
    def __init__(self, archive: Archive, files: BaseNumbers, layout: _Layout, spec: RunSpec) -> None:
        self._files = files
        self._layout = layout
        self._layers: dict[str, tuple[str, LowRank]] = {}  # by key of the files: the weight, and its matrices
        for name, layer in _read_layers(archive, layout, spec).items():
            if not _is_fused(layer):
                self._layers[layout.file_key(f"{name}.weight")] = (f"{name}.weight", layer)
            elif (key := layout.file_key(name)) in files.shapes:
                self._layers[key] = (name, layer)
            else:
                self._layers |= {key: (key, part) for key, part in _by_expert(name, layer, files)}
        self._scale = ALPHA / spec.rank
        self._head = layout.file_key(layout.head)
        self.unties = layout.is_tied and self._head in self._layers

    def outputs(self) -> list[Output]:
        shapes = dict(self._files.shapes)
        if self.unties:
            shapes.setdefault(self._head, shapes[self._source(self._head)])
        if missing := sorted(self._layers.keys() - shapes.keys()):
            if missing[0] in self._layout.shapes.keys() - {self._head}:
                raise ExportRefused(
                    f"the run trained {missing[0]!r}, which the base model's files store in another form; export the "
                    "run as a PEFT adapter instead"
                )
            raise ExportRefused(
                f"the run trained {missing[0]!r}, which the base model's files do not have; give the directory of the "
                "base model that it was trained on"
            )
        return [self._output(key, shape) for key, shape in shapes.items()]

    def _source(self, key: str) -> str:
        """The base tensor of a weight: a tied output layer may have no tensor of its own."""
        if key in self._files.shapes:
            return key
        embedding = self._layout.file_key(self._layout.embedding)
        if embedding not in self._files.shapes:
            raise ExportRefused(f"the base model's files have no {embedding!r}, which its config describes")
        return embedding

    def _output(self, key: str, shape: TensorShape) -> Output:
        if key not in self._layers:
            return Output(key, shape, lambda: self._files.pieces(key))
        name, layer = self._layers[key]
        if shape.dtype not in _MERGEABLE:
            raise ExportRefused(f"{key!r} of the base model is quantised ({shape.dtype}), so nothing can be merged in")
        if _is_fused(layer):
            return self._fused_output(key, shape, layer, is_transposed=self._layout.experts[name.rpartition(".")[0]])
        left, right = layer.up, layer.down
        if name in self._layout.transposed:
            left, right = layer.down.T, layer.up.T
        extents = (left.shape[0], right.shape[1])
        if shape.extents != extents:
            raise _other_base(key, shape.extents, extents)
        return Output(key, shape, lambda: self._merged(self._source(key), shape, left, right))

    def _fused_output(self, key: str, shape: TensorShape, layer: LowRank, *, is_transposed: bool) -> Output:
        experts, out, inner = len(layer.up), layer.up.shape[1], layer.down.shape[2]
        extents = (experts, inner, out) if is_transposed else (experts, out, inner)
        if shape.extents != extents:
            raise _other_base(key, shape.extents, extents)

        def merged() -> Iterator[torch.Tensor]:
            for rows, weight in zip(row_ranges(shape), self._files.pieces(key), strict=True):
                change_EOI = torch.bmm(layer.up[rows], layer.down[rows])
                yield weight.float().add(change_EOI.transpose(1, 2) if is_transposed else change_EOI, alpha=self._scale)

        return Output(key, shape, merged)

    def _merged(
        self, source: str, shape: TensorShape, left_OR: torch.Tensor, right_RI: torch.Tensor
    ) -> Iterator[torch.Tensor]:
        for rows, weight_OI in zip(row_ranges(shape), self._files.pieces(source), strict=True):
            yield torch.addmm(weight_OI.float(), left_OR[rows], right_RI, alpha=self._scale)


def _is_fused(layer: LowRank) -> bool:
    return layer.down.dim() == 3


def _by_expert(name: str, layer: LowRank, files: BaseNumbers) -> Iterator[tuple[str, LowRank]]:
    """The matrices of single experts, by the keys that the base model's files have for their weights."""
    known = next((each for each in KNOWN if f"{each.prefix(name)}.0.{each.last}.weight" in files.shapes), None)
    if known is None:
        raise ExportRefused(
            f"the run trained the experts {name!r}, which the base model's files hold quantised or under names that "
            "are not known here; save the base model with save_pretrained in bfloat16 and merge into that"
        )
    for expert in range(len(layer.down)):
        for part, rows in known.parts(name, layer.up.shape[1]):
            matrices = LowRank(layer.down[expert], layer.up[expert, rows])
            yield f"{known.prefix(name)}.{expert}.{part}.weight", matrices


class _Full:
    def __init__(self, archive: Archive, files: BaseFiles, layout: _Layout) -> None:
        member = next((name for name in ("model.safetensors", "weights.safetensors") if name in archive.members), None)
        if member is None:
            raise ExportRefused("the archive holds no weights of a model, so there is nothing to merge")
        self._archive = archive
        self._files = files
        self._layout = layout
        self._tensors = {layout.file_key(name): tensor for name, tensor in archive.tensors(member).items()}
        self._head = layout.file_key(layout.head)
        self.unties = layout.is_tied and self._head in self._tensors

    def outputs(self) -> list[Output]:
        """The run's tensors in the types of the base, and those tensors of the base that the run does not replace.

        Tensors that become one weight in memory, such as the experts of a layer, are written as that weight.
        """
        shapes = self._files.shapes
        usual = Counter(shape.dtype for shape in shapes.values()).most_common(1)[0][0]
        outputs = [self._output(key, tensor, usual) for key, tensor in self._tensors.items()]
        replaced = set(self._tensors).union(*(self._layout.joined_keys(key) for key in self._tensors))
        if self._layout.is_tied:
            replaced.add(self._head)  # a stored copy of a tied weight is out of date
        return outputs + [self._copy(key, shapes[key]) for key in shapes if key not in replaced]

    def _output(self, key: str, tensor: ArchiveTensor, usual: str) -> Output:
        extents = tuple(tensor.entry.shape)
        stored = self._files.shapes.get(key)
        if stored is not None and stored.extents != extents:
            raise _other_base(key, stored.extents, extents)
        dtype = tensor.entry.dtype
        if dtype in _MERGEABLE:
            dtype = usual if stored is None else stored.dtype
        return Output(key, TensorShape(dtype, extents), lambda: iter([_read(self._archive, [tensor])[0]]))

    def _copy(self, key: str, shape: TensorShape) -> Output:
        return Output(key, shape, lambda: self._files.pieces(key))


def _read_layers(archive: Archive, layout: _Layout, spec: RunSpec) -> dict[str, LowRank]:
    """The LoRA matrices by layer, from a training archive or from PEFT files."""
    member = "adapter_model.safetensors" if "adapter_model.safetensors" in archive.members else "weights.safetensors"
    if member not in archive.members:
        raise ExportRefused("the archive holds no adapter, so there is nothing to merge")
    found = archive.tensors(member)
    tensors = dict(zip(found, (tensor.float() for tensor in _read(archive, list(found.values()))), strict=True))
    try:
        return read_peft_matrices(tensors, rank=spec.rank, files=layout.expert_files, first_name=layout.first_name)
    except BadRequest as error:
        raise ExportRefused(f"member {member!r} of the archive cannot be merged: {error}") from error


def _read(archive: Archive, tensors: list[ArchiveTensor]) -> list[torch.Tensor]:
    """Read and verify tensors of the archive."""
    memory = [np.empty(tensor.entry.size, dtype=np.uint8) for tensor in tensors]
    read_targets(archive, [ReadTarget.of(tensor.offset, into) for tensor, into in zip(tensors, memory, strict=True)])
    return [
        torch.from_numpy(content).view(getattr(torch, BY_NAME[tensor.entry.dtype].torch_name)).view(tensor.entry.shape)
        for tensor, content in zip(tensors, memory, strict=True)
    ]


def _other_base(key: str, base: tuple[int, ...], run: tuple[int, ...]) -> ExportRefused:
    return ExportRefused(
        f"{key!r} has shape {list(base)} in the base model and {list(run)} in the run; give the directory of the base "
        "model that it was trained on"
    )
