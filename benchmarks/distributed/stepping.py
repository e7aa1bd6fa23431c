"""Stepping: full fine-tuning on two ranks, by our backend and by a bare FSDP2 loop on the same batch.

Our backend gets each step over its channel, as from a server: pass and optimizer step, each answered before the next.
The same arithmetic in a bare loop shows what that dispatch adds. A plain FSDP2 loop shows what everything adds, such
as results for each token, and a run that leaves the base model unchanged.
"""

from __future__ import annotations

from base64 import b64encode
from time import perf_counter

from benchmarks.distributed.scale import Scale
from benchmarks.distributed.worker_group import WorkerGroup
from benchmarks.distributed.world import World, slowest
from benchmarks.harness.context import Context
from benchmarks.harness.free_memory import free_memory
from benchmarks.harness.rounds import Metrics, Rows
from benchmarks.live.models import new_model
from chockstone.backends.calls import ForwardBackwardCall, OpenRunCall, OptimStepCall
from chockstone.backends.protocol import RunSpec
from chockstone.backends.supervision.process import WorkerConfig
from chockstone.wire.codecs.pass_request import pass_from_json
from chockstone.wire.codecs.pass_result import pass_result_json

OURS = "our backend, two ranks"
OWN = "our arithmetic in a bare loop, two ranks"
BARE = "bare FSDP2 loop, two ranks"
LEARNING_RATE = 1e-5
LOSS_TOLERANCE = 1e-4


def measure_stepping(context: Context, scale: Scale) -> Rows:
    batch = f"{scale.sequences} × {scale.sequence_tokens} tokens"
    context.describe(f"all of {scale.parameters / 1e6:.0f}M weights, {batch}")
    model = new_model("model", context.directory, parameters=scale.parameters)
    sequences = model.draw(scale.sequences, scale.sequence_tokens + 1, seed=3)
    body = _body(sequences)
    config = WorkerConfig({"model": str(model.directory)}, str(context.directory / "store"), device="cpu", threads=1)
    losses: dict[str, float] = {}
    with WorkerGroup(config, 2, context.directory) as group, World(2, context.directory) as both:
        group.send(OpenRunCall(run_id="run", base_model="model", spec=RunSpec(rank=0, seed=1)))
        both.call("prepare", directory=str(model.directory), learning_rate=LEARNING_RATE)

        memory = free_memory(context.temperature, 0)

        def ours() -> Metrics:
            began = perf_counter()
            for _ in range(scale.steps):
                result = group.send(ForwardBackwardCall(run_id="run", body=body))
                group.send(OptimStepCall(run_id="run", params={"learning_rate": LEARNING_RATE}))
                if OURS not in losses:
                    losses[OURS] = float(pass_result_json(result.body)["metrics"]["loss:sum"])
            return {"seconds": (perf_counter() - began) / scale.steps}

        def own() -> Metrics:
            replies = both.call("train_own", body=b64encode(body).decode("ascii"), steps=scale.steps)
            return {"seconds": slowest(replies, "seconds") / scale.steps}

        def theirs() -> Metrics:
            replies = both.call("train", sequences=sequences, steps=scale.steps)
            losses.setdefault(BARE, replies[0]["loss"])
            return {"seconds": slowest(replies, "seconds") / scale.steps}

        rows = context.run_rounds({OURS: ours, OWN: own, BARE: theirs}, repeats=scale.turns, memory=memory)
    if len(losses) == 2 and abs(losses[OURS] / losses[BARE] - 1) > LOSS_TOLERANCE:
        rows[OURS].failure = f"not the same work: first losses {losses}"
    return rows


def _body(sequences: list[list[int]]) -> bytes:
    data = [
        {
            "model_input": {"chunks": [{"type": "encoded_text", "tokens": tokens[:-1]}]},
            "loss_fn_inputs": {
                "target_tokens": {"data": tokens[1:], "dtype": "int64", "shape": [len(tokens) - 1]},
                "weights": {"data": [1.0] * (len(tokens) - 1), "dtype": "float32", "shape": [len(tokens) - 1]},
            },
        }
        for tokens in sequences
    ]
    given = {"data": data, "loss_fn": "cross_entropy"}
    return pass_from_json({"model_id": "run", "seq_id": 1, "forward_backward_input": given})
