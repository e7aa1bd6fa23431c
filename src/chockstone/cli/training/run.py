"""Runs one start of a training run: its server, its trainer, its progress and its end."""

from __future__ import annotations

import asyncio
import fcntl
import importlib.util
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import tinker
from rich.console import Console

from chockstone.checkpoints.errors import CheckpointError
from chockstone.cli.models.directory import read_config
from chockstone.cli.models.making import ModelNotMade, make_model
from chockstone.cli.output.exit_codes import ExitCode
from chockstone.cli.output.reporting import CommandFailed
from chockstone.cli.output.terminal import print_line, print_stderr
from chockstone.cli.remote.client import connect
from chockstone.cli.settings.values import MODELS, ModelSetting
from chockstone.cli.training.report import draw_plot, newest_checkpoint, print_report
from chockstone.cli.training.server import KEY, TrainingServer
from chockstone.cli.training.stopping import Stopped, Stopping, exit_now
from chockstone.trainers import ConfigInvalid, Environment, ResumeRefused, Trainer, TrainerConfig, TrainerError
from chockstone.trainers.reports.console import ConsoleReport
from chockstone.trainers.reports.jsonl import JsonLines
from chockstone.trainers.reports.reports import Report
from chockstone.trainers.reports.tensorboard import TensorBoard
from chockstone.trainers.rollouts.environment import load_environment

T = TypeVar("T")

RECIPES: Final[Mapping[str, Mapping[str, Any]]] = {  # settings that suit an environment, where none are given
    "arithmetic": {
        "steps": 120,
        "batch_size": 16,
        "group_size": 64,  # with fewer, one answer to everything looks best too soon
        "rank": 0,
        "learning_rate": 5e-4,
        "loss": "ppo",
        "normalise_advantages": True,
        "max_tokens": 1,
        "save_every": 20,
        "evaluate_every": 20,
    },
}
_MADE_MODEL: Final = "tiny"
_MADE_VOCABULARY: Final = 265  # every byte and the special tokens: the fewer there are, the sooner a good one is found
_THREADS: Final = "chockstone-"  # how the names of ours begin
_WATCH_SECONDS: Final = 0.5
_PATIENCE_SECONDS: Final = 5.0  # for threads, and for a trainer that has lost its server


@dataclass(frozen=True, slots=True)
class TrainRequest:
    """What was asked for."""

    environment: str
    out: Path
    settings: Mapping[str, Any]  # of TrainerConfig, those that were given
    model: str | None
    server: str | None  # None: one of its own
    key: str
    plot: Path | None
    tensorboard: bool | None  # None: if it is installed
    debug: bool
    command_for: Callable[[int], str]  # the command once more, with so many steps


@dataclass(frozen=True, slots=True)
class TrainingEndpoint:
    """The server to train on."""

    url: str
    key: str
    own: TrainingServer | None  # None: the server was there already


def run(request: TrainRequest) -> int:
    """Train until done, failed or stopped. Returns the exit code; raises CommandFailed if nothing was begun."""
    with Stopping() as stopping:
        try:
            code = _run(request, stopping)
        except Stopped:
            return stopping.exit_code
    if _has_hanging_threads():
        print_stderr("chockstone: exiting while a thread is still busy, most likely with a reward")
        exit_now(code)
    return code


def _run(request: TrainRequest, stopping: Stopping) -> int:
    environment = _load(request.environment)
    _configure(request, request.model or _MADE_MODEL)  # reports wrong settings before it makes anything
    with _alone_in(request.out):
        model = _name_model(request)
        config = _configure(request, model.name if isinstance(model, ModelSetting) else model)
        reports = _reports(request, config.steps)
        newest = newest_checkpoint(request.out)
        if newest is not None and newest.step >= config.steps:
            print_line(f"The run in {str(request.out)!r} is at step {newest.step}; --steps is {config.steps}.")
            print_line(f"Train more: {request.command_for(newest.step + config.steps)}")
            print_line("Start a new run: choose another directory with --out.")
            return 0
        with _endpoint(request, model, stopping) as endpoint:
            trainer = Trainer(
                config,
                environment,
                store=request.out / "store",
                reports=reports,
                base_url=endpoint.url,
                api_key=endpoint.key,
            )
            code = _train(request, trainer, environment, endpoint.own, stopping)
            for picture in (request.out / "rewards.svg", request.plot):
                draw_plot(request.out, picture)
            if code != ExitCode.FAILED:
                served = None if endpoint.own is None else (endpoint.own.model, endpoint.own.data)
                print_report(request.out, config, served=served, train_on=request.command_for, is_finished=code == 0)
            elif newest := newest_checkpoint(request.out):
                print_stderr(f"The same command resumes from step {newest.step}.")
            return code


def _train(
    request: TrainRequest, trainer: Trainer, environment: Environment, server: TrainingServer | None, stopping: Stopping
) -> int:
    try:
        _run_loop(_supervise(trainer, server, stopping))
    except asyncio.CancelledError:
        return stopping.exit_code
    except (ConfigInvalid, ResumeRefused) as error:
        raise CommandFailed(str(error)) from error
    except Exception as error:  # noqa: BLE001  # any error ends training with a message
        is_known = isinstance(error, TrainerError | tinker.TinkerError | CheckpointError | CommandFailed)
        if request.debug or not is_known or _is_in_code_of(environment, error):
            traceback.print_exception(error)
        print_stderr(f"chockstone: training failed: {_format_error(error)}")
        return ExitCode.FAILED
    return 0


async def _supervise(trainer: Trainer, server: TrainingServer | None, stopping: Stopping) -> None:
    """Raises what ended training, or the server."""
    training = asyncio.create_task(trainer.run())
    stopping.cancels(training)
    watching = asyncio.create_task(_keep_alive(server) if server else asyncio.sleep(float("inf")))
    await asyncio.wait([training, watching], return_when=asyncio.FIRST_COMPLETED)
    if training.done():
        watching.cancel()
        training.result()
        return
    training.cancel()
    await asyncio.wait([training], timeout=_PATIENCE_SECONDS)  # it can save nothing any more
    watching.result()


async def _keep_alive(server: TrainingServer) -> None:
    while True:
        await asyncio.sleep(_WATCH_SECONDS)
        if said := server.revive():
            print_stderr(f"chockstone: {said}")


def _run_loop(main: Coroutine[Any, Any, T]) -> T:
    """As ``asyncio.run``, but threads that are still busy are not waited for: a reward may hang."""
    loop = asyncio.new_event_loop()
    loop.set_default_executor(ThreadPoolExecutor(thread_name_prefix=f"{_THREADS}train"))
    try:
        return loop.run_until_complete(main)
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def _has_hanging_threads() -> bool:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    ours = [thread for thread in threading.enumerate() if thread.name.startswith(_THREADS) and not thread.daemon]
    for thread in ours:
        thread.join(max(0.0, deadline - time.monotonic()))
    return any(thread.is_alive() for thread in ours)


def _load(spec: str) -> Environment:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # as `python -m` would: environments are modules of the working directory
    try:
        return load_environment(spec)
    except ConfigInvalid as error:
        raise CommandFailed(str(error)) from error
    except Exception as error:
        traceback.print_exception(error)
        raise CommandFailed(f"the environment {spec!r} cannot be loaded: {_format_error(error)}") from error


@contextmanager
def _alone_in(out: Path) -> Iterator[None]:
    """One trainer at a time in a directory: two would write each other's files."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(out, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise CommandFailed(f"the directory {str(out)!r} cannot be used: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CommandFailed(f"another `chockstone train` runs in {str(out)!r}; choose another with --out") from None
    else:
        yield
    finally:
        os.close(descriptor)


def _name_model(request: TrainRequest) -> ModelSetting | str:
    """A directory for a server of its own; the name of one that is served where there is a server."""
    if request.server is None:
        return _model_directory(request)
    if request.model is None:
        served = connect(request.server, request.key).get("get_server_capabilities").get("supported_models", [])
        names = [str(model["model_name"]) for model in served]
        if len(names) != 1:
            raise CommandFailed(
                f"name one of the models at {request.server} with --model: {', '.join(names) or 'none'}"
            )
        return names[0]
    if "=" in request.model or request.model.startswith((".", "/", "~")):
        raise CommandFailed(
            f"--model {request.model!r} is a directory, and {request.server} serves its own models: give the name of "
            "one, or unset TINKER_BASE_URL to start a server for this training"
        )
    connect(request.server, request.key).get("healthz")
    return request.model


def _model_directory(request: TrainRequest) -> ModelSetting:
    try:
        if request.model is None:
            made = ModelSetting(_MADE_MODEL, request.out / "model")
            if not (made.directory / "config.json").exists():  # it is written last
                make_model(made.directory, vocab_size=_MADE_VOCABULARY, force=True)
            return made
        [model] = MODELS.read([request.model], Path.cwd())
        read_config(model.directory)
    except (ModelNotMade, ValueError) as error:
        raise CommandFailed(str(error)) from None
    return model


def _configure(request: TrainRequest, model: str) -> TrainerConfig:
    recipe = RECIPES.get(request.environment.partition(":")[0], {})
    try:
        return TrainerConfig(model, **{**recipe, **request.settings})
    except ConfigInvalid as error:
        raise CommandFailed(str(error)) from None


def _reports(request: TrainRequest, steps: int) -> list[Report]:
    reports: list[Report] = [ConsoleReport(Console(stderr=True), steps), JsonLines(request.out)]
    if request.tensorboard or (request.tensorboard is None and importlib.util.find_spec("tensorboardX")):
        try:
            reports.append(TensorBoard(request.out / "tensorboard"))
        except ModuleNotFoundError as error:
            raise CommandFailed(f"{error}; or pass --no-tensorboard") from None
    return reports


@contextmanager
def _endpoint(request: TrainRequest, model: ModelSetting | str, stopping: Stopping) -> Iterator[TrainingEndpoint]:
    if isinstance(model, str):
        assert request.server is not None
        yield TrainingEndpoint(request.server, request.key, None)
        return
    own = TrainingServer(model, request.out / "server", threads=0 if request.model else 1)
    stopping.kills(own)
    with own:
        yield TrainingEndpoint(own.url, KEY, own)


def _is_in_code_of(environment: Environment, error: BaseException) -> bool:
    module = sys.modules.get(type(environment).__module__)
    file = getattr(module, "__file__", None)
    return any(frame.f_code.co_filename == file for frame, _ in traceback.walk_tb(error.__traceback__))


def _format_error(error: BaseException) -> str:
    return str(error) if isinstance(error, TrainerError | CommandFailed) else f"{type(error).__name__}: {error}"
