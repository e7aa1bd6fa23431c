"""The server's configuration, as the command line passes it."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from chockstone.engine.config import Durability, EngineLimits, StorageRules
from chockstone.engine.ownership.data_directory import ARCHIVES, DATABASE


@dataclass(frozen=True, slots=True)
class ServerConfig:
    models: Mapping[str, Path]  # name → Hugging Face directory
    data: Path  # the server's files are below it
    host: str = "127.0.0.1"
    port: int = 8000  # 0: any free one
    keys: Mapping[str, str] = field(default_factory=dict)  # user → key; empty: any tml- key is the local user
    device: str = "auto"
    dtype: str = "auto"
    threads: int = 0
    max_body_bytes: int = 512 << 20
    max_sequences: int = 256
    tokens_per_micro_batch: int = 0  # 0: what suits the device
    limits: EngineLimits = field(default_factory=EngineLimits)
    durability: Durability = field(default_factory=Durability)
    storage: StorageRules = field(default_factory=StorageRules)
    admins: frozenset[str] = frozenset()  # users who may see and change what belongs to all users
    public_url: str | None = None  # URL that clients use, if a proxy is in front of the server
    log_level: str = "info"
    database: str | None = None  # a URL; None: SQLite in ``data``
    store: str | None = None  # a URL or a directory; None: in ``data``
    downloads: str = "redirect"  # archives in a bucket: redirect clients to it, or "relay"
    backend: str = "local"  # or "ray"
    workers: int = 1  # of Ray
    min_workers: int | None = None  # None: no fewer than ``workers``
    ray_address: str | None = None  # None: start a cluster
    sampler: str = "local"  # or "vllm"
    vllm_urls: tuple[str, ...] = ()
    vllm_adapters: Path | None = None  # None: in ``data``
    vllm_max_loras: int = 8  # adapters that each vLLM server holds
    engine: str | None = None  # URL of the engine's server, if this process is an API replica

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
