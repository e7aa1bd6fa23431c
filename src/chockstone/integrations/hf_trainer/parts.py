"""The parts of a Trainer's state as they stand in an archive, and what they are restored into.

| part | content |
|---|---|
| `model` | the state dict of a model; of a PEFT model there are adapters instead |
| `adapter_model`, `adapter_model.NAME` | the state dict of the adapter "default", and of each other adapter |
| `optimizer`, `scheduler`, `scaler` | their state dicts; absent with `save_only_model`, or where there is no scaler |
| `random` | the random generators of each rank; absent with `save_only_model` |
| `trainer_state` | the content of `trainer_state.json` |

Configuration and tokenizer are files of the archive: `config.json`, `adapter_config.json`, `tokenizer.json` and so on.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from transformers import Trainer

from chockstone.checkpoints import RandomState, RestoreReceipt
from chockstone.checkpoints.errors import RestoreMismatch
from chockstone.checkpoints.format.shards import address_of

MODEL: Final = "model"
ADAPTER: Final = "adapter_model"
OPTIMIZER: Final = "optimizer"
SCHEDULER: Final = "scheduler"
SCALER: Final = "scaler"
RANDOM: Final = "random"
TRAINER_STATE: Final = "trainer_state"
TRAINING: Final = (OPTIMIZER, SCHEDULER, SCALER, RANDOM)  # what `save_only_model` leaves out
DEFAULT_ADAPTER: Final = "default"


def plain_model(trainer: Trainer) -> Any:  # Any: a model, or what stands for one
    """The model without the wrappers of DDP and torch.compile."""
    return trainer.accelerator.unwrap_model(trainer.model, keep_torch_compile=False)


def is_peft(model: object) -> bool:
    peft = sys.modules.get("peft")
    return peft is not None and isinstance(model, peft.PeftModel)


def adapter_parts(model: Any) -> Iterator[tuple[str, str]]:
    """The part of each adapter of a PEFT model, and the adapter's name."""
    for name in model.peft_config:
        yield ADAPTER if name == DEFAULT_ADAPTER else f"{ADAPTER}.{name}", name


def model_parts(trainer: Trainer) -> dict[str, Any]:
    """What is saved of the model."""
    model = plain_model(trainer)
    if not is_peft(model):
        return {MODEL: model.state_dict()}
    from peft import get_peft_model_state_dict

    return {part: get_peft_model_state_dict(model, adapter_name=name) for part, name in adapter_parts(model)}


def training_parts(trainer: Trainer) -> dict[str, Any]:
    """What is saved besides the model, so that training continues with the same numbers."""
    assert trainer.optimizer is not None, "a Trainer that saves has one"
    assert trainer.lr_scheduler is not None
    parts: dict[str, Any] = {
        OPTIMIZER: trainer.optimizer.state_dict(),
        SCHEDULER: trainer.lr_scheduler.state_dict(),
        RANDOM: RandomState(per_rank=True),
    }
    if (scaler := getattr(trainer.accelerator, "scaler", None)) is not None:
        parts[SCALER] = scaler.state_dict()
    return parts


def model_targets(model: Any, *, in_place: bool) -> dict[str, Any]:
    """What the parts of a model are restored into.

    Adapters come back as new tensors, for ``load_adapters``: some kinds of adapters compute what they save. With
    ``in_place`` the tensors of the model are filled, as a sharded model needs it.
    """
    if not is_peft(model):
        return {MODEL: model}
    if not in_place:
        return {part: None for part, _ in adapter_parts(model)}
    from peft import get_peft_model_state_dict

    return {part: get_peft_model_state_dict(model, adapter_name=name) for part, name in adapter_parts(model)}


def load_adapters(model: Any, parts: Mapping[str, Any]) -> None:
    """Give restored adapters to the model that ``model_targets`` was made for."""
    if not is_peft(model):
        return
    from peft import set_peft_model_state_dict

    for part, name in adapter_parts(model):
        set_peft_model_state_dict(model, parts[part], adapter_name=name)


def check_model_fits(model: Any, receipt: RestoreReceipt) -> None:
    """Raise RestoreMismatch if the archive and the model differ. Parts that a save may leave out are not compared.

    A name that is missing is fine if its tensor is tied to one that was restored: directories of the Trainer have only
    one of the names, and so have archives that were imported from them.
    """
    missing = [path for path in receipt.missing if path.startswith((MODEL, ADAPTER)) or path == TRAINER_STATE]
    lacking = [path for path in missing if path not in _tied_paths(model, missing)]
    surplus = [path for path in receipt.unexpected if path.startswith((MODEL, ADAPTER))]
    if not lacking and not surplus:
        return
    shown = [f"missing from the checkpoint: {path}" for path in lacking[:8]]
    shown += [f"unexpected in the checkpoint: {path}" for path in surplus[:8]]
    raise RestoreMismatch(
        f"checkpoint {receipt.name!r} does not fit the model of this Trainer.\n  "
        + "\n  ".join(shown)
        + "\nBuild the model, with its adapters, as it was when the checkpoint was saved.",
        missing=tuple(lacking),
        unexpected=tuple(surplus),
    )


def _tied_paths(model: Any, missing: Collection[str]) -> set[str]:
    """Which of the missing tensors of a model share their memory with one that is not missing."""
    if is_peft(model) or not missing:
        return set()
    addresses = {f"{MODEL}.{name}": _address(value) for name, value in model.state_dict().items()}
    restored = {address for path, address in addresses.items() if path not in missing}
    return {path for path in missing if path in addresses and addresses[path] in restored}


def _address(value: Any) -> int:
    return address_of(value) if hasattr(value, "shape") else id(value)
