"""Run specifications: what a run trains, as chosen when it was created. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Literal, Self, TypeVar

from chockstone.wire.failures import BadRequest

T = TypeVar("T")
MAX_RANK: Final = 4096
ALPHA: Final = 32.0  # lora_alpha of every LoRA run: its update is scaled by ALPHA / rank
ActivationCheckpointing = Literal["auto", "on", "off"]
Recomputed = Literal["none", "most", "all"]  # layers of a model, in one micro-batch
BasePrecision = Literal["auto", "8bit", "4bit"]
RouterReplay = Literal["on", "off"]
OPTIMIZERS: Final = ("adamw", "sgd")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    rank: int  # 0: all weights are trained, and the train_ flags mean nothing
    seed: int
    train_attn: bool = True
    train_mlp: bool = True
    train_unembed: bool = True
    train_experts: bool = True  # with train_mlp, routed experts too, if the model has them
    optimizer: str = "adamw"

    def __post_init__(self) -> None:
        _check("rank", self.rank, int, f"a whole number from 0 to {MAX_RANK}", lambda rank: 0 <= rank <= MAX_RANK)
        _check("seed", self.seed, int, "a whole number of 64 bits", lambda seed: -(2**63) <= seed < 2**63)
        for name in ("train_attn", "train_mlp", "train_unembed", "train_experts"):
            _check(name, getattr(self, name), bool, "true or false")
        if self.optimizer not in OPTIMIZERS:
            raise BadRequest(
                f"the optimizer {self.optimizer!r} is not supported here; choose one of {', '.join(OPTIMIZERS)}."
            )
        if self.rank and not (self.train_attn or self.train_mlp or self.train_unembed):
            raise BadRequest("train_attn, train_mlp and train_unembed are all false: turn on at least one.")

    @property
    def is_full(self) -> bool:
        return self.rank == 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(value) - known):
            raise BadRequest(f"a run's specification has no {unknown[0]!r}; it has {', '.join(sorted(known))}.")
        if missing := sorted({"rank", "seed"} - set(value)):
            raise BadRequest(f"a run's specification lacks {missing[0]!r}.")
        return cls(**{"train_experts": False, **value})  # runs of earlier versions trained no experts


def _check(
    name: str, value: T, kind: type[T], expected: str, is_in_range: Callable[[T], bool] = lambda _: True
) -> None:
    if type(value) is not kind or not is_in_range(value):
        raise BadRequest(f"{name} must be {expected}, not {value!r:.80}.")
