"""A JAX training in a process of its own: ``python -m … PLACE [KILL_AT]`` prints a line per step, with the loss."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from chockstone.checkpoints import Checkpointer
from chockstone.integrations.jax import PytreeState

STEPS = 8


class Adam(NamedTuple):
    count: jax.Array
    mu: dict[str, jax.Array]
    nu: dict[str, jax.Array]


def loss_of(params: dict[str, jax.Array], batch: jax.Array) -> jax.Array:
    return jnp.mean((jnp.tanh(batch @ params["w"]) + params["b"].astype(jnp.float32)) ** 2)


@jax.jit
def train_step(params: Any, adam: Adam, key: jax.Array) -> Any:
    key, draw = jax.random.split(key)
    loss, gradients = jax.value_and_grad(loss_of)(params, jax.random.normal(draw, (16, 8)))
    mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, adam.mu, gradients)
    nu = jax.tree.map(lambda n, g: 0.99 * n + 0.01 * g * g, adam.nu, gradients)
    params = jax.tree.map(lambda p, m, n: (p - 0.05 * m / (jnp.sqrt(n) + 1e-6)).astype(p.dtype), params, mu, nu)
    return params, Adam(adam.count + 1, mu, nu), key, loss


def main(place: str, kill_at: int) -> None:
    params = {"w": jax.random.normal(jax.random.key(1), (8, 8)), "b": jnp.ones(8, jnp.bfloat16)}
    zeros = jax.tree.map(jnp.zeros_like, params)
    training = PytreeState((params, Adam(jnp.zeros((), jnp.int32), zeros, zeros), jax.random.key(0)))
    state: dict[str, Any] = {"training": training, "step": 0}
    with Checkpointer(place, prefix="run") as checkpointer:
        checkpointer.restore(state)
        print("start", state["step"], flush=True)
        for step in range(state["step"] + 1, STEPS + 1):
            *parts, loss = train_step(*training.tree)
            training.tree = tuple(parts)
            print("loss", step, float(loss).hex(), flush=True)
            if step == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            if step % 2 == 0:
                state["step"] = step
                checkpointer.save(state, step=step, overwrite=True).result()  # a damaged one may have its name


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0)
