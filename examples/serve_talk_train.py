"""Talk to a checkpoint, reward its answers, train one step on them, and talk to the new checkpoint.

Run it: `python examples/serve_talk_train.py`. It makes a small random model and starts the real server. The unmodified
`openai` SDK talks to an alias whose conversations are stored; the unmodified `tinker` SDK trains on them by importance
sampling. The ratios of the first step are 1: trainer and sampler agree. Then the alias moves to the new checkpoint. It
needs no network. With `--server URL` it uses a server that runs.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the tokenizer is in the model's directory

import httpx
import numpy as np
import openai
import tinker

from chockstone.cli.models.making import make_model
from chockstone.cli.settings.values import ModelSetting
from chockstone.cli.training.server import KEY, TrainingServer
from chockstone.trainers import ConversationsClient, ExportedDatum

ALIAS = "talker"
QUESTIONS = ("What is a chockstone?", "What is a lane?", "Why do climbers fall?", "What holds a fall?")
TALKS = 8
CLOSE = 1e-4


def start_server(stack: ExitStack) -> str:
    """A server of this program's own, with a small random model. Returns its URL."""
    home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chockstone-talk-")))
    make_model(home / "tiny", seed=0)
    return stack.enter_context(TrainingServer(ModelSetting("tiny", home / "tiny"), home, threads=1)).url


def point_alias(url: str, target: str) -> None:
    """As `chockstone alias set --store talker TARGET` does."""
    answer = httpx.put(
        f"{url}/api/v1/aliases/{ALIAS}", json={"target": target, "store": True}, headers={"X-API-Key": KEY}
    )
    answer.raise_for_status()
    print(f"alias      {ALIAS} -> {target}")


def talk(client: openai.OpenAI, *, seed: int) -> dict[str, str]:
    """Ask all questions. Returns the answers by their ids, which are the ids of the stored conversations."""
    answers = {}
    for number in range(TALKS):
        question = QUESTIONS[number % len(QUESTIONS)]
        answer = client.chat.completions.create(
            model=ALIAS,
            messages=[{"role": "user", "content": question}],
            max_completion_tokens=24,
            seed=seed + number,
        )
        answers[answer.id] = answer.choices[0].message.content or ""
    return answers


def letters(text: str) -> int:
    return sum(character.isascii() and character.isalpha() for character in text)


def ratios(stored: list[ExportedDatum], trained: tinker.ForwardBackwardOutput) -> np.ndarray:
    """The probability of each sampled token now, divided by the probability with which it was sampled."""
    found = []
    for one, output in zip(stored, trained.loss_fn_outputs, strict=True):
        is_sampled = one.datum.loss_fn_inputs["advantages"].to_numpy() != 0
        sampled = one.datum.loss_fn_inputs["logprobs"].to_numpy()
        found.append(np.exp(output["logprobs"].to_numpy() - sampled)[is_sampled])
    return np.concatenate(found)


def run_loop(url: str, model: str) -> None:
    service = tinker.ServiceClient(base_url=url, api_key=KEY)
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY)
    run = service.create_lora_training_client(base_model=model, rank=8, seed=0)
    point_alias(url, run.save_weights_for_sampler("before").result().path)
    with ConversationsClient(url, KEY) as conversations:
        answers = talk(client, seed=0)
        mean = np.mean([letters(text) for text in answers.values()])
        for answer_id, text in answers.items():
            conversations.reward(answer_id, 1.0 if letters(text) > mean else -1.0)
        stored = [one for one in conversations.datums(model=ALIAS) if one.conversation_id in answers]
    print(f"stored     {len(stored)} answers, sampled from weights {(stored[0].weights_digest or '')[:16]}")

    step = run.forward_backward([one.datum for one in stored], "importance_sampling")
    run.optim_step(tinker.AdamParams(learning_rate=1e-2)).result()
    found = ratios(stored, step.result())
    print(f"ratios     {found.min():.6f} to {found.max():.6f} at step 0, of {len(found)} tokens")
    if len(stored) != TALKS or np.abs(found - 1).max() > CLOSE:
        raise SystemExit("trainer and sampler do not agree, or an answer is missing")

    point_alias(url, run.save_weights_for_sampler("after").result().path)
    again = talk(client, seed=0)
    changed = sum(old != new for old, new in zip(answers.values(), again.values(), strict=True))
    print(f"talked     again: {changed} of {TALKS} answers to the same seeds are other ones")
    service.close("success").result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", metavar="URL", help="use this server and not one of its own")
    parser.add_argument("--model", default="tiny", help="base model to train")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        run_loop(arguments.server or start_server(stack), arguments.model)


if __name__ == "__main__":
    main()
