"""The trainer: asynchronous reinforcement learning through the tinker SDK, resumed from wherever it was.

    trainer = Trainer(TrainerConfig("tiny", steps=100), environment, store="./run", reports=[JsonLines(Path("./run"))])
    outcome = asyncio.run(trainer.run())

Run it again after a crash, and it goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import tinker

from chockstone.checkpoints import Checkpointer, LoopWatchdog, Store, open_store
from chockstone.checkpoints.runtime import threads
from chockstone.trainers.config import TrainerConfig
from chockstone.trainers.errors import ConfigInvalid
from chockstone.trainers.reports.collector import Collector
from chockstone.trainers.reports.reporting import Reporting
from chockstone.trainers.reports.reports import Report, Reports
from chockstone.trainers.resume import Resumed, resume
from chockstone.trainers.rollouts.environment import Environment
from chockstone.trainers.rollouts.generation import Slot, restored_slots
from chockstone.trainers.rollouts.loader import Loader, ShuffledLoader
from chockstone.trainers.rollouts.reward_pool import call_environment
from chockstone.trainers.rollouts.worker import RolloutWorker
from chockstone.trainers.saves import KeptTrainerSave, Saves
from chockstone.trainers.snapshot import TrainerProgress
from chockstone.trainers.training import Stateful, TrainingLoop

log = logging.getLogger(__name__)
_CLOSE_SECONDS: Final = 10.0
PREFIX: Final = "trainer"  # of its archives in the store


@dataclass(frozen=True, slots=True)
class TrainingOutcome:
    tally: TrainerProgress
    checkpoint: KeptTrainerSave
    resumed_from: int | None  # step; None: begun anew


class Trainer:
    """One run of training, in as many lives as it takes. ``store`` keeps what one life leaves to the next.

    One life at a time: two trainers in one store would overwrite and delete each other's checkpoints.

    ``extra``: objects of yours with ``state_dict`` and ``load_state_dict``, saved in the same cut; an environment
    that has them is among them by itself. ``loader``: instead of a shuffled one. The states of both are taken, and
    the loader is drawn from, in the event loop's thread only.
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
        self._server: dict[str, Any] = {"base_url": base_url, "api_key": api_key}  # None: as the SDK finds them
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
        """Train, from the newest checkpoint in the store if there is one. Call it once.

        Raises what went wrong, as it was raised; ResumeRefused before anything was started. Cancelled, it saves a last
        checkpoint first. Leaves no task behind.
        """
        reporting = Reporting(self._reports)
        try:
            async with (
                self._connected() as service,
                LoopWatchdog() as watchdog,
                Checkpointer(await asyncio.to_thread(open_store, self._store), prefix=PREFIX) as checkpointer,
            ):
                return await self._train(service, checkpointer, watchdog, reporting)
        finally:
            await reporting.close()

    async def _train(
        self,
        service: tinker.ServiceClient,
        checkpointer: Checkpointer,
        watchdog: LoopWatchdog,
        reporting: Reporting,
    ) -> TrainingOutcome:
        def open_run(path: str) -> Any:
            return threads.in_thread(lambda: service.create_training_client_from_state_with_optimizer(path))

        resumed = await resume(checkpointer, self._identity, open_run, reporting.announce)
        resumed_from = resumed.saved.tally.step if resumed else None
        run = resumed.run if resumed else await threads.in_thread(lambda: self._begin_run(service))
        tally = resumed.saved.tally if resumed else TrainerProgress()
        slots = self._put_back(resumed) if resumed else []
        await reporting.resume(tally.step)
        reporting.announce(
            f"goes on from step {tally.step}: {resumed.kept.paths['state']}"
            if resumed
            else f"begins run {run.model_id}"
        )
        collector = Collector()
        player = await self._player(service, run, collector)
        rest = await threads.in_thread(lambda: tinker.RestClient(**self._server))
        saves = Saves(
            run,
            checkpointer,
            self._config,
            collector,
            reporting.announce,
            delete_path=lambda path: _delete(rest, path),
            newest=resumed.kept if resumed else None,
        )
        evaluation = self._environment.evaluation
        problems = await asyncio.to_thread(call_environment, evaluation) if self._config.evaluate_every else ()
        training = TrainingLoop(
            self._config,
            run,
            player,
            self._loader,
            saves,
            collector=collector,
            reporting=reporting,
            watchdog=watchdog,
            identity=self._identity,
            problems=problems,
            tally=tally,
            slots=slots,
            extra=self._extra,
        )
        try:
            kept = await training.run()
        finally:
            player.close()
        return TrainingOutcome(tally, kept, resumed_from)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[tinker.ServiceClient]:
        service = await threads.in_thread(lambda: tinker.ServiceClient(**self._server))
        try:
            yield service
        finally:
            try:
                closing = threads.in_thread(lambda: service.close("success").result())
                await asyncio.wait_for(closing, _CLOSE_SECONDS)
            except Exception as error:  # noqa: BLE001  # the server ends a session that it hears no more of
                log.warning("the session was not closed error=%r", error)

    def _begin_run(self, service: tinker.ServiceClient) -> tinker.TrainingClient:
        config = self._config
        return service.create_lora_training_client(base_model=config.base_model, rank=config.rank, seed=config.seed)

    def _put_back(self, resumed: Resumed) -> list[Slot]:
        saved = resumed.saved
        self._loader.load_state_dict(saved.loader)
        for name, each in self._extra.items():
            each.load_state_dict(saved.extra[name])
        return restored_slots(saved.window, self._config, trained=saved.tally.step)

    async def _player(
        self, service: tinker.ServiceClient, run: tinker.TrainingClient, collector: Collector
    ) -> RolloutWorker:
        tokenizer = await threads.in_thread(run.get_tokenizer)
        await threads.in_thread(threads.answer_promptly)
        base = None
        if self._config.kl_coefficient:
            model = self._config.base_model
            base = await threads.in_thread(lambda: service.create_sampling_client(base_model=model))
        return RolloutWorker(self._environment, tokenizer, self._config, collector, base)


def _delete(rest: tinker.RestClient, path: str) -> None:
    with suppress(tinker.NotFoundError):  # it expired, or somebody was faster
        rest.delete_checkpoint_from_tinker_path(path).result()
