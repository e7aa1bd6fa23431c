"""Sampling: tokens per second, ours through the SDK beside ``transformers.generate``."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from benchmarks.checkpoints.rounds import Action, Metrics, Series
from benchmarks.server.client import batch_of, new_run, sample_all, session, step
from benchmarks.server.models import LARGE, SMALL, Model, Tokens
from benchmarks.server.scale import PROMPT_TOKENS, SMALL_SEQUENCES
from benchmarks.server.stage import Stage

OURS = "chockstone, through the SDK"
ADAPTED = "chockstone, with a LoRA adapter"
SINGLY = "generate, prompt by prompt"
BATCHED = "generate, one batch"
SMALL_TOKENS = 64


def measure_sampling(stage: Stage) -> dict[str, Series]:
    """From the large model: many prompts with several samples each."""
    scale = stage.scale
    model = stage.models[LARGE]
    prompts = model.draw(scale.prompts, PROMPT_TOKENS, seed=4)
    return _measure(
        stage, model, prompts, scale.samples, scale.sampled_tokens, repeats=scale.sampling_rounds, singly=True
    )


def measure_small_sampling(stage: Stage) -> dict[str, Series]:
    """From the small model, where per-token overhead is all there is."""
    model = stage.models[SMALL]
    prompts = model.draw(SMALL_SEQUENCES, PROMPT_TOKENS, seed=5)
    return _measure(stage, model, prompts, 1, SMALL_TOKENS, repeats=stage.scale.small_sampling_rounds, singly=False)


def _measure(
    stage: Stage, model: Model, prompts: list[Tokens], samples: int, max_tokens: int, *, repeats: int, singly: bool
) -> dict[str, Series]:
    wanted = len(prompts) * samples * max_tokens
    stage.bare.call("prepare_sampling", directory=model.directory)
    with session(stage.server.url) as service:
        run = new_run(service, model.name)
        step(run, batch_of(model.draw(1, 33, seed=6)))
        plain = service.create_sampling_client(base_model=model.name)
        adapted = run.save_weights_and_get_sampling_client()

        def generating(*, together: bool) -> Action:
            def action() -> Metrics:
                answer = stage.bare.call(
                    "generate", prompts=prompts, samples=samples, max_tokens=max_tokens, together=together
                )
                return _rate(answer["tokens"], answer["seconds"], wanted)

            return action

        def asking(sample: Callable[[], int]) -> Action:
            def action() -> Metrics:
                started = perf_counter()
                tokens = sample()
                return _rate(tokens, perf_counter() - started, wanted)

            return action

        actions: dict[str, Action] = {
            OURS: asking(lambda: sample_all(plain, prompts, samples=samples, max_tokens=max_tokens)),
            ADAPTED: asking(lambda: sample_all(adapted, prompts, samples=samples, max_tokens=max_tokens)),
            BATCHED: generating(together=True),
        }
        if singly:
            actions[SINGLY] = generating(together=False)
        return stage.run_rounds(actions, repeats=repeats)


def _rate(tokens: float, seconds: float, wanted: int) -> Metrics:
    if tokens != wanted:
        raise RuntimeError(f"{tokens:.0f} tokens came back instead of {wanted}")
    return {"tokens_per_second": tokens / seconds}
