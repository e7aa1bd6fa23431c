"""The backend: what the engine asks of the process that does the arithmetic.

A call is a word, a few plain values and perhaps a body of bytes as the client sent them; the reply
is a message of the same form. Calls of one run arrive in its lane's order, one at a time; calls of
several runs, and samples, may all be under way together.

    open_run    run_id, owner (whose turns its calls take), base_model, spec
    close_run   run_id
    pass        run_id, elementwise_loss (whether the result has it), loss_limits (of a custom loss: enforced,
                lifted or unmetered); body: the request. Replies tokens, seconds (of computing, not of waiting)
    optim_step  run_id, params. Replies metrics, seconds
    save        run_id, archive, kind, metadata, ttl_seconds, recipients, allowance_bytes (or None),
                reserve_bytes; releases once the state is copied. Replies size_bytes, seconds (of
                copying, during which nothing is computed), seal (of the archive). An archive of that name is
                replaced
    snapshot    run_id, archive, reserve_bytes: weights to sample from under that name, at once; its
                archive is written behind, unless a whole one is there already
    load        run_id, archive, with_optimizer, seal (or None): that of the archive; another one is "damaged"
    add_loss    loss_id, definition
    drop_loss   loss_id
    sample      key, owner (whose turns it takes), base_model, archive (or None), seal (or None), seed; body: the
                request. Replies tokens, prompt_tokens
    cancel      key
    forget      archive: nobody will ask for it again, and it is deleted
    written     archive: replies when nothing is being written under that name any more

A save of kind "recovery" has all that ``load`` needs to go on with the very same bits. It waits until
the run's earlier snapshots are on disk, and there is "no_room" for it while one of them could not be
written: whoever forgets what led to its state forgets what led to theirs.

The worker is a process, and may die. Each one that becomes ready is a new generation, which knows
nothing of the runs, losses and samples of those before it.

An error has a code where the engine acts on it: the archive is "damaged", "missing" or of a "newer"
format, its store is "unreachable" or access to it "denied", or there is "no_room" for it, in which case
the message says "needs <number> bytes".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from chockstone.backends.channel import Message


class Backend(Protocol):
    @property
    def is_ready(self) -> bool:
        """Whether the worker has loaded its models."""

    @property
    def generation(self) -> int:
        """How many workers have become ready so far: which one it is at present, or was last."""

    @property
    def trouble(self) -> str | None:
        """Why no worker gets ready, if several in a row died before they were."""

    @property
    def environment(self) -> Mapping[str, Any]:
        """Plain JSON: all besides the operations that the bits of a result depend on. Empty before a worker is ready.

        processes, device, dtype, threads, torch, tokens_per_micro_batch, cpu, and models: a digest of each by name.
        """

    async def ready(self) -> None:
        """Wait until a worker is ready. Raises WorkerLost when none will ever be."""

    async def start(self) -> None:
        """Begin to start; returns before the worker is ready. Calls wait for it."""

    async def call(
        self,
        word: str,
        values: dict[str, Any],
        body: bytes = b"",
        *,
        on_release: Callable[[], None] = lambda: None,
        generation: int | None = None,
    ) -> Message:
        """Have it done. Raises RequestError as the worker gave it; WorkerLost when the worker died.

        Given a ``generation``, no other worker is asked: WorkerLost is raised with nothing sent.
        ``on_release`` is called when the run may go on to its next operation although this one is
        not finished: a save that is copied but not yet written.
        """

    async def stop(self) -> None:
        """Finish what is under way, then end the worker."""
