"""Set-up: a small model, and a server that is full of runs and checkpoints, started when a measure first needs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness.context import Context
from benchmarks.live.models import Model, new_model
from benchmarks.live.server import LiveServer
from benchmarks.observability.filling import fill
from benchmarks.observability.scale import FULL, QUICK, Scale

PARAMETERS = 1_000_000
MODEL = "small"


@dataclass(frozen=True, slots=True)
class FullServer:
    server: LiveServer
    run_ids: list[str]
    title: str


@dataclass(slots=True)
class Setup:
    context: Context
    directory: Path
    scale: Scale
    model: Model
    stack: ExitStack
    _full: FullServer | None = field(default=None)

    def new_server(self, home: str, *flags: str, **others: object) -> LiveServer:
        return LiveServer(
            [self.model],
            self.directory / home,
            threads=self.context.threads,
            flags=flags,
            **others,  # type: ignore[arg-type]  # program and environment
        )

    def full_server(self) -> FullServer:
        if self._full is None:
            scale = self.scale
            title = f"{scale.runs:,} runs, {scale.checkpoints:,} checkpoints"
            self.context.say(f"making {title}")
            server = self.new_server("full", "--scrub-rate=off")
            run_ids = fill(
                server.data,
                model=self.model.name,
                runs=scale.runs,
                checkpoints=scale.checkpoints,
                points=scale.points,
            )
            self._full = FullServer(self.stack.enter_context(server), run_ids, title)
        return self._full


@contextmanager
def set_up(context: Context) -> Iterator[Setup]:
    scale = QUICK if context.quick else FULL
    context.say("making a model")
    model = new_model(MODEL, context.directory / "models", parameters=PARAMETERS)
    with ExitStack() as stack:
        yield Setup(context, context.directory, scale, model, stack)
