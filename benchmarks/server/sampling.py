"""Sampling: tokens per second, ours through the SDK beside ``transformers.generate``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from time import perf_counter

import tinker

from benchmarks.harness.context import Context
from benchmarks.harness.rounds import Metrics, Rows, Turn
from benchmarks.live.client import batch_of, new_run, sample_all, session, step
from benchmarks.live.models import Model, Tokens
from benchmarks.server.scale import LARGE, PROMPT_TOKENS, SMALL, SMALL_SEQUENCES
from benchmarks.server.setup import Setup

OURS = "chockstone, through the SDK"
ADAPTED = "chockstone, with a LoRA adapter"
SINGLY = "generate, prompt by prompt"
BATCHED = "generate, one batch"
SMALL_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Request:
    """What all contestants are asked for."""

    prompts: list[Tokens]
    samples: int  # of each prompt
    max_tokens: int

    @property
    def tokens(self) -> int:
        return len(self.prompts) * self.samples * self.max_tokens

    @property
    def title(self) -> str:
        samples = f" × {self.samples} samples" if self.samples > 1 else ""
        return f"{len(self.prompts)} prompts of {PROMPT_TOKENS} tokens{samples} × {self.max_tokens} tokens"


def measure_sampling(context: Context, setup: Setup) -> Rows:
    """From the large model: many prompts with several samples each."""
    model, scale = setup.models[LARGE], setup.scale
    request = Request(model.draw(scale.prompts, PROMPT_TOKENS, seed=4), scale.samples, scale.sampled_tokens)
    return _measure(context, setup, model, request, repeats=scale.sampling_rounds, singly=True)


def measure_small_sampling(context: Context, setup: Setup) -> Rows:
    """From the small model, where per-token overhead is all there is."""
    model = setup.models[SMALL]
    request = Request(model.draw(SMALL_SEQUENCES, PROMPT_TOKENS, seed=5), 1, SMALL_TOKENS)
    return _measure(context, setup, model, request, repeats=setup.scale.small_sampling_rounds, singly=False)


def _measure(context: Context, setup: Setup, model: Model, request: Request, *, repeats: int, singly: bool) -> Rows:
    """``singly``: also with ``generate`` for one prompt after the other."""
    context.describe(f"{model.title} model, {request.title}")
    asked = asdict(request)
    setup.baselines.call("prepare_sampling", directory=model.directory)
    with session(setup.server.url) as service:
        run = new_run(service, model.name)
        step(run, batch_of(model.draw(1, 33, seed=6)))
        plain = service.create_sampling_client(base_model=model.name)
        adapted = run.save_weights_and_get_sampling_client()

        def generating(*, together: bool) -> Turn:
            def turn() -> Metrics:
                answer = setup.baselines.call("generate", **asked, together=together)
                return _rate(answer["tokens"], answer["seconds"], request)

            return turn

        def sampling(sampler: tinker.SamplingClient) -> Turn:
            def turn() -> Metrics:
                started = perf_counter()
                tokens = sample_all(sampler, **asked)
                return _rate(tokens, perf_counter() - started, request)

            return turn

        contestants = {OURS: sampling(plain), ADAPTED: sampling(adapted), BATCHED: generating(together=True)}
        if singly:
            contestants[SINGLY] = generating(together=False)
        return context.run_rounds(contestants, repeats=repeats)


def _rate(tokens: float, seconds: float, request: Request) -> Metrics:
    if tokens != request.tokens:
        raise RuntimeError(f"{tokens:.0f} tokens came back instead of {request.tokens}")
    return {"tokens_per_second": tokens / seconds}
