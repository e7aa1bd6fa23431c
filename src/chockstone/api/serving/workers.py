"""The workers of a server: makes those it starts with and replicas that join later, and kills all of them."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from functools import partial

from chockstone.api.config import ServerConfig
from chockstone.api.serving.startup import CannotStart, Prepared, further_worker_config, ray_plan
from chockstone.backends.protocol import GapMeter, SamplerGap, Worker, Workers
from chockstone.backends.ray.backend import RayBackend
from chockstone.backends.supervision.local import LocalBackend
from chockstone.backends.supervision.process import WorkerConfig, WorkerProcess
from chockstone.backends.supervision.supervisor import WorkerSupervisor
from chockstone.checkpoints import Store
from chockstone.engine.replicas.replica_set import ReplicaSet


async def _report_nothing(_: SamplerGap) -> None:
    pass


class ServerWorkers:
    def __init__(
        self,
        config: ServerConfig,
        prepared: Prepared,
        *,
        on_lost: Callable[[int, str], None],
        on_fatal: Callable[[str], None],
        on_not_added: Callable[[int, str], None],
        on_gap: Callable[[SamplerGap], Awaitable[None]] = _report_nothing,
    ) -> None:
        """``on_lost`` gets the number of the replica that died, and why. ``on_fatal`` gets the reason why the server
        cannot have a worker, ``on_not_added`` that of a replica which was to join. ``on_gap`` gets the gaps of vLLM
        servers."""
        self._config = config
        self._prepared = prepared
        self._on_lost = on_lost
        self._on_fatal = on_fatal
        self._on_not_added = on_not_added
        self._on_gap = on_gap
        self.gap_meter: GapMeter | None = None  # None: no vLLM server samples. Known once ``open`` has returned
        self._generations = itertools.count(1)
        self._made: list[WorkerSupervisor] = []

    async def open(self, store: Store) -> Workers:
        """The only worker, replicas, or a worker that sends samples to vLLM servers. Raises CannotStart.

        A server that is started with one worker keeps it: replicas join only where the settings ask for replicas.
        """
        config, prepared = self._config, self._prepared
        first, *others = prepared.worker_configs
        if config.replicas != 1:
            replicas = [self._make(0, first, on_fatal=self._on_fatal, spawned=prepared.worker)]
            replicas += [
                self._make(number, settings, on_fatal=self._on_fatal) for number, settings in enumerate(others, 1)
            ]
            return ReplicaSet(replicas, make=self._add)
        backend = self._make(0, first, on_fatal=self._on_fatal, spawned=prepared.worker)
        return backend if config.sampler != "vllm" else await self._with_vllm(backend, store)

    def kill(self) -> None:
        for each in self._made:
            each.kill()

    def _add(self, number: int) -> Worker:
        settings = further_worker_config(self._config, self._prepared, number)
        return self._make(number, settings, on_fatal=partial(self._on_not_added, number))

    def _make(
        self,
        number: int,
        settings: WorkerConfig,
        *,
        on_fatal: Callable[[str], None],
        spawned: WorkerProcess | None = None,
    ) -> WorkerSupervisor:
        """A process on this machine, or a group of workers on Ray."""
        lost, inherit = partial(self._on_lost, number), [self._prepared.claim.lock]
        backend: WorkerSupervisor
        if self._config.backend == "ray":
            backend = RayBackend(
                ray_plan(self._config),
                settings,
                on_lost=lost,
                on_fatal=on_fatal,
                first=spawned,
                inherit=inherit,
                generations=self._generations,
            )
        else:
            backend = LocalBackend(
                settings,
                on_lost=lost,
                on_fatal=on_fatal,
                first=spawned,
                inherit=inherit,
                spare_seconds=self._config.spare_seconds,
                generations=self._generations,
            )
        self._made.append(backend)
        return backend

    async def _with_vllm(self, backend: WorkerSupervisor, store: Store) -> Workers:
        from chockstone.backends.supervision.vllm_backend import (  # late: few servers use vLLM
            CannotSample,
            VllmBackend,
            VllmPlan,
        )

        config = self._config
        plan = VllmPlan(
            config.vllm_urls,
            config.models,
            config.adapters,
            config.vllm_max_loras,
            are_shared=config.vllm_adapters is not None,
            gap_limit=config.sampler_gap_limit,
        )
        try:
            opened = await VllmBackend.open(backend, plan, store, on_gap=self._on_gap)
        except CannotSample as error:
            raise CannotStart(str(error)) from error
        self.gap_meter = opened
        return opened
