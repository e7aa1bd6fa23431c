"""The SDK of Tinker in a process of its own: the client of a server that does not go with the version that we have.

Imports nothing of this repository: the interpreter may have another ``tinker``, and not our packages.
"""

from __future__ import annotations

from time import perf_counter, process_time

import tinker
from tinker import types


class SdkSampling:
    """Samples from the first model that the server names."""

    def __init__(self, *, url: str, key: str) -> None:
        service = tinker.ServiceClient(base_url=url, api_key=key)
        name = service.get_server_capabilities().supported_models[0].model_name
        if name is None:
            raise RuntimeError("the server names no model")
        self._sampler = service.create_sampling_client(base_model=name)

    def generate(self, *, prompts: list[list[int]], max_tokens: int) -> dict[str, float]:
        """Seconds and tokens made, and CPU-seconds of the client alone."""
        params = types.SamplingParams(max_tokens=max_tokens, temperature=1.0, stop=[])
        cpu, started = process_time(), perf_counter()
        futures = [
            self._sampler.sample(types.ModelInput.from_ints(prompt), num_samples=1, sampling_params=params)
            for prompt in prompts
        ]
        tokens = sum(len(sequence.tokens) for future in futures for sequence in future.result().sequences)
        return {
            "seconds": perf_counter() - started,
            "cpu_seconds": process_time() - cpu,
            "tokens": float(tokens),
        }
