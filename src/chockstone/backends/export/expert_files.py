"""Expert files: how the matrices of routed experts are called and laid out in PEFT files.

In memory an adapter has one pair of matrices for all experts, ``lora_A`` [E, R, I] and ``lora_B`` [E, O, R], for
``<module>.gate_up_proj`` and for ``<module>.down_proj``. Files hold them in one of two ways, by architecture:

by expert   ``<module>.3.gate_proj.lora_A.weight`` [R, I], as the files of the base model call its weights. vLLM reads
            these, and PEFT fuses them. Gate and up have the same ``lora_A``.
fused       ``<module>.base_layer.lora_A.weight`` [E * R, I] and ``lora_B`` [O, R * E] for gate and up, and
            ``<module>.lora_A.weight`` for down, as PEFT writes parameters of three axes. vLLM reads these for gpt-oss,
            Qwen3.5 and Qwen3-VL.

Imports no torch: the arrays are of numpy or of torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

_LAST: Final = "down_proj"
_EXPERT: Final = re.compile(r"(?P<module>.+)\.(?P<expert>\d+)\.(?P<part>[^.]+)")


Matrices = Any  # Any: an array of numpy or of torch, which have these methods in common


@dataclass(frozen=True, slots=True)
class ExpertFiles:
    """Names by expert. ``module`` is the end of the name of an experts module in memory, ``files`` in files."""

    module: str
    files: str
    first: tuple[str, ...]  # the parts of the first weight, from its first row on
    last: str

    def to_json(self) -> dict[str, Any]:
        return {"module": self.module, "files": self.files, "first": list(self.first), "last": self.last}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        return cls(str(found["module"]), str(found["files"]), tuple(map(str, found["first"])), str(found["last"]))

    def parts(self, name: str, out_features: int) -> Iterator[tuple[str, slice]]:
        """The parts of a weight ("…experts.gate_up_proj") and their rows."""
        parts = (self.last,) if name.endswith(f".{_LAST}") else self.first
        height = out_features // len(parts)
        for number, part in enumerate(parts):
            yield part, slice(number * height, (number + 1) * height)

    def prefix(self, name: str) -> str:
        """The name in files of the module of a weight."""
        module = name.rpartition(".")[0]
        return module.removesuffix(self.module) + self.files if module.endswith(self.module) else module


_QWEN: Final = ExpertFiles("mlp.experts", "mlp.experts", ("gate_proj", "up_proj"), "down_proj")
_MIXTRAL: Final = ExpertFiles("mlp.experts", "block_sparse_moe.experts", ("w1", "w3"), "w2")
KNOWN: Final = (_QWEN, _MIXTRAL)  # ways in which files of base models call the weights of single experts
_BY_ARCHITECTURE: Final[Mapping[str, ExpertFiles]] = {  # those whose names by expert PEFT fuses
    **dict.fromkeys(
        (
            "afmoe",
            "cohere2_moe",
            "deepseek_v2",
            "deepseek_v3",
            "deepseek_v32",
            "dots1",
            "ernie4_5_moe",
            "exaone_moe",
            "flex_olmo",
            "glm4_moe",
            "glm4_moe_lite",
            "glm_moe_dsa",
            "hunyuan_v1_moe",
            "mellum",
            "olmoe",
            "qwen2_moe",
            "qwen3_moe",
            "qwen3_next",
            "solar_open",
        ),
        _QWEN,
    ),
    **dict.fromkeys(("minimax", "minimax_m2", "mixtral"), _MIXTRAL),
}


def choose_expert_files(model_type: str) -> ExpertFiles | None:
    """For the ``model_type`` of a base model. None: fused."""
    return _BY_ARCHITECTURE.get(model_type)


def is_expert_weight(shape: tuple[int, ...]) -> bool:
    """Whether a matrix of this shape is one of all experts of a layer."""
    return len(shape) == 3


def split_matrix(name: str, matrix: str, values: Matrices, files: ExpertFiles | None) -> Iterator[tuple[str, Matrices]]:
    """The layers' names in PEFT files, and what they hold, of one matrix ("lora_A" or "lora_B") of all experts."""
    experts, rows, columns = values.shape
    if files is None:
        module = name.rpartition(".")[0]
        layer = module if name.endswith(f".{_LAST}") else f"{module}.base_layer"
        if matrix == "lora_A":
            yield layer, values.reshape(experts * rows, columns)
        else:
            yield layer, values.swapaxes(0, 1).swapaxes(1, 2).reshape(rows, columns * experts)
        return
    for expert in range(experts):
        for part, part_rows in files.parts(name, rows):
            layer = f"{files.prefix(name)}.{expert}.{part}"
            yield layer, values[expert] if matrix == "lora_A" else values[expert, part_rows]


def fused_matrix(matrix: str, values: Matrices, rank: int) -> Matrices:
    """One matrix of all experts, from how PEFT writes it."""
    rows, columns = values.shape
    if matrix == "lora_A":
        return values.reshape(rows // rank, rank, columns)
    return values.reshape(rows, rank, columns // rank).swapaxes(1, 2).swapaxes(0, 1)


@dataclass(frozen=True, slots=True)
class ExpertPart:
    """One expert's part of a weight: the row block ``number`` of weight ``name``."""

    name: str  # in memory, such as "model.layers.0.mlp.experts.gate_up_proj"
    number: int
    expert: int


def find_expert_part(layer: str, files: ExpertFiles, first_name: str) -> ExpertPart | None:
    """What a name by expert means; None if ``layer`` is none. ``first_name``: "gate_up_proj", or "up_proj"."""
    match = _EXPERT.fullmatch(layer)
    if match is None or not match["module"].endswith(files.files):
        return None
    module = match["module"].removesuffix(files.files) + files.module
    if match["part"] == files.last:
        return ExpertPart(f"{module}.{_LAST}", 0, int(match["expert"]))
    if match["part"] in files.first:
        return ExpertPart(f"{module}.{first_name}", files.first.index(match["part"]), int(match["expert"]))
    return None
