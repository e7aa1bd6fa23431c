"""Replica configurations: divides the cores and GPUs of this machine among several workers with the same models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from chockstone.backends.supervision.process import WorkerConfig


def replica_configs(
    config: WorkerConfig, replicas: int, *, cores: int, gpus: Sequence[str] = ()
) -> tuple[WorkerConfig, ...]:
    """One configuration per replica, or per GPU if ``replicas`` is 0. A single replica gets ``config`` as it is.

    ``gpus`` are named as in CUDA_VISIBLE_DEVICES; each replica gets one, in turn. All replicas have the same number of
    threads, since the bits of a result depend on it.
    """
    count = replicas or max(1, len(gpus))
    if count == 1:
        return (config,)
    threads = config.threads or max(1, cores // count)
    return tuple(
        replace(config, threads=threads, gpu=gpus[number % len(gpus)] if gpus else None) for number in range(count)
    )
