"""Instruments: the metrics that other rooms count as they work, and the text that Prometheus reads.

A label value from outside the list of its declaration is recorded as ``other``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Final, Literal

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

import chockstone
from chockstone.telemetry import declarations as declared
from chockstone.telemetry.declarations import DECLARATIONS, OTHER, MetricDeclaration

__all__ = ["CONTENT_TYPE_LATEST", "Instruments", "Outcome"]

Outcome = Literal["ok", "user_error", "server_error"]
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_OF_REPLICAS: Final = frozenset(
    each.name.removesuffix("_total") for each in DECLARATIONS.values() if not each.is_of_engine
)
disable_created_metrics()  # type: ignore[no-untyped-call]  # they would double the number of series


class Instruments:
    """The metrics of one process. Each method takes a few microseconds and may be called from any thread."""

    def __init__(self, *, has_engine: bool = True) -> None:
        """``has_engine``: False in API replicas, which export only what happens in them."""
        self._has_engine = has_engine
        self._registry = CollectorRegistry()
        ProcessCollector(namespace="chockstone", registry=self._registry)
        self._gauge(declared.INFO).labels(chockstone.__version__).set(1)
        self._http_requests = self._counter(declared.HTTP_REQUESTS)
        self._http_seconds = self._histogram(declared.HTTP_SECONDS)
        self._http_in_progress = self._gauge(declared.HTTP_IN_PROGRESS)
        self._loop_stall = self._histogram(declared.LOOP_STALL)
        self._loop_stall_max = self._gauge(declared.LOOP_STALL_MAX)
        self._loop_held = self._counter(declared.LOOP_HELD)
        self._catalog_seconds = self._histogram(declared.CATALOG_SECONDS)
        self._catalog_failures = self._counter(declared.CATALOG_FAILURES)
        self._operations = self._counter(declared.OPERATIONS_ENDED)
        self._operation_seconds = self._histogram(declared.OPERATION_SECONDS)
        self._operation_wait = self._histogram(declared.OPERATION_WAIT)
        self._compute_seconds = self._counter(declared.COMPUTE_SECONDS)
        self._trained_tokens = self._counter(declared.TRAINED_TOKENS)
        self._sampled_tokens = self._counter(declared.SAMPLED_TOKENS)
        self._prompt_tokens = self._counter(declared.PROMPT_TOKENS)
        self._sampler_gap = self._histogram(declared.SAMPLER_GAP)
        self._recoveries = self._counter(declared.RECOVERIES)
        self._recovery_seconds = self._histogram(declared.RECOVERY_SECONDS)
        self._recovery_replayed = self._counter(declared.RECOVERY_REPLAYED)
        self._recovery_mismatches = self._counter(declared.RECOVERY_MISMATCHES)
        self._recovery_lost = self._counter(declared.RECOVERY_LOST)
        self._recovery_failures = self._counter(declared.RECOVERY_FAILURES)
        self._worker_restarts = self._counter(declared.WORKER_RESTARTS)
        self._save_seconds = self._histogram(declared.SAVE_SECONDS)
        self._save_bytes = self._counter(declared.SAVE_BYTES)
        self._save_stall = self._histogram(declared.SAVE_STALL)
        self._saves_failed = self._counter(declared.SAVES_FAILED)
        self._restore_seconds = self._histogram(declared.RESTORE_SECONDS)
        self._journal_written = self._counter(declared.JOURNAL_WRITTEN)
        self._journal_records = self._counter(declared.JOURNAL_RECORDS)
        self._journal_write_seconds = self._histogram(declared.JOURNAL_WRITE_SECONDS)
        self._journal_sync_seconds = self._histogram(declared.JOURNAL_SYNC_SECONDS)
        self._journal_failures = self._counter(declared.JOURNAL_FAILURES)

    def render(self, facts: Iterable[Metric] = ()) -> bytes:
        """All metrics in Prometheus' text format, ``facts`` behind them. Takes milliseconds: call it in a thread."""
        return generate_latest(_Families(self._families(facts)))

    def _families(self, facts: Iterable[Metric]) -> Iterator[Metric]:
        for family in self._registry.collect():
            if self._has_engine or family.name in _OF_REPLICAS:
                yield family
        yield from facts

    def http_begins(self) -> None:
        self._http_in_progress.inc()

    def http_ended(self, *, method: str, route: str, status: int, seconds: float | None) -> None:
        """``route`` is a template or a fixed word. ``seconds``: until the answer began; None: there was no answer."""
        method = method if method in _METHODS else OTHER
        self._http_in_progress.dec()
        self._http_requests.labels(method, route, status).inc()
        if seconds is not None:
            self._http_seconds.labels(method, route).observe(seconds)

    def loop_was_late(self, seconds: float) -> None:
        self._loop_stall.observe(seconds)

    def loop_was_latest(self, seconds: float) -> None:
        """``seconds``: the maximum since the start."""
        self._loop_stall_max.set(seconds)

    def loop_was_held(self) -> None:
        self._loop_held.inc()

    def catalog_answered(self, *, writes: bool, seconds: float) -> None:
        self._catalog_seconds.labels("write" if writes else "read").observe(seconds)

    def catalog_failed(self) -> None:
        self._catalog_failures.inc()

    def operation_began(self, operation: str, *, waited_seconds: float) -> None:
        self._operation_wait.labels(_known(operation, declared.OPERATIONS)).observe(waited_seconds)

    def operation_ended(self, operation: str, outcome: Outcome, *, seconds: float | None) -> None:
        """``seconds``: None if an earlier server began it."""
        operation = _known(operation, declared.OPERATIONS)
        self._operations.labels(operation, outcome).inc()
        if seconds is not None:
            self._operation_seconds.labels(operation).observe(seconds)

    def computed(self, operation: Literal["forward_backward", "optim_step"], seconds: float) -> None:
        self._compute_seconds.labels(operation).inc(max(seconds, 0.0))

    def trained(self, tokens: int) -> None:
        self._trained_tokens.inc(tokens)

    def sampled(self, *, prompt_tokens: int, tokens: int) -> None:
        self._prompt_tokens.inc(prompt_tokens)
        self._sampled_tokens.inc(tokens)

    def gap_measured(self, mean: float) -> None:
        """Of the log-probabilities of a vLLM server, in nats."""
        self._sampler_gap.observe(mean)

    def saved(self, kind: str, *, seconds: float, stall_seconds: float, size_bytes: int) -> None:
        self._save_seconds.labels(kind).observe(seconds)
        self._save_stall.labels(kind).observe(stall_seconds)
        self._save_bytes.labels(kind).inc(size_bytes)

    def save_failed(self, kind: str, reason: declared.SaveFailure) -> None:
        self._saves_failed.labels(kind, reason).inc()

    def restored(self, purpose: Literal["load", "recovery"], *, seconds: float) -> None:
        self._restore_seconds.labels(purpose).observe(seconds)

    def recovered(
        self, reason: declared.RecoveryReason, *, seconds: float, replayed: int, mismatched: int, lost: int
    ) -> None:
        """``replayed``: operations that were executed again; ``lost``: those that the journal lacked."""
        self._recoveries.labels(reason).inc()
        self._recovery_seconds.observe(seconds)
        self._recovery_replayed.inc(replayed)
        self._recovery_mismatches.inc(mismatched)
        self._recovery_lost.inc(lost)

    def recovery_failed(self) -> None:
        self._recovery_failures.inc()

    def worker_died(self) -> None:
        self._worker_restarts.inc()

    def journal_written(self, *, records: int, size_bytes: int, seconds: float, sync_seconds: float | None) -> None:
        """One batch. ``sync_seconds``: None if it was not synced."""
        self._journal_records.inc(records)
        self._journal_written.inc(size_bytes)
        self._journal_write_seconds.observe(seconds)
        if sync_seconds is not None:
            self._journal_sync_seconds.observe(sync_seconds)

    def journal_failed(self) -> None:
        self._journal_failures.inc()

    def _counter(self, declaration: MetricDeclaration) -> Counter:
        made = Counter(declaration.name, declaration.help, tuple(declaration.labels), registry=self._registry)
        for labels in _all_labels(declaration):  # a rate is seen from the first event on only if there was a 0 before
            made.labels(*labels)
        return made

    def _gauge(self, declaration: MetricDeclaration) -> Gauge:
        return Gauge(declaration.name, declaration.help, tuple(declaration.labels), registry=self._registry)

    def _histogram(self, declaration: MetricDeclaration) -> Histogram:
        made = Histogram(
            declaration.name,
            declaration.help,
            tuple(declaration.labels),
            buckets=declaration.buckets,
            registry=self._registry,
        )
        for labels in _all_labels(declaration):
            made.labels(*labels)
        return made


class _Families(Collector):
    def __init__(self, families: Iterator[Metric]) -> None:
        self._metrics = families

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _all_labels(declaration: MetricDeclaration) -> Iterator[tuple[str, ...]]:
    """Every combination of label values, if the declaration names them all; none if there are no labels."""
    values = declaration.labels.values()
    return product(*values) if values and all(values) else iter(())


def _known(value: str, values: tuple[str, ...]) -> str:
    return value if value in values else OTHER
