"""vLLM: the same sampling by vLLM for CPUs, in the interpreter that ``BENCH_VLLM_PYTHON`` names.

Imports nothing of this repository: that interpreter has vLLM and not our packages.
"""

from __future__ import annotations

import os
from time import perf_counter, process_time
from typing import Any


class VllmSampling:
    def __init__(self, *, threads: int, variables: dict[str, str]) -> None:
        os.environ.update(variables)
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # so that all CPU time is of this process
        os.environ["OMP_NUM_THREADS"] = str(threads)
        self._model: Any = None  # Any: vLLM's, which is not installed here

    def prepare_sampling(self, *, directory: str) -> None:
        from vllm import LLM  # type: ignore[import-not-found,unused-ignore]  # of another environment

        self._model = LLM(model=directory, dtype="float32", enforce_eager=False)

    def generate(self, *, prompts: list[list[int]], max_tokens: int) -> dict[str, float]:
        from vllm import SamplingParams  # type: ignore[import-not-found,unused-ignore]  # of another environment

        params = SamplingParams(max_tokens=max_tokens, temperature=1.0, ignore_eos=True)
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        cpu, started = process_time(), perf_counter()
        answers = self._model.generate(asked, params, use_tqdm=False)
        seconds, used = perf_counter() - started, process_time() - cpu
        tokens = sum(len(output.token_ids) for answer in answers for output in answer.outputs)
        return {"seconds": seconds, "cpu_seconds": used, "tokens": float(tokens)}
