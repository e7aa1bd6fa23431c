"""Sampler sources: which weights each sampling session samples from, cached until its client session ends."""

from __future__ import annotations

from chockstone.engine.samples.sampling import SamplerSource


class SamplerSources:
    def __init__(self) -> None:
        self._sources: dict[str, SamplerSource] = {}

    def get(self, sampling_session_id: str) -> SamplerSource | None:
        return self._sources.get(sampling_session_id)

    def add(self, sampling_session_id: str, source: SamplerSource) -> None:
        self._sources[sampling_session_id] = source

    def forget_session(self, session_id: str) -> None:
        """The client session is finished: its samplers are read from the catalog again."""
        for sampling_session_id in [known for known in self._sources if known.startswith(f"{session_id}:")]:
            del self._sources[sampling_session_id]
