from __future__ import annotations

from typing import Any

import pytest

from chockstone.trainers import ConfigInvalid, TrainerConfig
from chockstone.trainers.config import Schedule


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"steps": 0}, "steps must be a whole number from 1 on, not 0"),
        ({"steps": 1.5}, "steps"),
        ({"steps": True}, "steps"),
        ({"batch_size": 0}, "batch_size"),
        ({"group_size": 1}, "group_size must be a whole number from 2 on"),
        ({"rank": -1}, "rank"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"staleness": -1}, "staleness"),
        ({"keep": 0}, "keep"),
        ({"save_every": -1}, "save_every"),
        ({"evaluate_every": "5"}, "evaluate_every"),
        ({"seed": -1}, "seed"),
        ({"learning_rate": 0}, "learning_rate must be more than zero, not 0"),
        ({"learning_rate": float("nan")}, "learning_rate"),
        ({"schedule": "steep"}, "schedule must be one of constant, linear, cosine"),
        ({"warmup_steps": -1}, "warmup_steps"),
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"weight_decay": -0.1}, "weight_decay must be zero or more"),
        ({"grad_clip_norm": float("inf")}, "grad_clip_norm"),
        ({"kl_coefficient": -1}, "kl_coefficient"),
        ({"concurrency": 0}, "concurrency must be a whole number from 1 on, or None, not 0"),
        ({"concurrency": 2.0}, "concurrency"),
        ({"concurrency": True}, "concurrency"),
        ({"loss": "hinge"}, "loss must be one of importance_sampling, ppo, cispo, not 'hinge'"),
        ({"exports": ("gguf",)}, r"exports can be sampler and hf, not \['gguf'\]"),
        ({"base_model": ""}, "base_model"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_cannot_be_is_refused_and_named(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigInvalid, match=told):
        TrainerConfig(**{"base_model": "tiny"} | settings)


@pytest.mark.parametrize(
    "changed",
    [{"steps": 7}, {"save_every": 3}, {"keep": 9}, {"exports": ("hf",)}, {"learning_rate": 1.0}, {"staleness": 4}],
    ids=lambda changed: next(iter(changed)),
)
def test_what_may_differ_between_lives_is_not_part_of_the_identity(changed: dict[str, Any]) -> None:
    assert TrainerConfig("tiny", **changed).identity() == TrainerConfig("tiny").identity()


@pytest.mark.parametrize(
    "changed", [{"rank": 7}, {"batch_size": 3}, {"group_size": 9}, {"seed": 1}], ids=lambda changed: next(iter(changed))
)
def test_what_would_make_another_run_is(changed: dict[str, Any]) -> None:
    assert TrainerConfig("tiny", **changed).identity() != TrainerConfig("tiny").identity()


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("constant", [0.4, 0.4, 0.4, 0.4]),
        ("linear", [0.4, 0.3, 0.2, 0.1]),
        ("cosine", [0.4, 0.341421, 0.2, 0.058579]),
    ],
)
def test_the_learning_rate_follows_its_schedule(schedule: Schedule, rates: list[float]) -> None:
    config = TrainerConfig("tiny", steps=4, learning_rate=0.4, schedule=schedule)

    assert [config.learning_rate_at(step) for step in range(4)] == pytest.approx(rates, abs=1e-6)


def test_the_learning_rate_rises_first() -> None:
    config = TrainerConfig("tiny", steps=10, learning_rate=0.4, schedule="linear", warmup_steps=3)

    rates = [config.learning_rate_at(step) for step in range(10)]

    assert rates[:4] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert rates[3:] == sorted(rates[3:], reverse=True) and rates[-1] > 0
