"""The end of samplers: frees the weights that only the samplers of a finished session used."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from chockstone.backends.protocol import Workers
from chockstone.catalog import SamplerRow
from chockstone.checkpoints.errors import StoreError
from chockstone.engine.background import BackgroundTasks
from chockstone.engine.samples.anonymous_samplers import AnonymousSamplers
from chockstone.engine.samples.sampling import Sampling
from chockstone.engine.storage.archive_names import ephemeral_name
from chockstone.engine.storage.archive_storage import ArchiveStorage
from chockstone.wire.failures import ServerFailure

log = logging.getLogger(__name__)


class SamplerEnd:
    def __init__(
        self,
        workers: Workers,
        storage: ArchiveStorage,
        sampling: Sampling,
        anonymous: AnonymousSamplers,
        background: BackgroundTasks,
    ) -> None:
        self._workers = workers
        self._storage = storage
        self._sampling = sampling
        self._anonymous = anonymous
        self._background = background

    def free(self, samplers: Sequence[SamplerRow]) -> None:
        """Their session is finished. Named checkpoints stay."""
        self._sampling.forget_feeds({sampler.sampling_session_id for sampler in samplers})
        self._anonymous.forget([sampler.sampling_session_id for sampler in samplers])
        for sampler in samplers:
            if sampler.archive == ephemeral_name(sampler.sampling_session_id):
                self._free_archive(sampler.archive)

    def free_superseded(self) -> None:
        """Delete the weights of anonymous samplers that newer ones have superseded."""
        for sampler_id in self._anonymous.take_left_behind():
            log.info("anonymous sampler freed sampler=%s", sampler_id)
            self._free_archive(ephemeral_name(sampler_id))

    def _free_archive(self, archive: str) -> None:
        self._sampling.forget_archive(archive)
        self._background.start(self._delete(archive))

    async def _delete(self, archive: str) -> None:
        """The worker deletes it after a write in progress; if the worker died, it is deleted here."""
        try:
            try:
                await self._workers.forget(archive)
            except ServerFailure:
                await self._storage.delete(archive)
        except StoreError as error:
            log.warning("archive of a sampler not deleted yet archive=%s error=%s", archive, error)
