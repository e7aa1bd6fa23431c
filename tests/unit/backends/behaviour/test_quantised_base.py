"""A quantised base: training, sampling, saving and merging agree with each other and stay near the unquantised base."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import torch

from chockstone.backends.protocol import PassReply, SaveCall, WorkerLost
from chockstone.backends.run_spec import BasePrecision, RunSpec
from chockstone.backends.supervision.local import LocalBackend
from chockstone.backends.supervision.process import WorkerConfig
from chockstone.backends.training.base_model import BaseModel, load_base_model
from chockstone.backends.training.optimizers import OptimStep
from chockstone.backends.training.run import TrainedRun
from chockstone.backends.worker.sampler_weights import run_weights
from chockstone.backends.worker.sampling_source import SamplingSource
from chockstone.checkpoints import Archive, load_state
from chockstone.sampling.fused.llama import FusedLlama
from chockstone.sampling.model import SampledModel
from chockstone.wire.codecs.passes import Datum
from chockstone.wire.codecs.sample_request import decode_sample
from chockstone.wire.codecs.samples import SampleResult
from chockstone.wire.failures import BadRequest
from support.backends.bitsandbytes_files import make_wide
from support.backends.bodies import pass_body, sample_body
from support.backends.saving import make_directory
from support.tiny_models import Reference, apply, assert_same_gradient, datum, gradient, lora_run

PRECISIONS: list[BasePrecision] = ["8bit", "4bit"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_wide(tmp_path_factory.mktemp("models") / "wide", tied=True)


def load(directory: Path, precision: BasePrecision = "auto", **options: Any) -> BaseModel:
    return load_base_model("tiny", directory, base_precision=precision, **options)


@pytest.mark.parametrize("flags", [{}, {"train_mlp": False}, {"train_attn": False, "train_unembed": False}], ids=str)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_gradients_are_those_of_the_dequantised_model(
    directory: Path, precision: BasePrecision, flags: dict[str, bool]
) -> None:
    base, plain = load(directory, precision), load(directory)
    for name, layer in plain.layers.items():
        layer.weight.copy_(base.layers[name].weight)
    run = lora_run(base, **flags)
    data = (datum(9, seed=1), datum(23, seed=2))

    result = apply(run, *data)

    reference = Reference(plain.model, run)
    loss, expected = reference.backward(data, lambda logprobs, _: -logprobs)
    assert result.metrics["loss:sum"] == pytest.approx(loss, rel=1e-5)
    assert_same_gradient(gradient(run), expected)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_nothing_of_a_dequantised_weight_is_kept_for_the_backward_pass(
    directory: Path, precision: BasePrecision
) -> None:
    base = load(directory, precision)
    run = lora_run(base, train_mlp=False)
    sizes = {layer.out_features * layer.in_features for name, layer in base.layers.items() if name != base.head_name}
    kept: list[torch.Size] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.shape)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), run._weights.applied():
        tokens = torch.arange(11)[None]
        with run._weights.parameters.accumulating(torch.zeros_like(run._weights.parameters.flat)):
            base.hidden_states(tokens)

    assert kept
    assert not [shape for shape in kept if shape.numel() in sizes and len(shape) == 2]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_activation_checkpointing_changes_no_bit(directory: Path, precision: BasePrecision) -> None:
    found = []
    for mode in ("off", "on"):
        run = lora_run(load(directory, precision, activation_checkpointing=mode))
        result = apply(run, datum(9, seed=1), datum(23, seed=2))
        found.append(([array.tobytes() for array in result.logprobs], run.state()["gradient"].numpy().tobytes()))

    assert found[0] == found[1]


def sample(run: TrainedRun, network: str) -> SampleResult:
    base = run.base
    computing = base.computing if network == "generic" else None
    sampled = SampledModel(base.model, base.tokenizer, max_context=base.max_context, computing=computing)
    assert isinstance(sampled.network, FusedLlama) == (network == "fused")
    source = SamplingSource(8)
    request = decode_sample(orjson.loads(sample_body([3, 1, 4, 1, 5], num_samples=3, max_tokens=12)))
    done = source.add("sample", run_weights(run, sampled), request, seed=1)
    while source.has_work():
        with torch.inference_mode():
            source.step()
    result = done.result()
    assert isinstance(result, SampleResult)
    return result


@pytest.mark.parametrize("network", ["fused", "generic"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_trainer_and_sampler_agree(directory: Path, precision: BasePrecision, network: str) -> None:
    run = lora_run(load(directory, precision))

    result = sample(run, network)

    for sequence in result.sequences:
        tokens = np.concatenate([[3, 1, 4, 1, 5], sequence.tokens])
        scored = Datum(tokens[:-1].astype(np.int32), {"target_tokens": tokens[1:].astype(np.int64)})
        trained = apply(run, scored, forward_only=True).logprobs[0][4:]
        np.testing.assert_allclose(sequence.logprobs, trained, atol=1e-4)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_sampling_adds_no_copy_of_the_weights(directory: Path, precision: BasePrecision) -> None:
    base = load(directory, precision)
    before = base.weight_bytes

    sample(lora_run(base), "fused")

    storages = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in base.model.parameters()}
    assert sum(storages.values()) == before


@pytest.mark.parametrize(("precision", "bound"), [("8bit", 0.03), ("4bit", 0.2)])
def test_losses_stay_near_those_of_the_unquantised_base(
    directory: Path, precision: BasePrecision, bound: float
) -> None:
    """``bound``: of the difference of the loss per token, over ten steps."""
    losses: list[list[float]] = []
    chosen: BasePrecision
    for chosen in ("auto", precision):
        run = TrainedRun(load(directory, chosen), RunSpec(rank=8, seed=1))
        losses.append([])
        for _ in range(10):
            result = apply(run, *(datum(20, seed=number) for number in range(3)))
            losses[-1].append(result.metrics["loss:sum"] / 60)
            run.optim_step(OptimStep(learning_rate=0.005, eps=1e-3))

    plain, quantised = losses
    assert plain[-1] < plain[0] - 1  # or there is nothing to see
    assert max(abs(a - b) for a, b in zip(plain, quantised, strict=True)) <= bound


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_run_that_trains_all_weights_is_refused(directory: Path, precision: BasePrecision) -> None:
    with pytest.raises(BadRequest, match=f"quantised to {precision}. Create the run with a rank of at least 1"):
        TrainedRun(load(directory, precision), RunSpec(rank=0, seed=0))


def test_a_checkpoint_is_loaded_onto_another_precision_and_the_log_says_so(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = lora_run(load(directory, "4bit"))
    other = TrainedRun(load(directory), RunSpec(rank=4, seed=9))
    assert run.state()["run"]["base_precision"] == "4bit" and "base_precision" not in other.state()["run"]

    with caplog.at_level(logging.WARNING):
        other.load(run.state(), with_optimizer=True)

    assert caplog.messages == ["checkpoint of another precision trained_on=4bit base=full"]
    mine, theirs = run.state()["weights"], other.state()["weights"]
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_an_unknown_precision_in_a_checkpoint_is_refused(directory: Path) -> None:
    run = lora_run(load(directory, "4bit"))
    state = run.state()
    state["run"]["base_precision"] = "2bit"

    with pytest.raises(BadRequest, match="precision '2bit', which this version does not know"):
        run.load(state, with_optimizer=True)


OPERATIONS = [(9, 31, 17), (12, 5), (24, 3)]


class _Life:
    def __init__(self, home: Path) -> None:
        directory = make_directory(home / "base", "qwen3", tied=True)
        self.store = home / "store"
        self.backend = LocalBackend(
            WorkerConfig(
                models={"tiny": str(directory)}, store=str(self.store), device="cpu", threads=1, base_precision="4bit"
            ),
            on_lost=lambda _: None,
        )

    async def tell(self) -> tuple[list[Any], list[Any], list[dict[str, Any]]]:
        await self.backend.start()
        try:
            await self.open("undisturbed")
            undisturbed = [await self.step("undisturbed", number) for number in range(len(OPERATIONS))]
            end = await self.save("undisturbed")
            await self.open("killed")
            killed = [await self.step("killed", 0)]
            await self.save("killed")
            await self.kill()
            await self.open("killed")
            await self.backend.load("killed", "killed", with_optimizer=True)
            killed += [await self.step("killed", number) for number in range(1, len(OPERATIONS))]
            return undisturbed, killed, [end, await self.save("killed")]
        finally:
            await self.backend.stop()

    async def open(self, run_id: str) -> None:
        await self.backend.open_run(run_id, owner="", base_model="tiny", spec=RunSpec(rank=4, seed=5))

    async def step(self, run_id: str, number: int) -> list[object]:
        passed = await self.backend.forward_backward(run_id, pass_body(*OPERATIONS[number], seed=number))
        stepped = await self.backend.optim_step(run_id, {"learning_rate": 1e-2, "grad_clip_norm": 1.0})
        assert isinstance(passed, PassReply)
        return [replace(passed, seconds=0.0), replace(stepped, seconds=0.0)]

    async def save(self, run_id: str) -> dict[str, Any]:
        await self.backend.save(SaveCall(run_id=run_id, archive=run_id, kind="recovery"))
        with Archive.open(self.store / f"{run_id}.tar") as opened:
            return load_state(opened)

    async def kill(self) -> None:
        working = asyncio.create_task(self.backend.forward_backward("killed", pass_body(*[60] * 50)))
        await asyncio.sleep(0)
        assert self.backend._handle is not None
        self.backend._handle.kill()
        with pytest.raises(WorkerLost):
            await working
        await self.backend.ready()
        assert self.backend.environment["base_precision"] == "4bit"


def test_a_killed_worker_goes_on_with_the_same_bits_on_a_4bit_base(tmp_path: Path) -> None:
    undisturbed, killed, states = asyncio.run(_Life(tmp_path).tell())

    assert killed == undisturbed
    first, second = (state["weights"] for state in states)
    assert all(first[name].numpy().tobytes() == second[name].numpy().tobytes() for name in first)
    assert [state["run"]["base_precision"] for state in states] == ["4bit", "4bit"]
