"""Stepping: full fine-tuning on two ranks, by our backend and by a bare FSDP2 loop on the same batch.

Ours is told each step over its channel, as by a server: pass and optimizer step, one after the other, each answered
before the next. Our arithmetic in a bare loop is beside it: against that is what the dispatch adds, against plain
FSDP2 is everything, such as results for each token, and a run that leaves the base model as it was.
"""

from __future__ import annotations

from base64 import b64encode
from time import perf_counter

from benchmarks.checkpoints.rounds import Metrics, Series
from benchmarks.distributed.crew import CrewOfRanks
from benchmarks.distributed.stage import Stage
from benchmarks.distributed.world import World, slowest
from benchmarks.server.models import Model
from chockstone.backends.calls import ForwardBackwardCall, OpenRunCall, OptimStepCall
from chockstone.backends.protocol import RunSpec
from chockstone.backends.supervision.process import WorkerConfig
from chockstone.cli.models.making import make_model
from chockstone.wire.codecs.pass_request import pass_from_json
from chockstone.wire.codecs.pass_result import pass_result_json

OURS = "our backend, two ranks"
OWN = "our arithmetic in a bare loop, two ranks"
BARE = "bare FSDP2 loop, two ranks"
LEARNING_RATE = 1e-5
LOSS_TOLERANCE = 1e-4


def measure_stepping(stage: Stage) -> dict[str, Series]:
    scale = stage.scale
    made = make_model(stage.directory / "model", architecture="qwen3", parameters=scale.parameters)
    model = Model("model", made.directory, made.shape)
    sequences = model.draw(scale.sequences, scale.sequence_tokens + 1, seed=3)
    body = _body(sequences)
    config = WorkerConfig({"model": str(made.directory)}, str(stage.directory / "store"), device="cpu", threads=1)
    losses: dict[str, float] = {}
    with CrewOfRanks(config, 2, stage.directory) as crew, World(2, stage.directory) as both:
        crew.send(OpenRunCall(run_id="run", base_model="model", spec=RunSpec(rank=0, seed=1)))
        both.tell("prepare", directory=str(made.directory), learning_rate=LEARNING_RATE)

        def ours() -> Metrics:
            began = perf_counter()
            for _ in range(scale.steps):
                result = crew.send(ForwardBackwardCall(run_id="run", body=body))
                crew.send(OptimStepCall(run_id="run", params={"learning_rate": LEARNING_RATE}))
                if OURS not in losses:
                    losses[OURS] = float(pass_result_json(result.body)["metrics"]["loss:sum"])
            return {"seconds": (perf_counter() - began) / scale.steps}

        def own() -> Metrics:
            said = both.tell("train_own", body=b64encode(body).decode("ascii"), steps=scale.steps)
            return {"seconds": slowest(said, "seconds") / scale.steps}

        def theirs() -> Metrics:
            said = both.tell("train", sequences=sequences, steps=scale.steps)
            losses.setdefault(BARE, said[0]["loss"])
            return {"seconds": slowest(said, "seconds") / scale.steps}

        rows = stage.run_rounds({OURS: ours, OWN: own, BARE: theirs}, repeats=scale.turns, state_bytes=0)
    batch = f"{scale.sequences} × {scale.sequence_tokens} tokens"
    stage.titles["step"] = f"all of {scale.parameters / 1e6:.0f}M weights, {batch}"
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
