"""Peers of the measure ``decoding``: vLLM, and another server with the Tinker API.

``live/peers.py`` has the environment variables that name them.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # has no stubs of its own

from benchmarks.harness.remote import RemoteObject
from benchmarks.live.models import Model, Tokens
from benchmarks.live.peers import TINKER_PYTHON, TINKER_SERVER, VLLM_PYTHON, VLLM_VARIABLES, open_named, peer_server
from benchmarks.live.server import KEY
from benchmarks.server.samplers import Sample, Work, cpu_seconds

VLLM, TINKER = "vllm", "other tinker server"


def open_peers(
    stack: ExitStack, model: Model, *, threads: int, directory: Path
) -> tuple[dict[str, Sample], dict[str, str]]:
    """The peers that are named, each with the model loaded; they end with the stack. And why the others do not run."""

    def vllm(python: str) -> Sample:
        remote = stack.enter_context(
            RemoteObject(
                "benchmarks.server.vllm_sampling",
                "VllmSampling",
                threads=threads,
                variables=dict(VLLM_VARIABLES),
                python=python,
            )
        )
        remote.call("prepare_sampling", directory=str(model.directory))
        return _sampling(remote)

    def tinker_server(command: str) -> Sample:
        server = stack.enter_context(peer_server(command, model, directory / f"other-{model.name}", threads=threads))
        python = os.environ.get(TINKER_PYTHON) or sys.executable
        remote = RemoteObject("benchmarks.server.sdk_sampling", "SdkSampling", url=server.url, key=KEY, python=python)
        return _sampling(stack.enter_context(remote), server.process)

    return open_named({VLLM: (VLLM_PYTHON, vllm), TINKER: (TINKER_SERVER, tinker_server)})


def _sampling(remote: RemoteObject, server: psutil.Process | None = None) -> Sample:
    """Through an object in another process; the CPU time of ``server`` counts with that of the object."""

    def sample(prompts: list[Tokens], tokens: int) -> Work:
        cpu = 0.0 if server is None else cpu_seconds(server)
        answer = remote.call("generate", prompts=prompts, max_tokens=tokens)
        of_server = 0.0 if server is None else cpu_seconds(server) - cpu
        return Work(int(answer["tokens"]), answer["seconds"], answer["cpu_seconds"] + of_server)

    return sample
