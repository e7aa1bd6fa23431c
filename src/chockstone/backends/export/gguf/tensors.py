# tensors carry their axes
"""The tensors of a GGUF file: which weights become which tensors, in which order of rows, as numbers of which type.

Shapes: D hidden, E experts, F width of an expert, H heads, O out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Final, Literal

import torch
from gguf import MODEL_ARCH, MODEL_ARCH_NAMES, GGMLQuantizationType, TensorNameMap, get_tensor_name_map
from gguf.constants import GGML_QUANT_SIZES

from chockstone.backends.export.gguf.families import GgufFamily
from chockstone.backends.export.merge import MergedModel
from chockstone.backends.export.shards import Output
from chockstone.checkpoints.errors import ExportRefused

NumberType = Literal["f32", "f16", "bf16", "q8_0"]
KINDS: Final[Mapping[NumberType, GGMLQuantizationType]] = {
    "f32": GGMLQuantizationType.F32,
    "f16": GGMLQuantizationType.F16,
    "bf16": GGMLQuantizationType.BF16,
    "q8_0": GGMLQuantizationType.Q8_0,
}
OF_BASE: Final[Mapping[str, NumberType]] = {"F64": "f32", "F32": "f32", "F16": "f16", "BF16": "bf16"}
_EXPERT: Final = re.compile(r"\.(?P<expert>\d{1,6})\.(?P<part>gate_proj|up_proj|down_proj)\.weight")
_ROTATED: Final = re.compile(r"\.self_attn\.(?P<which>[qk])_proj\.(weight|bias)")
_FUSED: Final = {".experts.gate_up_proj": ("gate_proj", "up_proj"), ".experts.down_proj": ("down_proj",)}
_ALWAYS_F32: Final = (".ffn_gate_inp.weight",)  # of routers, as llama.cpp's converter and quantiser have it
_FREQUENCIES: Final = "rope_freqs.weight"
Pieces = Callable[[], Iterator[torch.Tensor]]


@dataclass(frozen=True, slots=True)
class GgufTensor:
    name: str
    extents: tuple[int, ...]  # as torch has them; GGUF lists them in reverse
    kind: GGMLQuantizationType
    pieces: Pieces  # the numbers in order, of any type, split between rows

    @property
    def size_bytes(self) -> int:
        numbers, size_bytes = GGML_QUANT_SIZES[self.kind]
        count = 1
        for extent in self.extents:
            count *= extent
        return count // numbers * size_bytes


@dataclass(frozen=True, slots=True)
class _Weight:
    """A tensor before its type is chosen."""

    name: str
    extents: tuple[int, ...]
    pieces: Pieces


def plan_tensors(
    model: MergedModel, family: GgufFamily, number_type: NumberType, factors: torch.Tensor | None
) -> list[GgufTensor]:
    """All tensors of the file, in the order of the model's weights. Raises ExportRefused.

    ``factors``: those by which the frequencies of the rotation are divided.
    """
    kind = KINDS[number_type]
    tensors = [
        GgufTensor(weight.name, weight.extents, _choose_kind(weight, kind), weight.pieces)
        for weight in _Plan(model, family).weights()
    ]
    if factors is not None:
        tensors.append(GgufTensor(_FREQUENCIES, (len(factors),), KINDS["f32"], lambda: iter([factors])))
    return tensors


def choose_type(model: MergedModel) -> NumberType:
    """That of most numbers of the base model's files."""
    counts: dict[str, int] = {}
    for output in model.outputs:
        counts[output.shape.dtype] = counts.get(output.shape.dtype, 0) + output.size_bytes
    found = max(counts, key=lambda dtype: counts[dtype], default="F32")
    return OF_BASE.get(found, "f32")


def _choose_kind(weight: _Weight, kind: GGMLQuantizationType) -> GGMLQuantizationType:
    if len(weight.extents) <= 1 or weight.name.endswith(_ALWAYS_F32):
        return GGMLQuantizationType.F32
    if kind == GGMLQuantizationType.Q8_0 and weight.extents[-1] % GGML_QUANT_SIZES[kind][0]:
        return GGMLQuantizationType.F16
    return kind


class _Plan:
    def __init__(self, model: MergedModel, family: GgufFamily) -> None:
        self._model = model
        self._family = family
        architecture = next(key for key, name in MODEL_ARCH_NAMES.items() if name == family.architecture)
        self._map = _name_map(architecture, model.parsed_config.num_hidden_layers)
        self._heads = {
            "q": model.parsed_config.num_attention_heads,
            "k": model.parsed_config.num_key_value_heads,
        }
        self._whole: dict[str, Output] = {}  # by name of the weight
        self._parts: dict[str, dict[tuple[int, str], Output]] = {}  # of single experts, by name of the fused weight
        for output in model.outputs:
            self._sort(output)

    def weights(self) -> Iterator[_Weight]:
        for name, extents in self._model.shapes.items():
            fused = next((parts for end, parts in _FUSED.items() if name.endswith(end)), None)
            if fused is not None:
                yield from self._experts(name, fused, extents)
            elif name == self._model.head and self._is_head_shared():
                continue  # llama.cpp computes the output layer from the embedding
            elif name in self._whole:
                yield self._weight(name, self._whole[name], extents)
            elif name != self._model.head or not self._model.is_tied:
                raise _missing(name)

    def _is_head_shared(self) -> bool:
        """Whether llama.cpp uses the embedding as the output layer. Raises ExportRefused if the layers differ.

        Files of a base model may hold a copy of a tied output layer: both are read then.
        """
        if not self._family.shares_head or (head := self._whole.get(self._model.head)) is None:
            return False
        embedding = self._whole.get(self._model.embedding)
        if self._model.is_tied and embedding is not None and _are_equal(head, embedding):
            return True
        advice = "" if self._model.is_tied else "train with train_unembed=False, or "  # tied: it was not trained
        raise ExportRefused(
            f"the output layer differs from the embedding, and llama.cpp uses the embedding for both in models of "
            f"architecture {self._family.architecture!r}; {advice}export a merged Hugging Face model"
        )

    def _sort(self, output: Output) -> None:
        name = self._model.names.get(output.key)
        if name is None:
            return  # transformers does not read it either
        if output.shape.dtype not in OF_BASE:
            raise ExportRefused(
                f"{output.key!r} of the base model is quantised ({output.shape.dtype}), which cannot be exported to "
                "GGUF; give a base model in float32, float16 or bfloat16"
            )
        if name == output.key or not name.endswith(tuple(_FUSED)):
            self._whole[name] = output
            return
        match = _EXPERT.fullmatch(output.key.removeprefix(name.rpartition(".")[0]))
        if match is None:
            raise ExportRefused(f"{output.key!r} of the base model has a name by which no expert is known here")
        self._parts.setdefault(name, {})[int(match["expert"]), match["part"]] = output

    def _weight(self, name: str, output: Output, extents: tuple[int, ...]) -> _Weight:
        _check_shape(output, extents)
        stem, _, suffix = name.rpartition(".")
        target = self._map.get_name(stem)
        if target is None or (suffix == "bias" and target.rpartition(".")[2] not in self._family.biases):
            raise ExportRefused(
                f"llama.cpp has no place for {name!r} in models of architecture {self._family.architecture!r}; export "
                "a merged Hugging Face model instead"
            )
        pieces = output.pieces
        if self._family.norm_offset and name.endswith("norm.weight"):
            pieces = partial(_raised, pieces, self._family.norm_offset)
        if self._family.is_interleaved and (match := _ROTATED.search(name)):
            pieces = partial(_interleaved, pieces, self._heads[match["which"]])
        return _Weight(f"{target}.{suffix}", extents, pieces)

    def _experts(self, name: str, parts: Sequence[str], extents: tuple[int, ...]) -> Iterator[_Weight]:
        """The matrices of all experts, each kind as one tensor."""
        experts, rows, columns = extents
        height = rows // len(parts)
        module = name.rpartition(".")[0]
        for number, part in enumerate(parts):
            target = self._map.get_name(f"{module}.{part}")
            if target is None:
                raise ExportRefused(f"llama.cpp has no place for {name!r} in this architecture")
            if name in self._whole:
                _check_shape(self._whole[name], extents)
                block = slice(number * height, (number + 1) * height)
                pieces = partial(_rows_of_each, self._whole[name].pieces, block)
            else:
                outputs = [self._part(name, expert, part) for expert in range(experts)]
                for output in outputs:
                    _check_shape(output, (height, columns))
                pieces = partial(_one_after_another, [output.pieces for output in outputs])
            yield _Weight(f"{target}.weight", (experts, height, columns), pieces)

    def _part(self, name: str, expert: int, part: str) -> Output:
        found = self._parts.get(name, {}).get((expert, part))
        if found is None:
            raise _missing(f"{name.rpartition('.')[0]}.{expert}.{part}.weight")
        return found


def _name_map(architecture: MODEL_ARCH, layers: int) -> TensorNameMap:
    return get_tensor_name_map(architecture, layers)


def _raised(pieces: Pieces, offset: float) -> Iterator[torch.Tensor]:
    return (piece.float() + offset for piece in pieces())


def _interleaved(pieces: Pieces, heads: int) -> Iterator[torch.Tensor]:
    """Rows of a head: row n of its first half, then row n of its second half. The tensor is in memory as a whole."""
    weight = torch.cat(list(pieces()))
    halves_H2 = weight.reshape(heads, 2, len(weight) // heads // 2, *weight.shape[1:])
    yield halves_H2.transpose(1, 2).reshape(weight.shape)


def _rows_of_each(pieces: Pieces, rows: slice) -> Iterator[torch.Tensor]:
    return (piece_EOD[:, rows] for piece_EOD in pieces())


def _one_after_another(parts: Sequence[Pieces]) -> Iterator[torch.Tensor]:
    return chain.from_iterable(part() for part in parts)


def _are_equal(output: Output, other: Output) -> bool:
    if output.shape != other.shape:
        return False
    return all(torch.equal(one, two) for one, two in zip(output.pieces(), other.pieces(), strict=True))


def _check_shape(output: Output, extents: tuple[int, ...]) -> None:
    if output.shape.extents != extents:
        raise ExportRefused(
            f"{output.key!r} has shape {list(output.shape.extents)} in the base model's files and {list(extents)} "
            "according to its config.json; copy or download the base model again"
        )


def _missing(name: str) -> ExportRefused:
    return ExportRefused(f"the base model's files have no {name!r}, which its config.json describes")
