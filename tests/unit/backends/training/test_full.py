from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from chockstone.backends.run_spec import RunSpec
from chockstone.backends.training.optimizers import OptimStep
from chockstone.backends.training.run import TrainedRun
from chockstone.wire.failures import BadRequest
from support.backends.training import train
from support.tiny_models import (
    apply,
    datum,
    lora_run,
    tiny_base,
    tiny_model,
)


def test_training_every_weight_follows_a_plain_loop_and_leaves_the_base_alone() -> None:
    base = tiny_base(tied=True)
    original = {name: parameter.clone() for name, parameter in base.model.named_parameters()}
    run = TrainedRun(base, RunSpec(rank=0, seed=0))
    model = tiny_model(tied=True)
    plain = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.9, 0.95), eps=1e-8)

    for seed in range(4):
        one = datum(12, seed=seed)
        apply(run, one)
        run.optim_step(OptimStep(learning_rate=0.01, weight_decay=0.01, eps=1e-8))
        logits = model(torch.from_numpy(one.tokens.astype(np.int64))[None]).logits[0]
        torch.nn.functional.cross_entropy(
            logits, torch.from_numpy(one.inputs["target_tokens"]), reduction="sum"
        ).backward()
        plain.step()
        plain.zero_grad()

    copy: Any = run.full_copy().model
    for (name, ours), theirs in zip(copy.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-4, atol=2e-5, msg=lambda m, n=name: f"{n}: {m}")
    assert copy.get_output_embeddings().weight is copy.get_input_embeddings().weight
    assert all(torch.equal(original[name], now) for name, now in base.model.named_parameters())


def test_a_copy_does_not_change_when_training_goes_on() -> None:
    run, full = lora_run(tiny_base()), TrainedRun(tiny_base(), RunSpec(rank=0, seed=0))
    adapter, copy = run.adapter(), full.full_copy().model
    before = [*(layer.up.clone() for layer in adapter.layers.values()), *(p.clone() for p in copy.parameters())]

    train(run, steps=1)
    train(full, steps=1)

    after = [*(layer.up for layer in adapter.layers.values()), *copy.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    with pytest.raises(BadRequest, match="no adapter"):
        full.adapter()
    with pytest.raises(BadRequest, match="no model of its own"):
        run.full_copy()
