"""A family on several ranks: what one process computes, they compute together."""

from __future__ import annotations

import os
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.families.stages import LENGTHS, PROMPT, StageFailed, datum, make_run, run_pass, train
from chockstone.backends.fsdp.base_model import load_sharded_base
from chockstone.backends.fsdp.process_group import DistributedProcessGroup, ProcessGroupLost
from chockstone.backends.training.base_model import load_base_model
from chockstone.backends.worker.sampler_weights import run_weights
from chockstone.backends.worker.sampling_source import SamplingSource
from chockstone.sampling.model import SampledModel
from chockstone.wire.codecs.samples import SampleRequest, SampleResult, SamplingParams
from chockstone.wire.failures import RequestError


def follow_one_process(directory: Path, rank: int, size: int, *, device: str = "cpu") -> dict[str, Any]:
    """Train and sample on ``size`` ranks and compare with one process. Each rank calls this in a process of its own."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    meeting = f"file://{directory / 'meeting'}"
    if device == "cuda":
        torch.cuda.set_device(rank)
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=size, timeout=timedelta(seconds=90))
    try:
        _follow(directory / "model", device)
    except RequestError as error:
        return {"error": str(error)[:300]}
    except ProcessGroupLost as error:
        cause = error.__cause__
        return {"error": f"{type(cause).__name__}: {cause}".partition("\n")[0][:300]}
    return {}


def _follow(directory: Path, device: str) -> None:
    group = DistributedProcessGroup(None)
    sharded = load_sharded_base("tiny", directory, device=device, dtype="float32", process_group=group)
    alone = load_base_model("tiny", directory, device=device, dtype="float32")
    data = [datum(length, seed=length) for length in LENGTHS]
    for kind, rank in (("LoRA", 4), ("full", 0)):
        ours, theirs = make_run(sharded, rank=rank), make_run(alone, rank=rank)
        for expected, actual in zip(train(theirs, 2), train(ours, 2), strict=True):
            _check(f"{kind}: losses", actual, expected)
        last = run_pass(theirs, *data, forward_only=True).metrics["loss:sum"]
        _check(f"{kind}: the last loss", run_pass(ours, *data, forward_only=True).metrics["loss:sum"], last)
        found, expected = (_sampled(base, run) for base, run in ((sharded, ours), (alone, theirs)))
        if [each.tokens.tolist() for each in found.sequences] != [each.tokens.tolist() for each in expected.sequences]:
            raise StageFailed(f"{kind}: other tokens are sampled")


def _sampled(base: Any, run: Any) -> SampleResult:
    computing = base.computing if base.process_group.size > 1 else None
    shared = SampledModel(base.model, base.tokenizer, max_context=base.max_context, computing=computing)
    source = SamplingSource(8, process_group=base.process_group)
    request = SampleRequest(datum(PROMPT).tokens, 2, SamplingParams(max_tokens=8, seed=5))
    done = source.add("sample", run_weights(run, shared), request, seed=1)
    while source.has_work():
        source.step()
    outcome = done.result()
    if not isinstance(outcome, SampleResult):
        raise StageFailed(str(outcome))
    return outcome


def _check(what: str, actual: float, expected: float) -> None:
    if not abs(actual / expected - 1) <= 1e-4:
        raise StageFailed(f"{what}: {actual:.6g} on two ranks, {expected:.6g} on one")
