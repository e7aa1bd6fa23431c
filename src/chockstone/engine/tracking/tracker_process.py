"""Tracker processes: starts the process of one tracker, sends it batches, and ends it when it hangs."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from chockstone.trackers.tracker import TrackedCheckpoint, TrackedPoint, TrackedRun, TrackerKind

log = logging.getLogger(__name__)
# -P: do not import modules from the directory that the server was started in.
COMMAND: Final = (sys.executable, "-P", "-m", "chockstone.trackers.process")
_ANSWER_SECONDS: Final = 120.0  # the first one includes the import of the tracker's package
_LEAVE_SECONDS: Final = 5.0
_END_SECONDS: Final = 1.0  # for a process that closed its channel to end by itself, and say why
_MAX_LINE: Final = 1 << 16  # of an answer, and of what a tracker prints
_OWN_VARIABLES: Final = ("CHOCKSTONE_", "TINKER_")  # may hold API keys of the server's users


class TrackerFailed(Exception):
    """The tracker did not take a batch; it can be sent again."""


@dataclass(frozen=True, slots=True)
class TrackerBatch:
    run: TrackedRun
    points: Sequence[TrackedPoint]
    checkpoints: Sequence[TrackedCheckpoint]

    def line(self) -> bytes:
        """As the tracker process reads it."""
        points = [(point.position, point.at, point.step, dict(point.values)) for point in self.points]
        checkpoints = [(each.path, each.kind, each.step, each.at) for each in self.checkpoints]
        return json.dumps({"run": asdict(self.run), "points": points, "checkpoints": checkpoints}).encode() + b"\n"


class TrackerProcess:
    """Started by the first batch, and again after it ended. One task uses it."""

    def __init__(
        self,
        kind: TrackerKind,
        directory: Path,
        *,
        answer_seconds: float = _ANSWER_SECONDS,
        command: Sequence[str] = COMMAND,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """``environment``: None is that of this process, with the credentials of trackers."""
        self.kind = kind
        self._directory = directory
        self._answer_seconds = answer_seconds
        self._command = command
        self._environment = os.environ if environment is None else environment
        self._process: Process | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._printing: asyncio.Task[None] | None = None
        self._is_answer_due = False
        self._last_line = ""  # that the tracker printed

    async def send(self, batch: TrackerBatch) -> None:
        """Returns when the tracker took the batch. Raises TrackerFailed; then the tracker has it, or has not."""
        line = batch.line()
        if self._is_answer_due:  # to a batch whose sender was cancelled
            await self.close(leave_seconds=0.0)
        self._is_answer_due = True
        try:
            async with asyncio.timeout(self._answer_seconds):
                answer = await self._ask(line)
        except TimeoutError:
            await self.close(leave_seconds=0.0)
            raise TrackerFailed(f"it did not answer in {self._answer_seconds:.0f} s") from None
        except OSError as error:
            code = await self.close(leave_seconds=_END_SECONDS)
            raise TrackerFailed(f"its process ended with exit code {code}: {self._last_line or error}") from None
        self._is_answer_due = False
        if (refusal := answer.get("error")) is not None:
            raise TrackerFailed(str(refusal))

    async def close(self, *, leave_seconds: float = _LEAVE_SECONDS) -> int | None:
        """End the process, which has ``leave_seconds`` to flush. Returns its exit code, None if there is no process."""
        process, self._process = self._process, None
        self._is_answer_due = False
        if process is None:
            return None
        if self._writer is not None:
            self._writer.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), leave_seconds)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with the processes that the tracker started
        code = await process.wait()
        if self._printing is not None:
            await self._printing
        return code

    async def _ask(self, line: bytes) -> Mapping[str, object]:
        if self._process is None:
            await self._start()
        assert self._writer is not None
        assert self._reader is not None
        self._writer.write(line)
        await self._writer.drain()
        answer = await self._reader.readline()
        if not answer.endswith(b"\n"):
            raise ConnectionResetError("no answer")
        parsed: Mapping[str, object] = json.loads(answer)
        return parsed

    async def _start(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *(*self._command, self.kind, str(self._directory), str(theirs.fileno())),
                    pass_fds=[theirs.fileno()],
                    stdin=DEVNULL,
                    stdout=DEVNULL,
                    stderr=PIPE,
                    start_new_session=True,  # Ctrl-C is for the server to handle; uvloop has no process_group
                    env={k: v for k, v in self._environment.items() if not k.startswith(_OWN_VARIABLES)},
                    limit=_MAX_LINE,
                )
            except OSError:
                ours.close()
                raise
        self._printing = asyncio.create_task(self._log_prints(self._process))
        self._reader, self._writer = await asyncio.open_connection(sock=ours, limit=_MAX_LINE)
        log.info("tracker started tracker=%s pid=%d", self.kind, self._process.pid)

    async def _log_prints(self, process: Process) -> None:
        assert process.stderr is not None
        while chunk := await process.stderr.read(_MAX_LINE):
            lines = chunk.decode(errors="replace").strip().splitlines()
            for line in lines:
                log.debug("tracker printed tracker=%s line=%s", self.kind, line)
            self._last_line = next((line for line in reversed(lines) if line.strip()), self._last_line)[:500]
