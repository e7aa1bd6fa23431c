"""Settings: everything a server is told before it starts, and where each value came from.

Facts only. ``settings_sources`` collects them, ``settings_values`` reads one from text,
``settings_checks`` says whether a server can start with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Final, Literal

from chockstone.engine.ownership.data_directory import DATABASE

Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
LogLevel = Literal["debug", "info", "warning", "error"]
JournalMode = Literal["off", "on", "synced"]
OnJournalLoss = Literal["fail", "continue"]
BackendKind = Literal["local", "ray"]
SamplerKind = Literal["local", "vllm"]
DownloadsKind = Literal["redirect", "relay"]

DEFAULT: Final = "default"


class SettingsError(Exception):
    """A setting is unknown, unreadable, or no server can start with it. The message says which and from where."""


@dataclass(frozen=True, slots=True)
class ModelSetting:
    name: str  # what clients ask for
    directory: Path


@dataclass(frozen=True, slots=True)
class LimitSettings:
    max_body_bytes: int = 512 * 2**20
    max_queued_operations: int = 4096  # of one run
    max_queued_samples: int = 8192
    max_runs: int = 64
    max_sequences: int = 256  # decoded at once
    tokens_per_micro_batch: int = 0  # 0: what suits the device


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """What is kept of checkpoints, for how long, and how much of it. None: no such rule."""

    keep_last: int | None = None
    keep_every: int | None = None
    keep_best: tuple[str, Literal["min", "max"], int] | None = None  # metric, mode, count
    checkpoint_ttl: float | None = None  # seconds, as all times here
    user_quota: int | None = None  # bytes, as all sizes here
    run_quota: int | None = None
    disk_reserve: int = 1 << 30
    trash: float = 0.0  # 0: what is removed is gone at once
    sweep_interval: float = 60.0
    scrub_rate: int = 16 << 20  # a second; 0: never
    scrub_every: float = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class RecoverySettings:
    """What runs survive, and how soon they are back. Times are seconds."""

    journal: JournalMode = "on"  # on: the death of processes; synced: of the machine, too
    on_journal_loss: OnJournalLoss = "fail"  # of a run whose journal lost acknowledged operations
    recovery_steps: int = 200  # between two recovery archives of a run, at most
    recovery_replay: float = 30.0  # what a recovery does over, at most
    park_after: float = 1800.0  # without a word from its client, a session's runs leave memory
    forget_after: float = 30 * 86_400.0  # and after this the session is over


@dataclass(frozen=True, slots=True)
class DeploymentSettings:
    """Where things are when one machine does not do. None: in the data directory, or not at all."""

    database: str | None = field(default=None, repr=False)  # a URL; it may hold a password
    store: str | None = None  # a URL, or a directory
    downloads: DownloadsKind = "redirect"  # of archives in a bucket: clients are sent there, or get them from here
    backend: BackendKind = "local"
    workers: int = 1  # of the Ray backend; a model is spread over them
    min_workers: int | None = None  # with how few to go on when some are lost; None: with no fewer
    ray_address: str | None = None  # of a cluster that runs; None: a local one is started
    sampler: SamplerKind = "local"
    vllm_urls: tuple[str, ...] = ()
    vllm_adapters: Path | None = None  # a directory that the vLLM servers see under the same path
    vllm_loras: int = 8  # adapters that each of them holds
    engine: str | None = None  # the URL of the server whose engine this process is an API of


@dataclass(frozen=True, slots=True)
class Settings:
    models: tuple[ModelSetting, ...] = ()
    host: str = "127.0.0.1"
    port: int = 8000  # 0: any free one
    data: Path = Path("chockstone-data")
    device: Device = "auto"
    dtype: Dtype = "auto"  # float32 on a CPU
    threads: int = 0  # 0: as many as there are cores
    log_level: LogLevel = "info"
    keys: Mapping[str, str] = field(default_factory=dict, repr=False)  # by user
    admins: frozenset[str] = frozenset()
    public_url: str | None = None
    limits: LimitSettings = LimitSettings()
    storage: StorageSettings = StorageSettings()
    survival: RecoverySettings = RecoverySettings()
    scale: DeploymentSettings = DeploymentSettings()
    sources: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    @property
    def database_url(self) -> str:
        return self.scale.database or f"sqlite:///{self.data / DATABASE}"

    def source_of(self, name: str) -> str:
        """Where the value of this setting came from, in words."""
        return self.sources.get(name, DEFAULT)

    def value_of(self, name: str) -> object:
        groups = ((LIMITS, self.limits), (STORAGE, self.storage), (SURVIVAL, self.survival), (SCALE, self.scale))
        group = next((group for names, group in groups if name in names), self)
        value: object = getattr(group, name)
        return value


LIMITS: Final = tuple(each.name for each in fields(LimitSettings))
STORAGE: Final = tuple(each.name for each in fields(StorageSettings))
SURVIVAL: Final = tuple(each.name for each in fields(RecoverySettings))
SCALE: Final = tuple(each.name for each in fields(DeploymentSettings))
_GROUPS: Final = {"limits", "storage", "survival", "scale", "sources"}
# Each is known by one name everywhere: max_runs in a file, CHOCKSTONE_MAX_RUNS, --max-runs.
NAMES: Final = (
    *(each.name for each in fields(Settings) if each.name not in _GROUPS),
    *LIMITS,
    *STORAGE,
    *SURVIVAL,
    *SCALE,
)


def default_of(name: str) -> object:
    return Settings().value_of(name)
