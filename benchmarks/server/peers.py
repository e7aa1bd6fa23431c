"""Peers of the measure ``decoding``: samplers that are installed elsewhere, named by environment variables.

BENCH_VLLM_PYTHON     A Python interpreter whose environment has vLLM for CPUs.
BENCH_TINKER_SERVER   A command that starts another server with the Tinker API, such as SkyRL's, in the foreground.
                      ``{model}`` stands for the model's directory, ``{port}`` for the port, ``{home}`` for a new
                      directory.

A peer that is not named is listed as not run.
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Final

import psutil  # type: ignore[import-untyped]  # has no stubs of its own
import tinker

from benchmarks.harness.remote import RemoteObject
from benchmarks.live.models import Model, Tokens
from benchmarks.live.server import KEY
from benchmarks.server.samplers import Sample, Work, sampling_by_sdk

VLLM, TINKER = "vllm", "other tinker server"
VLLM_PYTHON, TINKER_SERVER = "BENCH_VLLM_PYTHON", "BENCH_TINKER_SERVER"
_VARIABLES: Final = {VLLM: VLLM_PYTHON, TINKER: TINKER_SERVER}
_START_SECONDS: Final = 300.0
_STOP_SECONDS: Final = 20.0


def reasons_of_absence() -> Mapping[str, str]:
    return {peer: f"{name} is not set" for peer, name in _VARIABLES.items() if not os.environ.get(name)}


def open_peers(stack: ExitStack, model: Model, *, threads: int, directory: Path) -> dict[str, Sample]:
    """The peers that are named, each with the model loaded. They end with the stack."""
    peers: dict[str, Sample] = {}
    if python := os.environ.get(VLLM_PYTHON):
        remote = RemoteObject("benchmarks.server.vllm_sampling", "VllmSampling", threads=threads, python=python)
        stack.enter_context(remote)
        remote.call("prepare_sampling", directory=str(model.directory))
        peers[VLLM] = _remote_sampling(remote)
    if command := os.environ.get(TINKER_SERVER):
        server, url, name = stack.enter_context(_other_server(command, model, directory))
        peers[TINKER] = stack.enter_context(sampling_by_sdk(url, name, server))
    return peers


def _remote_sampling(remote: RemoteObject) -> Sample:
    def sample(prompts: list[Tokens], tokens: int) -> Work:
        answer = remote.call("generate", prompts=prompts, max_tokens=tokens)
        return Work(int(answer["tokens"]), answer["seconds"], answer["cpu_seconds"])

    return sample


@contextmanager
def _other_server(command: str, model: Model, directory: Path) -> Iterator[tuple[psutil.Process, str, str]]:
    """The process, its URL, and its name of the model."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    home = directory / f"other-{model.name}"
    home.mkdir(parents=True)
    words = [word.format(model=model.directory, port=port, home=home) for word in shlex.split(command)]
    with open(home / "log", "wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, cwd=home, start_new_session=True)
    try:
        url = f"http://127.0.0.1:{port}"
        yield psutil.Process(process.pid), url, _wait_until_it_serves(url, process, home / "log")
    finally:
        _end(process)


def _wait_until_it_serves(url: str, process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the other server did not start; it said:\n{log.read_text(errors='replace')[-2000:]}")
        with suppress(OSError), socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=1):
            break
        time.sleep(0.2)
    with tinker.ServiceClient(base_url=url, api_key=KEY) as service:
        names = [each.model_name for each in service.get_server_capabilities().supported_models]
    if not names or names[0] is None:
        raise RuntimeError("the other server names no model")
    return names[0]


def _end(process: subprocess.Popen[bytes]) -> None:
    """With all that it started: they are in its session."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, SIGKILL)
    process.wait()
