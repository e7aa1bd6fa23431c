"""Worker group: ranks of our backend, and the server's end of the channel to the first of them."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

from benchmarks.distributed.world import END_SECONDS
from benchmarks.harness.remote import REPOSITORY
from chockstone.backends.calls import StopCall, WorkerCall, encode_call
from chockstone.backends.channel import BlockingChannel, Message
from chockstone.backends.supervision.process import WorkerConfig


class WorkerGroup:
    """Its ranks run while the ``with`` block does, and are ready on entering."""

    def __init__(self, config: WorkerConfig, size: int, scratch: Path) -> None:
        self._config = config
        self._size = size
        self._log = scratch / "worker-group.log"
        self._ranks: list[subprocess.Popen[bytes]] = []
        self._channel: BlockingChannel | None = None
        self._calls = 0

    def __enter__(self) -> WorkerGroup:
        ours, theirs = socket.socketpair()
        with socket.create_server(("127.0.0.1", 0)) as free:
            rendezvous = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        with open(self._log, "w") as log, theirs:
            for rank in range(self._size):
                arguments = [
                    str(rank),
                    str(self._size),
                    rendezvous,
                    str(theirs.fileno()),
                    json.dumps(asdict(self._config)),
                ]
                self._ranks.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "benchmarks.distributed.worker_rank", *arguments],
                        cwd=REPOSITORY,
                        pass_fds=[theirs.fileno()] if rank == 0 else [],
                        stdout=log,
                        stderr=log,
                    )
                )
        self._channel = BlockingChannel(ours)
        if (ready := self._channel.receive().values)["event"] != "ready":
            raise RuntimeError(
                f"the ranks did not start: {ready}; their log ends with:\n{self._log.read_text()[-2000:]}"
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._channel is not None
        self._channel.send(encode_call(0, StopCall()))
        for rank in self._ranks:
            try:
                rank.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                rank.kill()
                rank.wait()
        self._channel.close()

    def send(self, call: WorkerCall) -> Message:
        """As the server calls its worker: send, wait, and return the reply."""
        assert self._channel is not None
        self._calls += 1
        self._channel.send(encode_call(self._calls, call))
        while (answer := self._channel.receive()).values.get("id") != self._calls:
            pass  # heartbeats, one a second
        if answer.values["event"] != "done":
            raise RuntimeError(f"{call} failed: {answer.values}")
        return Message(answer.values["values"], answer.body)
