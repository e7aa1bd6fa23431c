"""Train with JAX: each save returns after one copy, and a killed run resumes with the same losses.

Run it: `python examples/jax_loop.py ./jax-run`. Kill it with `kill -9` and run it again: it resumes from the newest
checkpoint that is not damaged. torch is not needed.
"""

from __future__ import annotations

import argparse
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from chockstone.checkpoints import Checkpointer, Retention
from chockstone.integrations.jax import PytreeState


class Adam(NamedTuple):  # as the states of optax are
    steps: jax.Array
    mu: dict[str, jax.Array]
    nu: dict[str, jax.Array]


def loss_of(params: dict[str, jax.Array], batch: jax.Array) -> jax.Array:
    return jnp.mean((jnp.tanh(batch @ params["w"]) + params["b"].astype(jnp.float32)) ** 2)


@jax.jit
def train_step(params: Any, adam: Adam, key: jax.Array) -> Any:  # Any: pytrees
    key, draw = jax.random.split(key)
    loss, gradients = jax.value_and_grad(loss_of)(params, jax.random.normal(draw, (16, 8)))
    mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, adam.mu, gradients)
    nu = jax.tree.map(lambda n, g: 0.99 * n + 0.01 * g * g, adam.nu, gradients)
    params = jax.tree.map(lambda p, m, n: (p - 0.05 * m / (jnp.sqrt(n) + 1e-6)).astype(p.dtype), params, mu, nu)
    return params, Adam(adam.steps + 1, mu, nu), key, loss


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", help="directory of the run")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument(
        "--pause", type=float, default=0.05, metavar="SECONDS", help="extra time per step (default: 0.05)"
    )
    arguments = parser.parse_args()

    params = {"w": jax.random.normal(jax.random.key(1), (8, 8)), "b": jnp.ones(8, jnp.bfloat16)}
    zeros = jax.tree.map(jnp.zeros_like, params)
    training = PytreeState((params, Adam(jnp.zeros((), jnp.int32), zeros, zeros), jax.random.key(0)))
    state: dict[str, Any] = {"training": training, "step": 0}
    with Checkpointer(arguments.root, prefix="run", retention=Retention(keep_last=3)) as checkpointer:
        receipt = checkpointer.restore(state)
        print("a fresh start" if receipt is None else f"resumed after step {state['step']}", flush=True)
        for step in range(state["step"] + 1, arguments.steps + 1):
            *parts, loss = train_step(*training.tree)
            training.tree = tuple(parts)
            print(f"step {step} loss {float(loss)!r}", flush=True)
            time.sleep(arguments.pause)
            if step % arguments.save_every == 0:
                state["step"] = step
                checkpointer.save(state, step=step, overwrite=True)  # a damaged one may have its name


if __name__ == "__main__":
    main()
