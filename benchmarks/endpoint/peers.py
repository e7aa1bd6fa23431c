"""Peers of the measure ``talking``: other servers with the API of OpenAI.

``live/peers.py`` has the environment variables that name them.
"""

from __future__ import annotations

import shlex
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from benchmarks.endpoint.completing import Endpoint
from benchmarks.live.models import Model
from benchmarks.live.peers import TRANSFORMERS_SERVE, VLLM_PYTHON, VLLM_VARIABLES, open_named, peer_server

VLLM, TRANSFORMERS = "vllm, streamed", "transformers serve, streamed"
_VLLM_FLAGS: Final = (
    "--dtype=float32 --host=127.0.0.1 --port={port} "
    # A prompt that it reads in several pieces, with a seed, ends the CPU build.
    "--no-enable-chunked-prefill --max-num-batched-tokens=8192"
)


def open_peers(
    stack: ExitStack, model: Model, *, threads: int, directory: Path
) -> tuple[dict[str, Endpoint], dict[str, str]]:
    """The peers that are named, each with the model loaded; they end with the stack. And why the others do not run."""

    def vllm(python: str) -> Endpoint:
        command = f"{shlex.quote(python)} -m vllm.entrypoints.openai.api_server {_VLLM_FLAGS}"
        command += f" --model={{model}} --served-model-name={model.name}"
        server = stack.enter_context(
            peer_server(command, model, directory / "vllm", threads=threads, variables=VLLM_VARIABLES)
        )
        return Endpoint(server.url, model.name)

    def transformers_serve(command: str) -> Endpoint:
        server = stack.enter_context(peer_server(command, model, directory / "transformers", threads=threads))
        return Endpoint(server.url, str(model.directory), takes_tokens=False)

    return open_named({VLLM: (VLLM_PYTHON, vllm), TRANSFORMERS: (TRANSFORMERS_SERVE, transformers_serve)})
