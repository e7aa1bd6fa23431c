"""Hands the settings to the API and the engine, each in its own configuration."""

from __future__ import annotations

from chockstone.api.config import ServerConfig
from chockstone.checkpoints import Best, Retention
from chockstone.cli.settings.settings import Settings, StorageSettings
from chockstone.engine.config import Durability, EngineLimits, StorageRules
from chockstone.telemetry.tracing import TracingConfig


def server_config(settings: Settings) -> ServerConfig:
    limits, recovery, deployment = settings.limits, settings.recovery, settings.deployment
    return ServerConfig(
        models={model.name: model.directory for model in settings.models},
        data=settings.data,
        host=settings.host,
        port=settings.port,
        keys=settings.keys,
        device=settings.device,
        dtype=settings.dtype,
        base_precision=settings.base_precision,
        threads=settings.threads,
        max_body_bytes=limits.max_body_bytes,
        max_sequences=limits.max_sequences,
        prefix_cache_bytes=limits.prefix_cache_bytes,
        tokens_per_micro_batch=limits.tokens_per_micro_batch,
        spare_seconds=recovery.spare_worker or None,
        activation_checkpointing=limits.activation_checkpointing,
        router_replay=limits.router_replay,
        memory_check=limits.memory_check,
        limits=EngineLimits(
            operations_per_run=limits.max_queued_operations,
            samples=limits.max_queued_samples,
            runs=limits.max_runs,
            park_seconds=recovery.park_after,
            forget_seconds=recovery.session_timeout,
        ),
        durability=Durability(
            journal=recovery.journal,
            steps=recovery.recovery_steps,
            replay_seconds=recovery.recovery_replay,
            on_journal_loss=recovery.on_journal_loss,
        ),
        storage=_storage_rules(settings.storage),
        admins=settings.admins,
        console=settings.console,
        public_url=settings.public_url,
        track=settings.track,
        log_level=settings.log_level,
        log_format=settings.log_format,
        tracing=TracingConfig(settings.traces.otlp_endpoint, settings.traces.trace_ratio),
        database=deployment.database,
        store=deployment.store,
        downloads=deployment.downloads,
        backend=deployment.backend,
        replicas=deployment.replicas,
        workers=deployment.workers,
        min_workers=deployment.min_workers,
        ray_address=deployment.ray_address,
        sampler=deployment.sampler,
        vllm_urls=deployment.vllm_urls,
        vllm_adapters=deployment.vllm_adapters,
        vllm_max_loras=deployment.vllm_max_loras,
        sampler_gap_limit=deployment.sampler_gap_limit,
        engine=deployment.engine,
    )


def _storage_rules(storage: StorageSettings) -> StorageRules:
    retention = Retention(
        keep_last=storage.keep_last,
        keep_every=storage.keep_every,
        keep_best=None if storage.keep_best is None else Best(*storage.keep_best),
        ttl_seconds=storage.checkpoint_ttl,
    )
    return StorageRules(
        retention=retention,
        user_quota_bytes=storage.user_quota,
        run_quota_bytes=storage.run_quota,
        reserve_bytes=storage.disk_reserve,
        trash_seconds=storage.trash,
        sweep_seconds=storage.sweep_interval,
        scrub_bytes_per_second=storage.scrub_rate,
        scrub_every_seconds=storage.scrub_interval,
        conversation_quota_bytes=storage.conversation_quota,
    )
