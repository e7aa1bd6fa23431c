"""Pytrees as parts of a state. Where jax is not installed, nothing of this runs."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from support.integrations.need_extra import need_extra

need_extra("jax", in_ci=False)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

from chockstone.checkpoints import Checkpointer  # noqa: E402
from chockstone.checkpoints.errors import CheckpointError, RestoreFailed  # noqa: E402
from chockstone.integrations.jax import PytreeState  # noqa: E402
from support.checkpoints.damage import flip  # noqa: E402


class Moments(NamedTuple):
    count: jax.Array
    mu: dict[str, jax.Array]


def tree(seed: int) -> Any:
    made = jax.random.normal(jax.random.key(seed), (3, 5))
    return {
        "params": [made, made.astype(jnp.bfloat16), made.astype(jnp.float8_e4m3fn), None],
        "opt": (Moments(jnp.asarray(seed, jnp.int32), {"w": made + 1}), (), Moments(jnp.asarray(seed * 1.5), {})),
        "key": jax.random.key(seed),
        "host": np.arange(seed, seed + 4),
        "lr": 0.1 * seed,
    }


def restored(tmp_path: Path, saved: Any, into: Any) -> Any:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save({"training": PytreeState(saved)}, step=1).result()
        target = {"training": PytreeState(into)}
        checkpointer.restore(target)
    return target["training"].tree


def test_a_pytree_comes_back_with_its_types_and_bits(tmp_path: Path) -> None:
    wanted = tree(3)

    found = restored(tmp_path, wanted, tree(1))

    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert type(one) is type(other)
        if isinstance(one, jax.Array) and jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            one, other = jax.random.key_data(one), jax.random.key_data(other)
        if isinstance(one, jax.Array):
            assert one.weak_type == other.weak_type
        one, other = np.asarray(one), np.asarray(other)
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


def test_a_restored_array_has_the_sharding_of_the_array_that_it_replaces(tmp_path: Path) -> None:
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])

    found = restored(tmp_path, [jnp.ones(4), jnp.ones(4)], [jax.device_put(jnp.zeros(4), place), jnp.zeros(4)])

    assert [array.committed for array in found] == [True, False]
    assert found[0].sharding == place


def test_arrays_that_share_a_short_name_are_told_apart(tmp_path: Path) -> None:
    saved = {"a.b": jnp.ones(2), "a": {"b": jnp.zeros(2)}}

    found = restored(tmp_path, saved, jax.tree.map(jnp.zeros_like, saved))

    assert found["a.b"].tolist() == [1, 1]
    assert found["a"]["b"].tolist() == [0, 0]


def test_a_pytree_of_another_structure_is_refused_and_stays_as_it_was(tmp_path: Path) -> None:
    into = {"w": jnp.zeros((2, 3)), "new": jnp.zeros(1)}
    target = {"training": PytreeState(into)}

    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save({"training": PytreeState({"w": jnp.ones((3, 2)), "old": jnp.ones(1)})}, step=1).result()
        with pytest.raises(RestoreFailed) as refused:
            checkpointer.restore(target)

    assert "missing from the checkpoint: new" in str(refused.value)
    assert "unexpected in the checkpoint: old" in str(refused.value)
    assert "w: the checkpoint holds float32[3, 2], the pytree float32[2, 3]" in str(refused.value)
    assert target["training"].tree is into


def test_a_key_of_another_algorithm_is_refused() -> None:
    saved = PytreeState({"key": jax.random.key(0, impl="rbg")}).state_dict()

    with pytest.raises(CheckpointError, match="key: one is a random key and the other is not"):
        PytreeState({"key": jax.random.key(0)}).load_state_dict(saved)


EXAMPLE = Path(__file__).parents[4] / "examples" / "jax_loop.py"
LOSS = re.compile(r"step (\d+) loss (\S+)")


def run(place: Path, kill_at: int | None = None) -> tuple[str, dict[int, str]]:
    """Run the example to step 8, or kill it when it reports a step; how it started, and the loss of each step."""
    command = [sys.executable, str(EXAMPLE), str(place), "--steps=8", "--save-every=2"]
    pause = "--pause=0" if kill_at is None else "--pause=0.2"  # time for the save before the kill
    with subprocess.Popen([*command, pause], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line.strip())
            if line.startswith(f"step {kill_at} "):
                process.kill()
    assert process.returncode == (0 if kill_at is None else -signal.SIGKILL)
    return lines[0], {int(step): loss for step, loss in LOSS.findall("\n".join(lines))}


def test_a_killed_training_continues_with_the_same_losses_and_a_flipped_bit_costs_one_interval(tmp_path: Path) -> None:
    start, undisturbed = run(tmp_path, kill_at=7)
    assert start == "a fresh start"
    newest = max((tmp_path / "run").glob("step-*.tar"))
    flip(newest, newest.stat().st_size // 2)

    start, losses = run(tmp_path)

    resumed = int(newest.stem.removeprefix("step-")) - 2
    assert start == f"resumed after step {resumed}"
    assert {step: losses[step] for step in range(resumed + 1, 8)} == {
        step: undisturbed[step] for step in range(resumed + 1, 8)
    }
