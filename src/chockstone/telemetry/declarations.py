"""Declarations: every metric of the server, with its help, its labels and the values of its labels.

``chockstone_`` and the name make the exported name. Label values come from short lists that are fixed here or in the
code. No metric has a label for a user, a run or a checkpoint: ``/metrics`` needs no credential, and the number of
series must not grow with the use of the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

Labels = Mapping[str, tuple[str, ...]]
MetricKind = Literal["counter", "gauge", "histogram"]
RecoveryReason = Literal["worker_died", "server_restarted", "run_parked"]
SaveFailure = Literal["no_room", "refused", "worker_lost", "other"]
OTHER: Final = "other"
OPERATIONS: Final = (
    *("create_model", "forward_backward", "optim_step", "load_weights", "unload_model", "sample"),
    *("save_weights", "save_weights_for_sampler", "save_weights_external", OTHER),
)
OUTCOMES: Final = ("ok", "user_error", "server_error")
SAVE_KINDS: Final = ("weights", "sampler_weights", "external_weights", "recovery")
SAVE_FAILURES: Final = get_args(SaveFailure)
RECOVERY_REASONS: Final = get_args(RecoveryReason)
RUN_STATES: Final = ("ready", "waiting", "recovering", "held", "lost", "parked", "unloaded")
_SHORT: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_LONG: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_GAPS: Final = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)  # nats
_DISK: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


@dataclass(frozen=True, slots=True)
class MetricDeclaration:
    """``name`` is the exported one: of a counter with ``_total``, of a histogram without ``_bucket``."""

    name: str
    kind: MetricKind
    help: str
    labels: Labels  # each with its values; empty: the values are described in ``help``
    buckets: tuple[float, ...] = ()
    section: str = ""  # of the reference
    is_of_engine: bool = True  # False: API replicas have it, too

    def family(self, *values: tuple[tuple[str, ...], float]) -> Metric:
        """The metric as it is now: values by their labels."""
        kind = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        made = kind(self.name, self.help, labels=tuple(self.labels))
        for labels, value in values:
            made.add_metric(labels, value)
        return made


DECLARATIONS: Final[dict[str, MetricDeclaration]] = {}


class _Section:
    """Declares the metrics of one section of the reference."""

    def __init__(self, title: str, *, is_of_engine: bool = True) -> None:
        self._title = title
        self._is_of_engine = is_of_engine

    def counter(self, name: str, about: str, labels: Labels = MappingProxyType({})) -> MetricDeclaration:
        return self._declare(name, "counter", about, labels)

    def gauge(self, name: str, about: str, labels: Labels = MappingProxyType({})) -> MetricDeclaration:
        return self._declare(name, "gauge", about, labels)

    def histogram(
        self, name: str, about: str, labels: Labels = MappingProxyType({}), *, buckets: tuple[float, ...]
    ) -> MetricDeclaration:
        return self._declare(name, "histogram", about, labels, buckets)

    def _declare(
        self, name: str, kind: MetricKind, about: str, labels: Labels, buckets: tuple[float, ...] = ()
    ) -> MetricDeclaration:
        made = MetricDeclaration(f"chockstone_{name}", kind, about, labels, buckets, self._title, self._is_of_engine)
        assert made.name not in DECLARATIONS, f"{made.name} is declared twice"
        DECLARATIONS[made.name] = made
        return made


_http = _Section("HTTP and the event loop", is_of_engine=False)
HTTP_REQUESTS: Final = _http.counter(
    "http_requests_total",
    "HTTP requests that were answered, by route template and status code. Requests without a route have the route "
    "(none); those that an API replica passes to the engine have (forwarded).",
    {"method": (), "route": (), "status": ()},
)
HTTP_SECONDS: Final = _http.histogram(
    "http_request_seconds",
    "Seconds from the arrival of a request to the beginning of its answer. Long polls wait for a result in it.",
    {"method": (), "route": ()},
    buckets=_SHORT,
)
HTTP_IN_PROGRESS: Final = _http.gauge(
    "http_requests_in_progress", "HTTP requests whose answer is not complete, long polls and streams included."
)
LOOP_STALL: Final = _http.histogram(
    "loop_stall_seconds", "How late the event loop came to a regular beat.", buckets=_SHORT
)
LOOP_STALL_MAX: Final = _http.gauge("loop_stall_max_seconds", "The latest beat since the server started.")
LOOP_HELD: Final = _http.counter(
    "loop_held_total", "Stalls of more than 0.1 s in which a callback held the event loop."
)


_operations = _Section("Operations and tokens")
OPERATIONS_ENDED: Final = _operations.counter(
    "operations_total",
    "Operations that ended, by outcome. A user_error is one that the client must mend. Replays of a recovery do not "
    "count.",
    {"operation": OPERATIONS, "outcome": OUTCOMES},
)
OPERATION_SECONDS: Final = _operations.histogram(
    "operation_seconds",
    "Seconds from the moment an operation was first in its queue to its result.",
    {"operation": OPERATIONS},
    buckets=_LONG,
)
OPERATION_WAIT: Final = _operations.histogram(
    "operation_wait_seconds",
    "Seconds that an operation waited behind earlier operations of its run. Samples do not wait there.",
    {"operation": tuple(each for each in OPERATIONS if each != "sample")},
    buckets=_LONG,
)
COMPUTE_SECONDS: Final = _operations.counter(
    "compute_seconds_total",
    "Seconds that the worker computed for operations, replays included.",
    {"operation": ("forward_backward", "optim_step")},
)
QUEUED_OPERATIONS: Final = _operations.gauge(
    "queued_operations", "Operations of runs that have no result yet, waiting or running."
)
QUEUED_SAMPLES: Final = _operations.gauge("queued_samples", "Sampling requests that have no result yet.")
QUEUED_BYTES: Final = _operations.gauge("queued_bytes", "Bodies of the requests that wait, in bytes.")
OLDEST_WAIT: Final = _operations.gauge(
    "oldest_wait_seconds", "Age of the oldest operation that has no result yet; 0 if there is none."
)
TRAINED_TOKENS: Final = _operations.counter(
    "trained_tokens_total", "Tokens that were trained on. Replays do not count."
)
SAMPLED_TOKENS: Final = _operations.counter("sampled_tokens_total", "Tokens that were generated.")
PROMPT_TOKENS: Final = _operations.counter("prompt_tokens_total", "Tokens of the prompts of samples.")


_runs = _Section("Runs, recoveries and the worker")
RUNS: Final = _runs.gauge(
    "runs",
    "Runs by state. The catalog counts those that are not in memory: parked, unloaded, lost.",
    {"state": RUN_STATES},
)
RECOVERIES: Final = _runs.counter(
    "recoveries_total",
    "Runs that were rebuilt in a worker, by the reason why the worker did not have them.",
    {"reason": RECOVERY_REASONS},
)
RECOVERY_SECONDS: Final = _runs.histogram(
    "recovery_seconds", "Seconds that a recovery took, without waiting for its turn.", buckets=_LONG
)
RECOVERY_REPLAYED: Final = _runs.counter(
    "recovery_replayed_operations_total", "Operations that recoveries executed again."
)
RECOVERY_MISMATCHES: Final = _runs.counter(
    "recovery_mismatches_total", "Results of replayed operations that differ from the first ones."
)
RECOVERY_LOST: Final = _runs.counter(
    "recovery_lost_operations_total",
    "Acknowledged operations that were missing in the journals of recovered runs.",
)
RECOVERY_FAILURES: Final = _runs.counter("recovery_failures_total", "Runs that could not be recovered.")
WORKER_READY: Final = _runs.gauge("worker_ready", "1 if a worker has loaded the models, else 0.")
WORKER_RESTARTS: Final = _runs.counter("worker_restarts_total", "Workers that died and were started again.")
WORKER_MEMORY: Final = _runs.gauge("worker_memory_bytes", "Resident memory of the worker process.")
REPLICA_READY: Final = _runs.gauge(
    "replica_ready",
    "1 if a replica of the worker has loaded the models, else 0. Absent with one worker.",
    {"replica": ()},
)
REPLICA_RUNS: Final = _runs.gauge(
    "replica_runs", "Runs that a replica of the worker holds or is to recover. Absent with one worker.", {"replica": ()}
)
REPLICA_MEMORY: Final = _runs.gauge(
    "replica_memory_bytes", "Resident memory of a replica of the worker. Absent with one worker.", {"replica": ()}
)
GPU_USED: Final = _runs.gauge(
    "gpu_memory_used_bytes", "Used memory of each GPU of the worker. Absent without a GPU.", {"gpu": ()}
)
GPU_TOTAL: Final = _runs.gauge(
    "gpu_memory_total_bytes", "Memory of each GPU of the worker. Absent without a GPU.", {"gpu": ()}
)


_sampler = _Section("Sampling in the worker")
SAMPLER_REQUESTS: Final = _sampler.gauge(
    "sampler_requests", "Sampling requests in the worker, those included that wait for a place in the batch."
)
SAMPLER_SEQUENCES: Final = _sampler.gauge("sampler_sequences", "Sequences that decode now: the size of the batch.")
SAMPLER_STEPS: Final = _sampler.counter(
    "sampler_decode_steps_total", "Decoding steps of the present worker. Each gives one token per sequence."
)
SAMPLER_TOKENS: Final = _sampler.counter(
    "sampler_decoded_tokens_total",
    "Tokens of all decoding steps of the present worker. Divided by the steps: the mean size of the batch.",
)
SAMPLER_CACHE: Final = _sampler.gauge("sampler_cache_bytes", "KV cache that is reserved for the sequences that decode.")
SAMPLER_CACHE_LIMIT: Final = _sampler.gauge("sampler_cache_limit_bytes", "Size of the KV cache.")
PREFIX_CACHE: Final = _sampler.gauge(
    "sampler_prefix_cache_bytes", "Keys and values of prompts that the worker keeps for later prompts."
)
PREFIX_CACHE_LIMIT: Final = _sampler.gauge(
    "sampler_prefix_cache_limit_bytes", "Maximum size of the prefix cache. Requests that run take the memory first."
)
PREFIX_HITS: Final = _sampler.counter(
    "sampler_prefix_hit_tokens_total", "Prompt tokens that the present worker took from the prefix cache."
)
PREFIX_EVICTIONS: Final = _sampler.counter(
    "sampler_prefix_evicted_blocks_total", "Blocks of tokens that the present worker dropped from the prefix cache."
)
SAMPLER_WEIGHTS: Final = _sampler.gauge(
    "sampler_weights_cache_bytes", "Weights to sample from that the worker holds beside the base models."
)
SAMPLER_WEIGHTS_LIMIT: Final = _sampler.gauge(
    "sampler_weights_cache_limit_bytes", "From this size on, the worker drops weights that are not used."
)


_vllm = _Section("Sampling by vLLM")
SAMPLER_GAP: Final = _vllm.histogram(
    "vllm_gap_nats",
    "Mean absolute differences between log-probabilities of a vLLM server and of the worker, in nats: one for each set "
    "of weights that was measured on a vLLM server.",
    buckets=_GAPS,
)
GAPS_EXCEEDING: Final = _vllm.gauge(
    "vllm_gaps_exceeding",
    "Sets of weights that a vLLM server may not sample from, because their gap is above --sampler-gap-limit or could "
    "not be measured, and that samples asked for in the last hour.",
)


_saves = _Section("Saves and restores")
SAVE_SECONDS: Final = _saves.histogram(
    "save_seconds",
    "Seconds from the begin of a save to its commit. Kind recovery: the server's own archives.",
    {"kind": SAVE_KINDS},
    buckets=_LONG,
)
SAVE_BYTES: Final = _saves.counter("saved_bytes_total", "Bytes of committed archives.", {"kind": SAVE_KINDS})
SAVE_STALL: Final = _saves.histogram(
    "save_stall_seconds",
    "Seconds that the copy of a run's state held the compute thread: the only pause of a save.",
    {"kind": SAVE_KINDS},
    buckets=_SHORT,
)
SAVES_FAILED: Final = _saves.counter(
    "save_failures_total",
    "Saves that failed, by reason: the disk is full, the client must mend something (a quota, for example), the worker "
    "died and the save is tried again, or another one. A failed save leaves nothing behind.",
    {"kind": SAVE_KINDS, "reason": SAVE_FAILURES},
)
RESTORE_SECONDS: Final = _saves.histogram(
    "restore_seconds",
    "Seconds that the load of an archive into a run took.",
    {"purpose": ("load", "recovery")},
    buckets=_LONG,
)


_journal = _Section("Journal")
JOURNAL_WRITTEN: Final = _journal.counter("journal_written_bytes_total", "Bytes that were written to journals.")
JOURNAL_RECORDS: Final = _journal.counter("journal_records_total", "Records that were written to journals.")
JOURNAL_WRITE_SECONDS: Final = _journal.histogram(
    "journal_write_seconds",
    "Seconds that a batch of records took to be written and, with --journal synced, to reach the disk.",
    buckets=_DISK,
)
JOURNAL_SYNC_SECONDS: Final = _journal.histogram(
    "journal_sync_seconds",
    "Seconds of the fdatasync calls of one batch. Without --journal synced there are none.",
    buckets=_DISK,
)
JOURNAL_FAILURES: Final = _journal.counter(
    "journal_failures_total", "Batches that could not be written. They are retried until they can be."
)
JOURNAL_FAILING: Final = _journal.gauge(
    "journal_failing", "1 while the journal cannot be written, so that requests wait; else 0."
)
JOURNAL_LAG: Final = _journal.gauge(
    "journal_lag_seconds", "Age of the oldest record that is not durable yet; 0 if there is none."
)
JOURNAL_WAITING: Final = _journal.gauge("journal_waiting_records", "Records that are not durable yet.")
JOURNAL_BYTES: Final = _journal.gauge("journal_bytes", "Size of the journals of the runs in memory.")
REPLAY_SECONDS: Final = _journal.gauge(
    "replay_backlog_max_seconds",
    "Compute time since the newest recovery archive, of the run with the most: what a crash would replay.",
)


_catalog = _Section("Catalog", is_of_engine=False)
CATALOG_SECONDS: Final = _catalog.histogram(
    "catalog_seconds",
    "Seconds that a transaction of the catalog took, waiting for its turn included.",
    {"access": ("read", "write")},
    buckets=_SHORT,
)
CATALOG_FAILURES: Final = _catalog.counter(
    "catalog_failures_total", "Transactions that failed because the catalog did not answer or refused."
)


_storage = _Section("Storage and readiness")
DISK_FREE: Final = _storage.gauge(
    "disk_free_bytes",
    "Free space where archives (store) and journals (data) are. Absent for a store without such a limit.",
    {"place": ("store", "data")},
)
DISK_RESERVE: Final = _storage.gauge("disk_reserve_bytes", "Free space of the store that no save may use.")
CHECKPOINTS: Final = _storage.gauge(
    "checkpoints", "Checkpoints that are listed, by state.", {"state": ("ready", "damaged")}
)
CHECKPOINT_BYTES: Final = _storage.gauge(
    "checkpoint_bytes", "Size of the checkpoints that are listed, by state.", {"state": ("ready", "damaged")}
)
READY: Final = _storage.gauge("ready", "1 if the server can do what it is asked to do, as GET readyz says; else 0.")
SCRAPE_ERRORS: Final = _storage.gauge(
    "scrape_errors", "Sources of facts that did not answer this scrape, so that their metrics are missing."
)


_process = _Section("Process", is_of_engine=False)
INFO: Final = _process.gauge("info", "Always 1; the labels describe the process.", {"version": ()})
# prometheus_client reads these of the process, on Linux.
_process.gauge("process_resident_memory_bytes", "Resident memory of the server process.")
_process.gauge("process_virtual_memory_bytes", "Virtual memory of the server process.")
_process.counter("process_cpu_seconds_total", "CPU time of the server process.")
_process.gauge("process_start_time_seconds", "When the server process started, since 1970.")
_process.gauge("process_open_fds", "Open files and connections of the server process.")
_process.gauge("process_max_fds", "Limit of open files and connections.")
