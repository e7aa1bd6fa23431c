"""What the processes of a process_group are told to do. Every function runs in all of them at the same time."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
import torch.distributed as dist

from chockstone.backends.fsdp.base_model import load_sharded_base
from chockstone.backends.fsdp.full_weights import ShardedWeights
from chockstone.backends.fsdp.model_shards import ModelShards
from chockstone.backends.fsdp.parameters import ShardedParameters
from chockstone.backends.fsdp.process_group import DistributedProcessGroup, ProcessGroupLost
from chockstone.backends.losses.custom_loss import CustomLoss
from chockstone.backends.run_spec import BasePrecision, RunSpec
from chockstone.backends.training.base_model import BaseModel, load_base_model
from chockstone.backends.training.optimizers import OptimStep
from chockstone.backends.training.process_group import ProcessGroup
from chockstone.backends.training.run import TrainedRun
from chockstone.backends.worker.sampler_weights import Weights, run_weights
from chockstone.backends.worker.sampling_source import SamplingSource
from chockstone.checkpoints import Archive
from chockstone.checkpoints.format.shards import Pieces
from chockstone.sampling.model import SampledModel
from chockstone.wire.codecs.passes import Datum, PassResult
from chockstone.wire.codecs.sample_request import decode_sample
from chockstone.wire.codecs.samples import SampleResult
from chockstone.wire.failures import RequestError
from support.backends.bodies import sample_body
from support.backends.saving import Desk
from support.tiny_models import begin_alike, datum, finish, request

INPUTS = {
    "cross_entropy": ("weights",),
    "importance_sampling": ("logprobs", "advantages"),
    "ppo": ("logprobs", "advantages"),
    "cispo": ("logprobs", "advantages"),
    "dro": ("logprobs", "advantages"),
    "gspo": ("logprobs", "advantages", "sequence_ratio_mask"),
    "custom": (),
}
# -sum(logprobs) per datum, and its size as a metric
CUSTOM: dict[str, Any] = {
    "format": 1,
    "nodes": [
        {"op": "placeholder", "name": "logprobs", "target": "logprobs"},
        {"op": "call_method", "name": "total", "target": "sum", "args": [{"ref": "logprobs"}], "kwargs": {}},
        {"op": "call_method", "name": "loss", "target": "neg", "args": [{"ref": "total"}], "kwargs": {}},
        {
            "op": "output",
            "name": "output",
            "target": "output",
            "args": [{"tuple": [{"ref": "loss"}, {"dict": {"custom/total:mean": {"ref": "total"}}}]}],
        },
    ],
}


@functools.cache
def bases(directory: str, dtype: str = "float32", precision: BasePrecision = "auto") -> tuple[BaseModel, BaseModel]:
    """The same model held by all, and by this process alone."""
    sharded = load_sharded_base(
        *("tiny", directory),
        device="cpu",
        dtype=dtype,
        base_precision=precision,
        process_group=DistributedProcessGroup(None),
    )
    return sharded, load_base_model("tiny", directory, device="cpu", dtype=dtype, base_precision=precision)


def batch(count: int, loss: str, seed: int, prompt: int = 0) -> list[Datum]:
    """``prompt``: how many tokens they have in common at the beginning."""
    data = [datum(prompt + 4 + 3 * (i % 4) + i, seed=seed * 100 + i, inputs=INPUTS[loss]) for i in range(count)]
    return begin_alike(data, prompt)


def apply(run: TrainedRun, data: list[Datum], loss: str, *, budget: int, forward_only: bool = False) -> PassResult:
    losses = {"mine": CustomLoss.parse(CUSTOM, [{"name": "logprobs", "rank": 1}])}
    options: dict[str, Any] = {"loss_id": "mine"} if loss == "custom" else {}
    asked = request(*data, loss=loss, forward_only=forward_only, **options)
    return finish(run.apply(asked, losses, tokens_per_micro_batch=budget))


def weights_of(run: TrainedRun) -> dict[str, torch.Tensor]:
    return {name: whole(weight) for name, weight in run.state()["weights"].items()}


def whole(weight: torch.Tensor | Pieces) -> torch.Tensor:
    if isinstance(weight, torch.Tensor):
        return weight
    flat = torch.zeros(math.prod(weight.shape), dtype=weight.dtype)
    for first, piece in weight.pieces:
        flat[first : first + len(piece)] = piece
    dist.all_reduce(flat)
    return flat.view(weight.shape)


def furthest(ours: TrainedRun, alone: TrainedRun) -> float:
    theirs = weights_of(alone)
    return max(float((weight - theirs[name]).abs().max()) for name, weight in weights_of(ours).items())


def follow_one_process(
    *,
    directory: str,
    rank: int,
    losses: list[str],
    counts: list[int],
    budget: int = 40,
    prompt: int = 0,
    precision: BasePrecision = "auto",
    **spec: Any,
) -> dict[str, float]:
    """The furthest that anything gets from what one process computes, over a step for each loss and count of datums."""
    ours, alone = (
        TrainedRun(base, RunSpec(rank=rank, seed=1, **spec)) for base in bases(directory, precision=precision)
    )
    found = {"logprobs": 0.0, "metrics": 0.0, "norm": 0.0, "weights": 0.0}
    family = spec.get("optimizer", "adamw")
    for number, (loss, count) in enumerate(itertools.product(losses, counts)):
        data = batch(count, loss, seed=number, prompt=prompt)
        mine, theirs = (apply(run, data, loss, budget=budget) for run in (ours, alone))
        pairs = zip(mine.logprobs, theirs.logprobs, strict=True)
        found["logprobs"] = max(found["logprobs"], *(float((abs(a - b) / abs(b)).max()) for a, b in pairs))
        assert mine.metrics.keys() == theirs.metrics.keys()
        gaps = [abs(mine.metrics[name] - value) / max(1.0, abs(value)) for name, value in theirs.metrics.items()]
        found["metrics"] = max(found["metrics"], *gaps)
        # Adam divides by the gradient's own size: below eps, what is noise in it decides over the step
        step = OptimStep(family=family, learning_rate=0.01, grad_clip_norm=10.0, eps=1e-3)
        stepped = [run.optim_step(step) for run in (ours, alone)]
        found["norm"] = max(found["norm"], abs(stepped[0]["grad_norm"] / stepped[1]["grad_norm"] - 1))
        found["weights"] = max(found["weights"], furthest(ours, alone))
    data = batch(3, losses[0], 9)
    forward = [apply(run, data, losses[0], budget=budget, forward_only=True) for run in (ours, alone)]
    found["forward"] = abs(forward[0].metrics["loss:sum"] / forward[1].metrics["loss:sum"] - 1)
    return found


def follow_in_half_precision(*, directory: str, rank: int) -> float:
    """How far, of its size, the loss gets from that of one process in a few steps."""
    gaps = []
    ours, alone = (TrainedRun(base, RunSpec(rank=rank, seed=1)) for base in bases(directory, "bfloat16"))
    for step in range(3):
        data = batch(3, "cross_entropy", seed=step)
        mine, theirs = (apply(run, data, "cross_entropy", budget=40).metrics["loss:sum"] for run in (ours, alone))
        gaps.append(abs(mine / theirs - 1))
        for run in (ours, alone):
            run.optim_step(OptimStep(learning_rate=0.01, eps=1e-3))
    return max(gaps)


def hold_no_more_than_a_share(*, directory: str) -> dict[str, int]:
    """Elements of the model in this process, between passes."""
    sharded, alone = bases(directory)
    run = TrainedRun(sharded, RunSpec(rank=4, seed=1))
    apply(run, batch(3, "cross_entropy", 0), "cross_entropy", budget=40)
    held = sum(weight.to_local().numel() for weight in sharded.model.parameters())  # type: ignore[attr-defined]
    return {"held": held, "whole": sum(weight.numel() for weight in alone.model.parameters())}


def hold_a_share_of_quantised_weights(*, directory: str, precision: BasePrecision) -> dict[str, Any]:
    """Bytes of the model in this process, between passes; and why a run of rank 0 is refused."""
    sharded, alone = bases(directory, precision=precision)
    run = TrainedRun(sharded, RunSpec(rank=4, seed=1))
    apply(run, batch(3, "cross_entropy", 0), "cross_entropy", budget=40)
    held = sum(weight.to_local().nbytes for weight in sharded.model.parameters())  # type: ignore[attr-defined]
    try:
        TrainedRun(sharded, RunSpec(rank=0, seed=1))
    except RequestError as error:
        return {"held": held, "said": sharded.weight_bytes, "whole": alone.weight_bytes, "refused": str(error)}
    raise AssertionError("a run of rank 0 was not refused")


def recompute_activations(*, directory: str, rank: int, modes: list[str], precision: BasePrecision = "auto") -> bool:
    """Whether activation checkpointing gives the same bits, over two steps with unequal shares. ``modes``: by rank."""
    found = []
    for mode in ("off", modes[dist.get_rank()]):
        base = load_sharded_base(
            *("tiny", directory),
            device="cpu",
            dtype="auto",
            base_precision=precision,
            activation_checkpointing=mode,
            process_group=DistributedProcessGroup(None),
        )
        run = TrainedRun(base, RunSpec(rank=rank, seed=1))
        results = []
        for count in (3, 2):
            results.append(apply(run, batch(count, "cross_entropy", seed=count), "cross_entropy", budget=40))
            run.optim_step(OptimStep(family="adamw", learning_rate=0.01))
        logprobs = [array.tobytes() for result in results for array in result.logprobs]
        found.append((logprobs, {name: bytes(weight.numpy()) for name, weight in weights_of(run).items()}))
    return found[0] == found[1]


def measure_activations(*, directory: str, rank: int) -> list[tuple[float, float]]:
    """What the layers keep for a token and for a pair of tokens: as this process measures it with others, and alone."""
    found = []
    for base in bases(directory):
        run = TrainedRun(base, RunSpec(rank=rank, seed=1))
        apply(run, batch(3, "cross_entropy", seed=1), "cross_entropy", budget=40)
        kept = base.activations.kept_bytes(lambda _: None)
        found.append((kept.per_token, kept.per_pair))
    return found


def load(*, directory: str) -> str:
    try:
        load_sharded_base("tiny", directory, device="cpu", dtype="auto", process_group=DistributedProcessGroup(None))
    except RequestError as error:
        return f"{type(error).__name__}: {error}"
    return "loaded"


def load_where_one_cannot(*, directory: str) -> str:
    process_group = DistributedProcessGroup(None)
    return load(directory=directory if process_group.rank == 0 else str(Path(directory) / "elsewhere"))


def sampled_by(base: BaseModel, run: TrainedRun | None, **asked: Any) -> SampleResult:
    shared = SampledModel(
        base.model,
        base.tokenizer,
        max_context=base.max_context,
        computing=base.computing if base.process_group.size > 1 else None,
    )
    weights = Weights(shared, None, 0) if run is None else run_weights(run, shared)
    source = SamplingSource(8, process_group=base.process_group)
    request = decode_sample(orjson.loads(sample_body([3, 1, 4, 1, 5], **asked)))
    done = [source.add(f"sample {i}", weights, request, seed=i) for i in range(2)]
    while source.has_work():
        source.step()
    outcome = done[-1].result()
    assert isinstance(outcome, SampleResult), outcome
    return outcome


def sample_as_one_does(*, directory: str, rank: int | None) -> float:
    """The furthest of any log-probability, if the tokens are the same."""
    results = []
    for base in bases(directory):
        run = None if rank is None else TrainedRun(base, RunSpec(rank=rank, seed=1))
        if run is not None:
            apply(run, batch(3, "cross_entropy", 0), "cross_entropy", budget=40)
            run.optim_step(OptimStep(learning_rate=0.05))
        results.append(sampled_by(base, run, num_samples=3, max_tokens=12))
        if run is not None:  # and the base, and the run, are as before
            sampled_by(base, None)
            apply(run, batch(2, "cross_entropy", 1), "cross_entropy", budget=40)
    gaps = []
    for ours, theirs in zip(results[0].sequences, results[1].sequences, strict=True):
        assert ours.tokens.tolist() == theirs.tokens.tolist()
        gaps.append(float(abs(ours.logprobs - theirs.logprobs).max()))
    return max(gaps)


def refuse_together(*, directory: str, rank: int) -> dict[str, Any]:
    """A custom loss that fails for one datum, which one process has; afterwards all is as before."""
    ours, alone = (TrainedRun(base, RunSpec(rank=rank, seed=1)) for base in bases(directory))
    nodes = [
        CUSTOM["nodes"][0],
        {"op": "call_method", "name": "rows", "target": "view", "args": [{"ref": "logprobs"}, -1, 5], "kwargs": {}},
        {"op": "call_method", "name": "total", "target": "sum", "args": [{"ref": "rows"}], "kwargs": {}},
        *CUSTOM["nodes"][2:],
    ]
    losses = {"mine": CustomLoss.parse(CUSTOM | {"nodes": nodes}, [{"name": "logprobs", "rank": 1}])}
    data = [datum(10, seed=0), datum(9, seed=1)]  # 9 rows are no multiple of 5
    said = []
    for run in (ours, alone):
        asked = request(*data, loss="custom", loss_id="mine")
        try:
            finish(run.apply(asked, losses, tokens_per_micro_batch=40))
        except RequestError as error:
            said.append(f"{type(error).__name__}: {error}")
    for run in (ours, alone):
        apply(run, batch(3, "cross_entropy", 0), "cross_entropy", budget=40)
        run.optim_step(OptimStep(learning_rate=0.01, eps=1e-6))
    return {"said": said, "gap": furthest(ours, alone)}


def train(run: TrainedRun, *, steps: int, seed: int = 0) -> list[float]:
    """The losses on the way, which ends with a pass that no step has followed yet."""
    losses = []
    for step in range(steps):
        if step:
            run.optim_step(OptimStep(learning_rate=0.01, eps=1e-6))
        result = apply(run, batch(3, "cross_entropy", seed + step), "cross_entropy", budget=40)
        losses.append(result.metrics["loss:sum"])
    return losses


def go_on(run: TrainedRun) -> list[float]:
    run.optim_step(OptimStep(learning_rate=0.01, eps=1e-6))
    return train(run, steps=2, seed=50)


@contextmanager
def desk_of(store: str, process_group: ProcessGroup) -> Iterator[Desk]:
    desk = Desk(Path(store), process_group=process_group)
    yield desk
    desk.checkpoints.close()


def save_a_run(*, directory: str, store: str, rank: int, kinds: list[str], steps: int = 3) -> list[float]:
    """Under its kind's name each; then what the run went on with."""
    base, _ = bases(directory)
    run = TrainedRun(base, RunSpec(rank=rank, seed=1))
    train(run, steps=steps)
    with desk_of(store, base.process_group) as desk:
        for kind in kinds:
            desk.save(run, kind, kind=kind)
    return go_on(run)


def load_a_run(*, directory: str, store: str, rank: int, archive: str, again: str) -> list[float]:
    """Into a fresh run, which is saved again at once; then what it went on with."""
    base, _ = bases(directory)
    run = TrainedRun(base, RunSpec(rank=rank, seed=1))
    with desk_of(store, base.process_group) as desk:
        run.load(desk.wait(desk.checkpoints.load(archive, base.restore_template)), with_optimizer=True)
        desk.save(run, again, kind="weights")
    return go_on(run)


def refuse_to_encrypt(*, directory: str, store: str) -> str:
    base, _ = bases(directory)
    run = TrainedRun(base, RunSpec(rank=4, seed=1))
    with desk_of(store, base.process_group) as desk:
        try:
            desk.save(run, "one", kind="external_weights", recipients=["somebody"])
        except RequestError as error:
            return str(error)
    return "saved"


def room_made(*, directory: str, store: str, archive: str) -> dict[str, int]:
    """How much of an archive's tensors this process has room for, and how large they are."""
    base, _ = bases(directory)
    assert base.restore_template is not None
    with Archive.open(Path(store) / f"{archive}.tar") as opened:
        state = base.restore_template(opened)
    leaves = [
        *state["weights"].values(),
        *(v for k, v in state["optimizer"].items() if k != "steps"),
        state["gradient"],
    ]
    assert all(isinstance(leaf, Pieces) for leaf in leaves)
    mine = sum(piece.numel() for leaf in leaves for _, piece in leaf.pieces)
    return {"mine": mine, "whole": sum(math.prod(leaf.shape) for leaf in leaves)}


def exchange() -> dict[str, Any]:
    """What each operation of the process group gives this process."""
    group = DistributedProcessGroup(None)
    total = torch.tensor([group.rank + 1.0], dtype=torch.float64)
    group.sum_in_place(total)
    mine = torch.full((group.rank + 1,), group.rank + 1.0, dtype=torch.float64)
    gathered = group.gather(mine, [1, 2])
    [array] = group.broadcast_arrays(np.full(3, group.rank))
    return {
        "rank": group.rank,
        "sum": float(total),
        "gathered": [each.tolist() for each in gathered],
        "broadcast": array.tolist(),
        "decided": group.leaders_answer(group.rank == 0),
    }


def lose_the_group() -> str:
    try:
        DistributedProcessGroup(None).raise_together(ValueError("broken"))
    except ProcessGroupLost as lost:
        return str(lost)
    return "kept"


def shards_of(directory: str) -> tuple[ModelShards, dict[str, torch.Tensor]]:
    """The shards of a new sharded model, and the same model's whole weights."""
    group = DistributedProcessGroup(None)
    sharded = load_sharded_base("tiny", directory, device="cpu", dtype="float32", process_group=group)
    _, alone = bases(directory)
    return ModelShards(sharded.model, group), dict(alone.model.named_parameters())


def take_parameters_apart(*, directory: str) -> dict[str, float]:
    """The largest difference between a whole model and what its sharded parameters make of it."""
    shards, weights = shards_of(directory)
    parameters = ShardedParameters(shards)
    flat_weights = torch.cat([weights[name].detach().flatten() for name in parameters.shapes])
    named = {name: whole(pieces) for name, pieces in parameters.named(parameters.flat).items()}
    parts = parameters.views(parameters.flat_part(flat_weights))
    return {
        "named": max(float((named[name] - weights[name]).abs().max()) for name in named),
        "whole": float((whole(parameters.whole(parameters.flat)) - flat_weights).abs().max()),
        "parts": max(
            float((part - parameters.part(name, weights[name])).abs().max())
            for name, part in parts.items()
            if len(part)
        ),
        "norm": parameters.norm(parameters.flat),
        "norm_of_one": float(flat_weights.norm()),
    }


def apply_and_take_back(*, directory: str) -> dict[str, Any]:
    """How far the model's own rows are from the base, inside and after ``applied``, with 1 added to each weight."""
    shards, _ = shards_of(directory)
    base = {name: shards.local(name).clone() for name in shards.weights}
    trained = ShardedWeights(shards)
    trained.parameters.flat.add_(1.0)

    def distance() -> float:
        return max(float((shards.local(name) - rows).abs().max()) for name, rows in base.items() if len(rows))

    with trained.applied():
        inside = distance()
    return {
        "inside": round(inside, 5),
        "after": distance(),
        "is_trainable": any(weight.requires_grad for weight in shards.weights.values()),
    }


def keep_a_snapshot(*, directory: str) -> dict[str, float]:
    """How far the model's rows are from those at the snapshot: computing with the snapshot, and with the run."""
    shards, _ = shards_of(directory)
    trained = ShardedWeights(shards)
    then = {name: view.clone() for name, view in trained.parameters.views(trained.parameters.flat).items()}
    snapshot = trained.snapshot()
    trained.parameters.flat.add_(1.0)

    def distance() -> float:
        return max(float((shards.local(name) - rows).abs().max()) for name, rows in then.items() if len(rows))

    with snapshot.computing():
        same = distance()
    with trained.applied():
        return {"same": same, "trained": distance()}
