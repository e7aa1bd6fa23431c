from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chockstone.checkpoints import Archive, Checkpointer, load_tensor
from chockstone.checkpoints.errors import (
    DigestMismatch,
    RestoreFailed,
    RestoreMismatch,
)
from support.checkpoints.damage import first_tensor, flip, save_three
from support.training import Training

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "sgd-nesterov": functools.partial(torch.optim.SGD, momentum=0.9, nesterov=True),
    "adam": torch.optim.Adam,
    "adam-amsgrad": functools.partial(torch.optim.Adam, amsgrad=True),
    "adamw": functools.partial(torch.optim.AdamW, weight_decay=0.1),
    "adamw-foreach": functools.partial(torch.optim.AdamW, foreach=True),
    "adamw-fused": functools.partial(torch.optim.AdamW, fused=True),
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
    "nadam": torch.optim.NAdam,
}
SCHEDULERS: dict[str, Callable[..., Any]] = {
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 20),
    "one-cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=40),
    "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
    "sequential": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o,
        [torch.optim.lr_scheduler.ConstantLR(o, 0.1, 4), torch.optim.lr_scheduler.ExponentialLR(o, 0.9)],
        milestones=[4],
    ),
    "plateau": lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=1),
    "multi-step": lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [2, 6, 6]),
    "multiplicative": lambda o: torch.optim.lr_scheduler.MultiplicativeLR(o, lambda _: 0.9),
    "cyclic": lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.001, 0.1, step_size_up=3, cycle_momentum=False),
    "warm-restarts": lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 4),
    "linear": lambda o: torch.optim.lr_scheduler.LinearLR(o, total_iters=8),
    "polynomial": lambda o: torch.optim.lr_scheduler.PolynomialLR(o, 20),
    "chained": lambda o: torch.optim.lr_scheduler.ChainedScheduler(
        [torch.optim.lr_scheduler.StepLR(o, 3), torch.optim.lr_scheduler.ExponentialLR(o, 0.95)]
    ),
}


def continue_both(first: Training, second: Training, directory: Path) -> tuple[list[float], list[float]]:
    """Losses of a run left alone, and of another restored from it, over the same steps."""
    for _ in range(5):
        first.step()
    with Checkpointer(directory) as checkpointer:
        checkpointer.save(first.state(), step=5).result()
        alone = [first.step() for _ in range(5)]
        target = second.state()
        checkpointer.restore(target)
    second.steps = target["steps"]
    return alone, [second.step() for _ in range(5)]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_next_step_after_a_restore_is_bit_identical(name: str, tmp_path: Path) -> None:
    first, second = Training(optimizer=OPTIMIZERS[name]), Training(seed=1, optimizer=OPTIMIZERS[name])

    alone, restored = continue_both(first, second, tmp_path)

    assert restored == alone
    assert second.bits() == first.bits()
    assert second.steps == first.steps


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedules_go_on_where_they_were(name: str, tmp_path: Path) -> None:
    first, second = Training(scheduler=SCHEDULERS[name]), Training(seed=1, scheduler=SCHEDULERS[name])

    alone, restored = continue_both(first, second, tmp_path)

    assert restored == alone
    assert second.bits() == first.bits()
    assert second.optimizer.param_groups[0]["lr"] == first.optimizer.param_groups[0]["lr"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions_are_bit_identical_too(dtype: torch.dtype, tmp_path: Path) -> None:
    first, second = Training(dtype=dtype), Training(seed=1, dtype=dtype)

    alone, restored = continue_both(first, second, tmp_path)

    assert restored == alone
    assert second.bits() == first.bits()


def test_a_restore_over_a_used_optimizer_fills_its_moments_in_place(tmp_path: Path) -> None:
    first, second = Training(), Training(seed=1)
    for _ in range(3):
        second.step()
    moment = second.optimizer.state_dict()["state"][0]["exp_avg"]
    address = moment.data_ptr()

    alone, restored = continue_both(first, second, tmp_path)

    assert restored == alone
    assert second.optimizer.state_dict()["state"][0]["exp_avg"].data_ptr() == address


def test_weights_stay_the_same_tensors(tmp_path: Path) -> None:
    training = Training()
    addresses = [parameter.data_ptr() for parameter in training.model.parameters()]
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save({"model": training.model}, step=0).result()

        checkpointer.restore({"model": training.model})

    assert [parameter.data_ptr() for parameter in training.model.parameters()] == addresses


def test_a_missing_part_is_an_error_and_changes_nothing(tmp_path: Path) -> None:
    training, other = Training(), Training(seed=1)
    before = other.bits()
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save({"model": training.model}, step=0).result()

        with pytest.raises(RestoreMismatch, match="missing from the archive: optimizer") as caught:
            checkpointer.restore({"model": other.model, "optimizer": other.optimizer})

    assert caught.value.missing == ("optimizer",)
    assert other.bits() == before


def test_an_unexpected_part_is_an_error(tmp_path: Path) -> None:
    training = Training()
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save({"model": training.model, "extra": 1}, step=0).result()

        with pytest.raises(RestoreMismatch, match="unexpected in the archive: extra"):
            checkpointer.restore({"model": training.model})


def test_a_shape_that_differs_is_named_and_changes_nothing(tmp_path: Path) -> None:
    small, large = Training(width=16), Training(width=32)
    before = large.bits()
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save({"model": small.model}, step=0).result()

        with pytest.raises(RestoreMismatch, match=r"model\.0\.weight: the archive holds float32\[32, 16\]"):
            checkpointer.restore({"model": large.model}, strict=False)

    assert large.bits() == before


def test_a_dtype_that_differs_is_named(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save({"x": torch.zeros(3, dtype=torch.bfloat16)}, step=0).result()

        with pytest.raises(RestoreMismatch, match=r"holds bfloat16\[3\], the target float32\[3\]"):
            checkpointer.restore({"x": torch.zeros(3)})


def test_an_optimizer_of_another_size_is_refused_before_the_model_is_touched(tmp_path: Path) -> None:
    training, other = Training(), Training(seed=1)
    training.step()
    fewer = torch.optim.AdamW(list(other.model.parameters())[:2])
    before = other.bits()
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save({"model": training.model, "optimizer": training.optimizer}, step=0).result()

        with pytest.raises(
            RestoreMismatch, match=r"optimizer: parameters per group are \[6\] in the archive and \[2\]"
        ):
            checkpointer.restore({"model": other.model, "optimizer": fewer})

    assert other.bits() == before


def test_not_strict_takes_what_fits_and_says_what_did_not(tmp_path: Path) -> None:
    training, other = Training(), Training(seed=1)
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save({"model": training.model, "extra": 1}, step=0).result()
        target = {"model": other.model, "steps": 7}

        receipt = checkpointer.restore(target, strict=False)

    assert other.bits() == training.bits()
    assert (receipt.missing, receipt.unexpected, receipt.complete) == (("steps",), ("extra",), False)
    assert target["steps"] == 7


def test_plain_values_and_nested_objects_go_back_to_their_places(tmp_path: Path) -> None:
    policy, critic = Training(), Training(seed=1)
    state = {"agents": {"policy": policy.model, "critic": critic.model}, "seen": {"ids": [1, 2]}, "best": 0.5}
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(state, step=0).result()
        expected = policy.bits()
        policy.step()
        seen: dict[str, Any] = {}
        target = {"agents": {"policy": policy.model, "critic": critic.model}, "seen": seen, "best": None}

        checkpointer.restore(target)

    assert Training.bits(policy)[: len(expected)] == expected
    assert seen == {"ids": [1, 2]}
    assert target["best"] == 0.5


def test_objects_in_a_list_are_restored_where_they_are(tmp_path: Path) -> None:
    first, second = Training(), Training(seed=1)
    expected = [first.bits(), second.bits()]
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save({"models": [first.model, second.model]}, step=0).result()
        first.step()
        second.step()
        models = [first.model, second.model]

        receipt = checkpointer.restore({"models": models})

    assert models == [first.model, second.model]
    assert [t.bits()[: len(e)] for t, e in zip((first, second), expected, strict=True)] == expected
    assert [part.path for part in receipt.parts] == ["models[0]", "models[1]"]


class Copying(torch.nn.Linear):
    """A module whose state_dict hands out copies, as wrappers that move or cast do."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return {name: tensor.clone() for name, tensor in super().state_dict(*args, **kwargs).items()}


def test_a_module_that_hands_out_copies_is_restored_too(tmp_path: Path) -> None:
    module = Copying(3, 3)
    before = module.weight.detach().clone()
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save({"model": module}, step=0).result()
        with torch.no_grad():
            module.weight.zero_()

        checkpointer.restore({"model": module})

    assert torch.equal(module.weight, before)


def test_a_target_that_was_half_restored_is_called_that(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save({"x": torch.ones(1_000_000)}, step=0).result()
        flip(tmp_path / "step-00000000.tar", first_tensor(checkpointer, "step-00000000") + 3_000_000)

        with pytest.raises(RestoreFailed, match="the target is half restored; do not use it"):
            checkpointer.restore({"x": torch.zeros(1_000_000)})


def test_tied_weights_are_stored_once_and_come_back_tied(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.randn(64, 64))
    with Checkpointer(tmp_path) as checkpointer:
        saved = checkpointer.save({"model": OrderedDict(embed=weight, head=weight)}, step=0).result()

        loaded = checkpointer.load()

    assert saved.tensor_bytes == weight.nbytes
    assert loaded["model"]["embed"] is loaded["model"]["head"]
    assert torch.equal(loaded["model"]["embed"], weight)


def test_a_tied_archive_fills_an_untied_target(tmp_path: Path) -> None:
    weight = torch.randn(4)
    target = {"embed": torch.zeros(4), "head": torch.zeros(4)}
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save({"model": {"embed": weight, "head": weight}}, step=0).result()

        checkpointer.restore({"model": target})

    assert torch.equal(target["embed"], weight)
    assert torch.equal(target["head"], weight)


def test_a_large_tied_archive_fills_every_untied_target(tmp_path: Path) -> None:
    weight = torch.randn(3_000_000)  # more than one read
    target = {name: torch.zeros(3_000_000) for name in "abc"}
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save({"model": dict.fromkeys("abc", weight)}, step=0).result()

        checkpointer.restore({"model": target})

    assert all(torch.equal(tensor, weight) for tensor in target.values())


def test_a_tensor_that_becomes_an_array_is_saved_as_one(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        for step, value in enumerate((torch.ones(3), np.ones(3, dtype=np.float32), torch.ones(3))):
            checkpointer.save({"x": value}, step=step).result()

            assert type(checkpointer.load()["x"]) is type(value)


@pytest.mark.parametrize("key", ["$", "$type", "", ".", "..", "a/b", "ü", "state", "STATE", "manifest.json", "COMMIT"])
def test_any_string_may_be_a_key_of_the_state(key: str, tmp_path: Path) -> None:
    state = {key: {"x": torch.arange(3)}, "other": {"x": torch.arange(4)}}
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(state, step=0).result()

        loaded = checkpointer.load()

    assert loaded.keys() == state.keys()
    assert torch.equal(loaded[key]["x"], torch.arange(3))
    assert torch.equal(loaded["other"]["x"], torch.arange(4))


def test_loading_maps_the_file_and_never_changes_it(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save({"x": torch.zeros(1000)}, step=0).result()
        before = (tmp_path / "step-00000000.tar").read_bytes()

        loaded = checkpointer.load()
        checkpointer.store.delete("step-00000000")
        (tmp_path / "step-00000000.tar").write_bytes(before)
        loaded["x"].fill_(7.0)

    assert (tmp_path / "step-00000000.tar").read_bytes() == before
    assert loaded["x"].sum() == 7000


def test_loading_checks_digests_before_it_hands_anything_out(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        save_three(checkpointer)
        flip(tmp_path / "step-00000002.tar", first_tensor(checkpointer, "step-00000002") + 7)

        assert checkpointer.load()["x"][0] == 1.0
        with pytest.raises(DigestMismatch):
            checkpointer.load(name="step-00000002")
        assert checkpointer.load(name="step-00000002", verify="off")["x"].shape == (1000,)


def test_one_tensor_is_read_without_touching_the_rest(tmp_path: Path) -> None:
    state = {"model": {"a": torch.zeros(1_000_000), "b": torch.arange(1000.0), "c": torch.zeros(1_000_000)}}
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(state, step=0).result()

    with Archive.open(tmp_path / "step-00000000.tar") as archive:
        tensor = load_tensor(archive, "model", "b")

        assert torch.equal(tensor, state["model"]["b"])
        assert archive.blocks_verified < archive.layout.block_count / 2


@pytest.mark.parametrize(("policy", "share"), [("full", 1.0), ("sampled", 0.2), ("off", 0.02)])
def test_a_policy_verifies_as_much_as_it_says(policy: Any, share: float, tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save({"x": torch.zeros(64, 1024, 256)}, step=0).result()

        receipt = checkpointer.restore({"x": torch.ones(64, 1024, 256)}, verify=policy)

    assert receipt.blocks == 4 * 64 + 1
    assert receipt.blocks_verified <= share * receipt.blocks
    assert (receipt.blocks_verified == receipt.blocks) == (policy == "full")
