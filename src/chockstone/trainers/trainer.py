"""The trainer: asynchronous reinforcement learning through the tinker SDK, resumed from its newest checkpoint.

    trainer = Trainer(TrainerConfig("tiny", steps=100), environment, store="./run", reports=[JsonLines(Path("./run"))])
    outcome = asyncio.run(trainer.run())

After a crash, run it again: it resumes.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import tinker

from chockstone.checkpoints import Checkpointer, LoopWatchdog, Store, open_store
from chockstone.checkpoints.runtime import threads
from chockstone.trainers.collector import Collector
from chockstone.trainers.config import TrainerConfig
from chockstone.trainers.errors import ConfigInvalid
from chockstone.trainers.reports.reports import BackgroundReports, Report, Reports
from chockstone.trainers.reports.run_metrics import RunMetrics
from chockstone.trainers.resume import Resumed, resume
from chockstone.trainers.rollouts.environment import Environment
from chockstone.trainers.rollouts.generation import PendingGroup, restore_window
from chockstone.trainers.rollouts.loader import Loader, ShuffledLoader
from chockstone.trainers.rollouts.reward_pool import call_environment
from chockstone.trainers.rollouts.worker import RolloutWorker
from chockstone.trainers.saves import TrainerCheckpoint, TrainerSaver
from chockstone.trainers.snapshot import TrainerProgress
from chockstone.trainers.training import Stateful, TrainingLoop

log = logging.getLogger(__name__)
_CLOSE_SECONDS: Final = 10.0
PREFIX: Final = "trainer"  # of the archives in the store


@dataclass(frozen=True, slots=True)
class TrainingOutcome:
    """What ``Trainer.run`` returns at the end."""

    progress: TrainerProgress
    checkpoint: TrainerCheckpoint
    resumed_from: int | None  # step; None: a fresh start


class Trainer:
    """One training run, over as many processes as it takes. ``store`` holds the checkpoints between them.

    Run one trainer per store at a time: two would overwrite and delete each other's checkpoints.

    ``extra``: objects with ``state_dict`` and ``load_state_dict``, saved in the same snapshot. An environment with both
    methods is added automatically. ``loader`` replaces the shuffled one. The trainer calls the loader and the
    ``state_dict`` methods in the event loop's thread only.
    """

    def __init__(
        self,
        config: TrainerConfig,
        environment: Environment,
        *,
        store: str | Path | Store,
        reports: Sequence[Report] = (),
        base_url: str | None = None,
        api_key: str | None = None,
        loader: Loader | None = None,
        extra: Mapping[str, Stateful] | None = None,
    ) -> None:
        if isinstance(environment.stop, str):
            raise ConfigInvalid(f"the environment's stop is the text {environment.stop!r}; put it in a tuple")
        self._config = config
        self._environment = environment
        self._store = store
        self._reports = Reports(reports)
        self._server: dict[str, Any] = {"base_url": base_url, "api_key": api_key}  # None: the SDK's defaults
        self._loader = loader or ShuffledLoader(len(environment), seed=config.seed)
        self._extra = dict(extra or {})
        if hasattr(environment, "state_dict") and hasattr(environment, "load_state_dict"):
            self._extra.setdefault("environment", environment)  # type: ignore[arg-type]  # it has both
        self._identity = {
            **config.identity(),
            "environment": environment.name,
            "problems": len(environment),
            "extra": sorted(self._extra),
        }

    async def run(self) -> TrainingOutcome:
        """Train to the last step, from the newest checkpoint in the store if there is one. Call it once.

        Raises the first error unchanged, and ResumeRefused before anything is started. When cancelled, it saves a last
        checkpoint before it raises CancelledError. Leaves no task running.
        """
        reports = BackgroundReports(self._reports)
        try:
            async with (
                self._connected() as service,
                LoopWatchdog() as watchdog,
                Checkpointer(await asyncio.to_thread(open_store, self._store), prefix=PREFIX) as checkpointer,
            ):
                return await self._train(service, checkpointer, watchdog, reports)
        finally:
            await reports.close()

    async def _train(
        self,
        service: tinker.ServiceClient,
        checkpointer: Checkpointer,
        watchdog: LoopWatchdog,
        reports: BackgroundReports,
    ) -> TrainingOutcome:
        def open_run(path: str) -> Any:
            return threads.in_thread(lambda: service.create_training_client_from_state_with_optimizer(path))

        resumed = await resume(checkpointer, self._identity, open_run, reports.report_event)
        resumed_from = resumed.saved.progress.step if resumed else None
        run = resumed.run if resumed else await threads.in_thread(lambda: self._begin_run(service))
        progress = resumed.saved.progress if resumed else TrainerProgress()
        window = self._restore(resumed) if resumed else []
        self._report_to_server(run.model_id)
        await reports.resume(progress.step)
        reports.report_event(
            f"resuming from step {progress.step}: {resumed.checkpoint.paths['state']}"
            if resumed
            else f"starting run {run.model_id}"
        )
        collector = Collector()
        worker = await self._make_rollout_worker(service, run, collector)
        rest = await threads.in_thread(lambda: tinker.RestClient(**self._server))
        saver = TrainerSaver(
            run,
            checkpointer,
            self._config,
            collector,
            reports.report_event,
            delete_path=lambda path: _delete(rest, path),
            newest=resumed.checkpoint if resumed else None,
        )
        evaluation = self._environment.evaluation
        problems = await asyncio.to_thread(call_environment, evaluation) if self._config.evaluate_every else ()
        training = TrainingLoop(
            self._config,
            run,
            worker,
            self._loader,
            saver,
            collector=collector,
            reports=reports,
            watchdog=watchdog,
            identity=self._identity,
            problems=problems,
            progress=progress,
            window=window,
            extra=self._extra,
        )
        try:
            checkpoint = await training.run()
        finally:
            worker.close()
        return TrainingOutcome(progress, checkpoint, resumed_from)

    def _report_to_server(self, run_id: str) -> None:
        """Rewards show beside the losses of the run, if the server is one of ours."""
        base_url = self._server["base_url"] or os.environ.get("TINKER_BASE_URL")
        api_key = self._server["api_key"] or os.environ.get("TINKER_API_KEY")
        if base_url and api_key:
            self._reports.add(RunMetrics.of_run(run_id, base_url=str(base_url), api_key=api_key))

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[tinker.ServiceClient]:
        service = await threads.in_thread(lambda: tinker.ServiceClient(**self._server))
        try:
            yield service
        finally:
            try:
                closing = threads.in_thread(lambda: service.close("success").result())
                await asyncio.wait_for(closing, _CLOSE_SECONDS)
            except Exception as error:  # noqa: BLE001  # the server closes an idle session by itself
                log.warning("session not closed error=%r", error)

    def _begin_run(self, service: tinker.ServiceClient) -> tinker.TrainingClient:
        config = self._config
        return service.create_lora_training_client(base_model=config.base_model, rank=config.rank, seed=config.seed)

    def _restore(self, resumed: Resumed) -> list[PendingGroup]:
        saved = resumed.saved
        self._loader.load_state_dict(saved.loader)
        for name, each in self._extra.items():
            each.load_state_dict(saved.extra[name])
        return restore_window(saved.window, self._config, trained=saved.progress.step)

    async def _make_rollout_worker(
        self, service: tinker.ServiceClient, run: tinker.TrainingClient, collector: Collector
    ) -> RolloutWorker:
        tokenizer = await threads.in_thread(run.get_tokenizer)
        await threads.in_thread(threads.tune_for_latency)
        base = None
        if self._config.kl_coefficient:
            model = self._config.base_model
            base = await threads.in_thread(lambda: service.create_sampling_client(base_model=model))
        return RolloutWorker(self._environment, tokenizer, self._config, collector, base)


def _delete(rest: tinker.RestClient, path: str) -> None:
    with suppress(tinker.NotFoundError):  # it expired, or was deleted by someone else
        rest.delete_checkpoint_from_tinker_path(path).result()
