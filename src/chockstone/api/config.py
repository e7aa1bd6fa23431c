"""The server's configuration, as the command line passes it."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from chockstone.backends.run_spec import ActivationCheckpointing, BasePrecision, RouterReplay
from chockstone.engine.config import Durability, EngineLimits, StorageRules
from chockstone.engine.ownership.data_directory import ARCHIVES, DATABASE
from chockstone.telemetry.log_format import LogFormat
from chockstone.telemetry.tracing import TracingConfig
from chockstone.trackers.tracker import TrackerKind


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Has no defaults: those are in the settings of the command line, in one place."""

    models: Mapping[str, Path]  # name → Hugging Face directory
    data: Path  # the server's files are below it
    host: str
    port: int  # 0: any free one
    keys: Mapping[str, str]  # user → key; empty: any tml- key is the local user
    device: str
    dtype: str
    base_precision: BasePrecision
    threads: int
    max_body_bytes: int
    max_sequences: int
    prefix_cache_bytes: int  # 0: none
    tokens_per_micro_batch: int  # 0: what suits the device
    spare_seconds: float | None  # that a worker is ready before a spare is started; None: no spare
    activation_checkpointing: ActivationCheckpointing
    router_replay: RouterReplay
    memory_check: bool  # whether what cannot fit is refused
    limits: EngineLimits
    durability: Durability
    storage: StorageRules
    admins: frozenset[str]  # users who may see and change what belongs to all users
    console: bool  # whether the web console is served
    public_url: str | None  # URL that clients use, if a proxy is in front of the server
    track: tuple[TrackerKind, ...]  # experiment trackers that get the step history
    log_level: str
    log_format: LogFormat
    tracing: TracingConfig
    database: str | None  # a URL; None: SQLite in ``data``
    store: str | None  # a URL or a directory; None: in ``data``
    downloads: str  # archives in a bucket: redirect clients to it, or "relay"
    backend: str  # or "ray"
    replicas: int  # of the worker; 0: one per GPU
    workers: int  # of Ray
    min_workers: int | None  # None: no fewer than ``workers``
    ray_address: str | None  # None: start a cluster
    sampler: str  # or "vllm"
    vllm_urls: tuple[str, ...]
    vllm_adapters: Path | None  # None: in ``data``
    vllm_max_loras: int  # adapters that each vLLM server holds
    sampler_gap_limit: float | None  # of the mean gap between vLLM and the worker, in nats; None: not measured
    engine: str | None  # URL of the engine's server, if this process is an API replica

    @property
    def database_url(self) -> str:
        return self.database or f"sqlite:///{self.data / DATABASE}"

    @property
    def store_url(self) -> str:
        return self.store or str((self.data / ARCHIVES).resolve())

    @property
    def adapters(self) -> Path:
        """Directory in which vLLM servers find adapters."""
        return self.vllm_adapters or self.data / "vllm-adapters"

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the server."""
        if self.host.lower() == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
