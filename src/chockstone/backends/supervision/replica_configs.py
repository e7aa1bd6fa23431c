"""Replica configurations: divides the cores and GPUs of this machine among several workers with the same models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from chockstone.backends.supervision.process import WorkerConfig

MOST_REPLICAS: Final = 64  # of a server, also where there are more GPUs


def replica_configs(
    config: WorkerConfig, replicas: int, *, cores: int, gpus: Sequence[str] = ()
) -> tuple[WorkerConfig, ...]:
    """One configuration per replica, or per GPU up to the maximum if ``replicas`` is 0.

    A single replica gets ``config`` as it is.

    ``gpus`` are named as in CUDA_VISIBLE_DEVICES; each replica gets one, in turn. All replicas have the same number of
    threads, since the bits of a result depend on it.
    """
    count = replicas or min(max(1, len(gpus)), MOST_REPLICAS)
    if count == 1:
        return (config,)
    threads = config.threads or max(1, cores // count)
    return tuple(
        replace(config, threads=threads, gpu=gpus[number % len(gpus)] if gpus else None) for number in range(count)
    )


def further_config(configs: Sequence[WorkerConfig], number: int, *, gpus: Sequence[str] = ()) -> WorkerConfig:
    """That of a replica that joins a server which was started with ``configs``.

    ``number``: of the replica. It gets the GPU that a server with more replicas would have given to it.
    """
    if number < len(configs):
        return configs[number]
    return replace(configs[0], gpu=gpus[number % len(gpus)] if gpus else None)
