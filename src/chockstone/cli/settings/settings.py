"""Settings: the only place where a setting is named, typed, defaulted, bounded and described.

To add one, add one line: ``max_dogs`` becomes the flag --max-dogs, the variable CHOCKSTONE_MAX_DOGS, the TOML key
``max_dogs``, a row of `serve --show-config` and an entry of the reference. Its user reads it from here; what the API
or the engine needs is handed over in ``serving.server_config``. Sizes are bytes, times are seconds, None is off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final, Literal

from chockstone.cli.settings.fields import list_fields, setting, value_of
from chockstone.cli.settings.values import (
    BEST,
    DATABASE_URL,
    DIRECTORY,
    HOST,
    KEYS,
    MODELS,
    SERVER_URL,
    STORE,
    SWITCH,
    TEXT,
    TRACKER_KINDS,
    USERS,
    VLLM_URLS,
    BestRule,
    ModelSetting,
    choice,
    duration,
    number_or_auto,
    optional,
    positive_number,
    ratio,
    size,
    whole_number,
)
from chockstone.engine.ownership.data_directory import DATABASE
from chockstone.trackers.tracker import TrackerKind

ActivationCheckpointing = Literal["auto", "on", "off"]
RouterReplay = Literal["on", "off"]
Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
BasePrecision = Literal["auto", "8bit", "4bit"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]
JournalMode = Literal["off", "on", "synced"]
OnJournalLoss = Literal["fail", "continue"]
BackendKind = Literal["local", "ray"]
SamplerKind = Literal["local", "vllm"]
DownloadsKind = Literal["redirect", "relay"]

DEFAULT: Final = "default"
_POSITIVE: Final = whole_number(1, 2**40)


class SettingsError(Exception):
    """A setting is unknown, unreadable, or no server can start with it. The message says which and from where."""


@dataclass(frozen=True, slots=True)
class LimitSettings:
    TITLE: ClassVar = "Limits"

    max_body_bytes: int = setting(_POSITIVE, 512 * 2**20, "Maximum size of a request body, in bytes.")
    max_queued_operations: int = setting(_POSITIVE, 4096, "Maximum number of queued operations of one run.")
    max_queued_samples: int = setting(
        _POSITIVE, 8192, "Maximum number of queued sampling requests; one user may have 3/4 of them."
    )
    max_runs: int = setting(_POSITIVE, 64, "Maximum number of runs in memory at once.")
    max_sequences: int = setting(_POSITIVE, 256, "Maximum number of sequences that are sampled at once.")
    prefix_cache_bytes: int = setting(
        whole_number(0, 2**50),
        512 * 2**20,
        "Maximum size of the prefix cache, in bytes; a part of the KV cache that running requests take first. 0: none.",
    )
    tokens_per_micro_batch: int = setting(
        whole_number(0, 2**40),
        0,
        "Maximum number of tokens in a micro-batch, which bounds memory; 0 is chosen by device.",
    )
    activation_checkpointing: ActivationCheckpointing = setting(
        choice(ActivationCheckpointing),
        "auto",
        "Compute activations again in the backward pass instead of keeping them; auto: if they need much memory.",
    )
    router_replay: RouterReplay = setting(
        choice(RouterReplay),
        "on",
        "Train mixtures of experts with the experts that were chosen when the same tokens were sampled.",
    )
    memory_check: bool = setting(SWITCH, True, "Refuse base models and runs that cannot fit into the free memory.")


@dataclass(frozen=True, slots=True)
class StorageSettings:
    TITLE: ClassVar = "Checkpoint storage"

    keep_last: int | None = setting(
        optional(whole_number(1, 2**31)), None, "Keep the newest N checkpoints of each run and kind."
    )
    keep_every: int | None = setting(optional(_POSITIVE), None, "Keep checkpoints whose step is divisible by N.")
    keep_best: BestRule | None = setting(
        optional(BEST), None, "Keep the best COUNT checkpoints by a metric in their metadata."
    )
    checkpoint_ttl: float | None = setting(
        optional(duration()), None, "Delete checkpoints that are older than this: 12h, 7d, 2w."
    )
    user_quota: int | None = setting(
        optional(size(least=1)), None, "Maximum size of all checkpoints of a user: 500MB, 50GiB."
    )
    run_quota: int | None = setting(optional(size(least=1)), None, "Maximum size of all checkpoints of a run.")
    conversation_quota: int = setting(
        size(least=0), 1 << 30, "Maximum size of all stored conversations of a user; off stores none."
    )
    disk_reserve: int = setting(size(least=0), 1 << 30, "Disk space that checkpoints never use.")
    trash: float = setting(
        duration(may_be_off=True), 0.0, "Time that deleted checkpoints stay in the trash; off deletes them immediately."
    )
    sweep_interval: float = setting(
        duration(), 60.0, "Interval between sweeps, which delete expired and superfluous checkpoints."
    )
    scrub_rate: int = setting(
        size(least=0),
        16 << 20,
        "Read rate of the background check of checkpoints, in bytes per second; off disables it.",
    )
    scrub_interval: float = setting(duration(), 7 * 86_400.0, "Minimum interval between two checks of a checkpoint.")


@dataclass(frozen=True, slots=True)
class RecoverySettings:
    TITLE: ClassVar = "Recovery"

    journal: JournalMode = setting(
        choice(JournalMode), "on", "Journal of each run: on survives killed processes; synced also survives power loss."
    )
    on_journal_loss: OnJournalLoss = setting(
        choice(OnJournalLoss),
        "fail",
        "Action for a run whose journal lost acknowledged operations: fail it, or continue without them.",
    )
    recovery_steps: int = setting(
        whole_number(1, 2**31), 200, "Maximum number of optimizer steps between recovery archives."
    )
    recovery_replay: float = setting(duration(), 30.0, "Maximum computing time to replay after a crash.")
    spare_worker: float = setting(
        duration(may_be_off=True),
        10.0,
        "Start a spare worker (about 300 MB, without models) when a worker was ready for this long; off disables it.",
    )
    park_after: float = setting(duration(), 1800.0, "Unload a run to disk after this long without client activity.")
    session_timeout: float = setting(
        duration(), 30 * 86_400.0, "End a session after this long without client activity."
    )


@dataclass(frozen=True, slots=True)
class DeploymentSettings:
    TITLE: ClassVar = "Deployment"

    database: str | None = setting(
        optional(DATABASE_URL),
        None,
        "URL of the catalog, such as postgresql://USER@HOST/NAME.",
        default_text="SQLite in --data",
        is_secret=True,  # it may hold a password
        for_replicas=True,
    )
    store: str | None = setting(
        optional(STORE), None, "Directory or s3://BUCKET/PREFIX for checkpoints.", default_text="in --data"
    )
    downloads: DownloadsKind = setting(
        choice(DownloadsKind), "redirect", "Downloads from a bucket: redirect clients to it, or relay the bytes."
    )
    backend: BackendKind = setting(
        choice(BackendKind), "local", "Compute backend: one process, or Ray workers that share each model."
    )
    replicas: int = setting(
        number_or_auto(1, 64),
        1,
        "Number of worker processes, each with a copy of the models, that share runs and samples; auto: one per GPU.",
    )
    workers: int = setting(whole_number(1, 4096), 1, "Number of Ray workers; each holds a part of every model.")
    min_workers: int | None = setting(
        optional(whole_number(1, 4096)),
        None,
        "Minimum number of Ray workers to continue with when some are lost.",
        default_text="same as --workers",
    )
    ray_address: str | None = setting(
        optional(TEXT),
        None,
        "Address of the Ray cluster to join: auto, or HOST:PORT of its head.",
        metavar="ADDRESS",
        default_text="start a local cluster",
    )
    sampler: SamplerKind = setting(choice(SamplerKind), "local", "Sampling backend: this server, or vLLM servers.")
    vllm_urls: tuple[str, ...] = setting(
        VLLM_URLS, (), "URL of a vLLM server that runs with --enable-lora (repeatable)."
    )
    vllm_adapters: Path | None = setting(
        optional(DIRECTORY),
        None,
        "Directory for adapters, which vLLM servers see under the same path.",
        default_text="in --data",
    )
    vllm_max_loras: int = setting(
        whole_number(1, 2**20), 8, "Number of adapters in each vLLM server, equal to its --max-cpu-loras."
    )
    sampler_gap_limit: float | None = setting(
        optional(positive_number()),
        0.1,
        "Maximum mean difference between log-probabilities of vLLM and of the worker, in nats; above it the worker "
        "samples. off: it is not measured.",
    )
    engine: str | None = setting(
        optional(SERVER_URL),
        None,
        "URL of the server whose API replica this process is. Needs the same --database.",
        for_replicas=True,
    )


@dataclass(frozen=True, slots=True)
class TraceSettings:
    TITLE: ClassVar = "Traces"

    otlp_endpoint: str | None = setting(
        optional(SERVER_URL),
        None,
        "URL of an OpenTelemetry collector (OTLP over HTTP) that receives traces.",
        default_text="OTEL_EXPORTER_OTLP_ENDPOINT, or off",
        for_replicas=True,
    )
    trace_ratio: float | None = setting(
        optional(ratio()),
        None,
        "Share of traces to record, from 0 to 1.",
        default_text="OTEL_TRACES_SAMPLER, or 1",
        for_replicas=True,
    )


@dataclass(frozen=True, slots=True)
class Settings:
    TITLE: ClassVar = "Server"

    models: tuple[ModelSetting, ...] = setting(
        MODELS, (), "Model to serve: a Hugging Face directory, or a name on the hub (repeatable)."
    )
    host: str = setting(HOST, "127.0.0.1", "Address to listen on. Any but loopback needs API keys.", for_replicas=True)
    port: int = setting(whole_number(0, 65_535), 8000, "Port to listen on; 0 picks a free port.", for_replicas=True)
    data: Path = setting(
        DIRECTORY,
        Path("chockstone-data"),
        "Directory for everything that the server stores.",
        default_text="./chockstone-data",
    )
    device: Device = setting(choice(Device), "auto", "Device for models; auto is CUDA if available, otherwise the CPU.")
    dtype: Dtype = setting(
        choice(Dtype), "auto", "Data type of weights; auto is float32 on a CPU, and the model's own on CUDA."
    )
    base_precision: BasePrecision = setting(
        choice(BasePrecision),
        "auto",
        "Precision of frozen base weights: 8bit or 4bit quantises them at load; auto keeps them as they are stored.",
    )
    threads: int = setting(
        number_or_auto(0, 4096),
        0,
        "Number of threads for arithmetic; auto is one per core, or fewer if a cgroup limits CPU time.",
    )
    log_level: LogLevel = setting(choice(LogLevel), "info", "Minimum log level.", for_replicas=True)
    log_format: LogFormat = setting(
        choice(LogFormat), "text", "Log format: lines of text, or one JSON object per line.", for_replicas=True
    )
    keys: Mapping[str, str] = setting(
        KEYS,
        {},
        "API key of a user (repeatable). Prefer the environment or the file: other users of the machine see flags.",
        is_secret=True,
        for_replicas=True,
    )
    admins: frozenset[str] = setting(
        USERS, frozenset(), "User who may see and change what belongs to all users (repeatable)."
    )
    public_url: str | None = setting(
        optional(SERVER_URL),
        None,
        "URL through which clients reach the server, if it is behind a proxy.",
    )
    console: bool = setting(SWITCH, True, "Serve the web console at /console.")
    track: tuple[TrackerKind, ...] = setting(
        TRACKER_KINDS, (), "Experiment tracker that gets the metrics of all runs (repeatable, or with commas)."
    )
    limits: LimitSettings = LimitSettings()
    storage: StorageSettings = StorageSettings()
    recovery: RecoverySettings = RecoverySettings()
    deployment: DeploymentSettings = DeploymentSettings()
    traces: TraceSettings = TraceSettings()
    sources: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)  # by name of the setting

    @property
    def database_url(self) -> str:
        return self.deployment.database or f"sqlite:///{self.data / DATABASE}"

    def source_of(self, name: str) -> str:
        """Where the value of this setting came from, such as ``flag --port``."""
        return self.sources.get(name, DEFAULT)

    def value_of(self, name: str) -> object:
        return value_of(self, name)


FIELDS: Final = tuple(list_fields(Settings))
NAMES: Final = tuple(each.name for each in FIELDS)
