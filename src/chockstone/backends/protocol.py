"""The worker protocol: what the engine may ask of the process that holds the models. Imports no torch.

This is the only file of ``backends`` that the engine imports.

Calls of one run arrive in the order of its lane, one at a time. Calls of several runs, and samples, may be in
progress at the same time.

A worker is a process (or a group of processes) and may die. Each worker that becomes ready is a new generation. It
knows nothing of the runs, losses and samples of earlier generations.

Every call raises:

- ``RequestError`` as the worker raised it. ``code`` is set where the engine acts on the error: the archive is
  "damaged", "missing" or of a "newer" format (``reason`` is what the reader of the archive reported), its store is
  "unreachable" or access to it is "denied", or there is "no_room" for it (``needed_bytes`` is the size of the archive,
  if it is known).
- ``WorkerLost`` if the worker died.

A call that is given a ``generation`` is sent to that generation only: if another one is ready, ``WorkerLost`` with the
code "unsent" is raised and nothing is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from chockstone.backends.run_spec import RunSpec
from chockstone.wire.codecs.sampled_pieces import SampledPiece
from chockstone.wire.failures import ServerFailure
from chockstone.wire.sampler_gap import SamplerGap

__all__ = [
    "ArchiveKind",
    "GapMeter",
    "GpuMemory",
    "HeldMemory",
    "LayoutReply",
    "LossLimits",
    "OnPieces",
    "PassReply",
    "RunSpec",
    "SampleCall",
    "SampleReply",
    "SampledPiece",
    "SampledWeights",
    "SamplerGap",
    "SamplerStatus",
    "SaveCall",
    "SaveReply",
    "StepReply",
    "Worker",
    "WorkerLost",
    "WorkerMemory",
    "WorkerPhase",
    "WorkerStatus",
    "Workers",
]

ArchiveKind = Literal["weights", "recovery", "sampler_weights", "external_weights"]
LossLimits = Literal["enforced", "lifted", "unmetered"]
"""On the cost of a custom loss. Replays of operations that succeeded before are never refused: "lifted" if the loss was
metered then, "unmetered" if a version without a meter ran it."""


class WorkerLost(ServerFailure):
    """The worker died while it worked on this call, or before it could start.

    With the code "unsent" the call was never sent, so it cannot be the cause of death.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCall:
    """Write a run's state into an archive. An archive of the same name is replaced.

    A save of kind "recovery" holds all that ``load`` needs to continue with identical bits. It waits until earlier
    snapshots of the run are on disk, and fails with "no_room" while one of them could not be written: the journal
    before a recovery archive is deleted, and with it the only other way to rebuild those snapshots.
    """

    run_id: str
    archive: str
    kind: ArchiveKind
    metadata: Mapping[str, Any] = field(default_factory=dict)  # Any: plain JSON; stored in the archive
    ttl_seconds: float | None = None
    recipients: tuple[str, ...] = ()  # age public keys: files of "external_weights" are encrypted to them
    allowance_bytes: int | None = None  # maximum size of the archive; None: no limit
    reserve_bytes: int = 0  # free disk space to leave untouched


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleCall:
    """Generate tokens. The same call with the same seed gives the same tokens."""

    key: str  # names the sample for ``cancel``
    base_model: str
    seed: int
    body: bytes  # the request as the client sent it
    owner: str = ""  # the user whose compute turns the sample takes
    archive: str | None = None  # None: sample from the base model
    seal: str | None = None  # expected seal of the archive; another one is "damaged"
    is_streamed: bool = False  # pieces of the sequences are sent while they are generated


@dataclass(frozen=True, slots=True, kw_only=True)
class PassReply:
    """``result`` is encoded as the client gets it; ``seconds`` is compute time without waiting.

    ``loss`` is the sum over the data; None if no gradient was computed. ``loss / weight`` is the mean over the weighted
    tokens; ``weight`` is None where the loss has no such mean.
    """

    result: bytes
    tokens: int
    seconds: float = 0.0
    loss: float | None = None
    weight: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)  # as the result has them
    tokens_per_micro_batch: int | None = None  # that fitted into memory; None: the number that was asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReply:
    """``seconds`` is compute time without waiting."""

    metrics: Mapping[str, float]
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveReply:
    """``seal`` identifies the archive; ``seconds`` is how long the copy blocked the compute thread."""

    size_bytes: int
    seal: str
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutReply:
    """``run`` is what an archive of such a run says of it: plain JSON with its specification, and under ``layout`` the
    name and the shape of each weight that it trains. ``scale`` is what it multiplies the product of its matrices by."""

    run: Mapping[str, Any]
    scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleReply:
    """``content`` is the result as the client gets it, and then the records of routing in ``routing``."""

    content: bytes
    tokens: int
    prompt_tokens: int
    routing: Mapping[str, int] = field(default_factory=dict)  # sizes of the records, by digests of tokens

    @property
    def result(self) -> bytes:
        return self.content[: len(self.content) - sum(self.routing.values())]

    @property
    def records(self) -> dict[str, bytes]:
        """Which experts were chosen, by digests of the tokens that the model had read."""
        found, start = {}, len(self.result)
        for digest, size in self.routing.items():
            found[digest] = self.content[start : start + size]
            start += size
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledWeights:
    """What samples are taken from."""

    base_model: str
    owner: str  # the user whose compute turns it takes to score them
    archive: str | None = None  # None: the base model itself
    seal: str | None = None  # expected seal of the archive; another one is "damaged"


WorkerPhase = Literal["starting", "ready", "restarting", "failing", "stopped"]


@dataclass(frozen=True, slots=True)
class GpuMemory:
    name: str
    used_bytes: int  # by all processes
    total_bytes: int


@dataclass(frozen=True, slots=True)
class HeldMemory:
    """What base models and runs hold in the worker process, and what the runs will take besides once they train."""

    base_bytes: int
    runs_bytes: int
    promised_bytes: int
    available_bytes: int | None = None  # that may still be allocated; None: not known on this platform


@dataclass(frozen=True, slots=True)
class WorkerMemory:
    """Memory of the worker process that sends heartbeats, and of the GPUs that it uses."""

    resident_bytes: int | None = None  # None: not known on this platform
    gpus: tuple[GpuMemory, ...] = ()
    held: HeldMemory | None = None  # None before the models are loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerStatus:
    """What the sampler of a worker does. ``decode_steps`` and ``decoded_tokens`` count since the worker started."""

    requests: int = 0  # not finished, those included that wait for a place
    sequences: int = 0  # that decode now
    cache_bytes: int = 0  # of the KV cache, reserved for the requests that run
    cache_limit_bytes: int = 0
    decode_steps: int = 0
    decoded_tokens: int = 0  # one per sequence and step: the mean batch size is tokens by steps
    prefix_cache_bytes: int = 0  # keys and values of prompts that were computed before
    prefix_cache_limit_bytes: int = 0
    prefix_hit_tokens: int = 0  # of prompts, that were in that cache; since the worker started
    prefix_evicted_blocks: int = 0
    weights_cache_bytes: int = 0  # weights to sample from, beyond the base models
    weights_cache_limit_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """How the worker is, for operators. ``failing``: several in a row died before they were ready."""

    phase: WorkerPhase
    since: float  # seconds since 1970
    deaths: int = 0  # of workers, since the server started
    last_death: str | None = None  # how the last one ended
    last_death_at: float | None = None  # seconds since 1970
    memory: WorkerMemory = WorkerMemory()  # of the last heartbeat
    sampler: SamplerStatus | None = None  # of the last heartbeat; None before the first one


OnPieces = Callable[[Sequence[SampledPiece]], None]


def _ignore() -> None:
    pass


def _ignore_pieces(_: Sequence[SampledPiece]) -> None:
    pass


class Workers(Protocol):
    """One worker, or several replicas of it with the same models. A run is in one replica at a time."""

    @property
    def replicas(self) -> Sequence[Worker]:
        """The workers, by number; a worker without replicas is the only one."""

    @property
    def is_ready(self) -> bool:
        """Whether the worker, or one of its replicas, has loaded its models."""

    @property
    def generation(self) -> int:
        """Number of workers that have become ready so far, which is the generation of the newest one.

        No two workers have the same, also of different replicas.
        """

    @property
    def trouble(self) -> str | None:
        """Why no worker becomes ready, if several in a row died before that."""

    @property
    def status(self) -> WorkerStatus:
        """How the worker is at this moment, for operators."""

    @property
    def environment(self) -> Mapping[str, Any]:
        """Plain JSON: everything besides the operations that the bits of a result depend on.

        Its keys are arithmetic and decoding (versions; absent before version 2), processes, device, dtype,
        base_precision, threads, torch, tokens_per_micro_batch, cpu, and models (a digest by name). Empty before a
        worker is ready.
        """

    async def ready(self) -> None:
        """Wait until a worker is ready. Raises WorkerLost if no worker will be started any more."""

    async def start(self) -> None:
        """Begin to start the worker and return. Calls wait until it is ready."""

    async def stop(self) -> None:
        """Finish the calls in progress, then end the worker."""

    async def sample(self, call: SampleCall, *, on_pieces: OnPieces = _ignore_pieces) -> SampleReply:
        """Generate tokens from the base model or from an archive.

        ``on_pieces`` is called with new tokens of a call that is streamed. The reply has all tokens, and at least the
        last ones of it are in no piece. A backend may begin a sequence again at its start.
        """

    async def cancel(self, key: str) -> None:
        """End the sample of this key, if it is in progress; its call raises BadRequest."""

    async def forget(self, archive: str) -> None:
        """Drop the archive's weights from memory and delete the archive, after a write in progress has ended."""

    async def written(self, archive: str) -> None:
        """Wait until no write to the archive is in progress, whether the write succeeds or not."""


class GapMeter(Protocol):
    """Measures how far the log-probabilities of vLLM servers are from the worker's, which are exact."""

    @property
    def gap_limit(self) -> float | None:
        """Above this mean gap, in nats, a vLLM server does not sample from the weights. None: nothing is measured
        before samples, and vLLM serves them whatever the gap."""

    @property
    def servers(self) -> Sequence[str]:
        """URLs of the vLLM servers."""

    async def measure_gaps(self, weights: SampledWeights) -> Sequence[SamplerGap]:
        """Measure the gap of the weights now, on each vLLM server of their model.

        A gap that cannot be measured says why. Raises as a sample from the weights would.
        """

    def exceeding_gaps(self) -> Sequence[SamplerGap]:
        """Those of weights that a vLLM server may not sample from, and that samples asked for in the last hour."""


class Worker(Workers, Protocol):
    """One worker: it has runs, besides what ``Workers`` offer."""

    async def open_run(
        self,
        run_id: str,
        *,
        owner: str,
        base_model: str,
        spec: RunSpec,
        must_fit: bool = False,
        generation: int | None = None,
    ) -> None:
        """Create a run with initial weights. Its calls take the compute turns of ``owner``.

        ``must_fit``: raise BadRequest if the memory that the run will take is not free, unless the settings say
        otherwise. A run that exists is recovered without the check.
        """

    async def close_run(self, run_id: str, *, generation: int | None = None) -> None:
        """Drop a run from memory. Does nothing if there is no such run."""

    async def forward_backward(
        self,
        run_id: str,
        body: bytes,
        *,
        elementwise_loss: bool = False,
        loss_limits: LossLimits = "enforced",
        routing_bytes: int = 0,
        tokens_per_micro_batch: int | None = None,
        is_replay: bool = False,
        generation: int | None = None,
    ) -> PassReply:
        """Compute losses, and gradients unless the request is forward only.

        ``body`` is the request as the client sent it, and then ``routing_bytes`` with the records of routing to compute
        with. ``elementwise_loss``: the result has the loss per position.
        ``tokens_per_micro_batch``: None is the number of the settings. A pass that runs out of memory is computed again
        in smaller micro-batches, unless ``is_replay``: a replay must have the bits of the first time.
        """

    async def optim_step(
        self, run_id: str, params: Mapping[str, Any], *, generation: int | None = None
    ) -> StepReply:  # Any: plain JSON
        """Apply the accumulated gradient with the optimizer parameters that the client sent."""

    async def save(
        self, call: SaveCall, *, on_release: Callable[[], None] = _ignore, generation: int | None = None
    ) -> SaveReply:
        """Write an archive; on return it is durable.

        ``on_release`` is called when the state is copied but not yet written: the run may continue then.
        """

    async def snapshot(
        self, run_id: str, archive: str, *, reserve_bytes: int = 0, generation: int | None = None
    ) -> None:
        """Make the run's weights available for sampling under the name ``archive``, at once.

        The archive is written in the background, unless an undamaged one of that name exists.
        """

    async def load(
        self,
        run_id: str,
        archive: str,
        *,
        with_optimizer: bool,
        seal: str | None = None,
        generation: int | None = None,
    ) -> None:
        """Load an archive into a run. An archive with another ``seal`` than the given one is "damaged"."""

    async def add_loss(
        self, loss_id: str, definition: Mapping[str, Any], *, generation: int | None = None
    ) -> None:  # Any: plain JSON
        """Build a custom loss, which ``forward_backward`` requests may name from then on."""

    async def layout(self, base_model: str, spec: RunSpec) -> LayoutReply:
        """Describe the weights that a run of this specification would train. Creates nothing."""

    async def drop_loss(self, loss_id: str) -> None:
        """Drop a custom loss. Does nothing if there is no such loss."""
