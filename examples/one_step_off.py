"""Train a model to add numbers: one-step-off reinforcement learning, with the trainer as a library.

Run it: `python examples/one_step_off.py`. It makes a random model, starts the real server, and trains. While it
trains on one batch, it generates the next one and saves checkpoints in the background. In a few minutes the mean
reward rises from zero to nearly one, and `--svg FILE` plots it. It needs no network. With `--out DIR` it keeps its
files, and a second start resumes the run. `chockstone train --env arithmetic` does the same.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the tokenizer is in the model's directory

from rich.console import Console

from chockstone.cli.models.making import make_model
from chockstone.cli.settings.values import ModelSetting
from chockstone.cli.training.report import sparkline
from chockstone.cli.training.server import KEY, TrainingServer
from chockstone.trainers import Completion, Problem, Trainer, TrainerConfig
from chockstone.trainers.reports.console import ConsoleReport
from chockstone.trainers.reports.jsonl import METRICS, JsonLines, read_rows
from chockstone.trainers.reports.plot import draw_rewards

GOOD = 0.8


class Sums:
    """All sums of two numbers up to three. An environment has these attributes and methods."""

    name = "sums"
    stop = ()

    def __len__(self) -> int:
        return 16

    def problem(self, index: int) -> Problem:
        left, right = divmod(index, 4)
        return Problem(f"{left}+{right}", prompt=f"{left}+{right}=", answer=str(left + right))

    def reward(self, problem: Problem, completion: Completion) -> float:
        number = re.match(r"\d+", completion.text)
        return 0.0 if number is None else 1.0 if number[0] == problem.answer else 0.1

    def evaluation(self) -> list[Problem]:
        return [self.problem(index) for index in range(len(self))]


def settings(steps: int, staleness: int) -> TrainerConfig:
    return TrainerConfig(
        "tiny",
        steps=steps,
        batch_size=16,
        group_size=64,  # with fewer, the model settles on one answer too early
        rank=0,  # train all weights: a random model has nothing to adapt
        learning_rate=5e-4,
        loss="ppo",
        normalise_advantages=True,
        max_tokens=1,
        staleness=staleness,  # 0: synchronous; 1: generate the next batch during training
        save_every=20,
        evaluate_every=20,
    )


def learn(out: Path, steps: int, staleness: int) -> list[float]:
    """Train, and return the mean reward of every step, including steps of earlier starts."""
    model = ModelSetting("tiny", out / "model")
    if not (model.directory / "config.json").exists():
        make_model(model.directory, vocab_size=265, force=True)  # few tokens: training is faster
    with TrainingServer(model, out / "server", threads=1) as server:
        trainer = Trainer(
            settings(steps, staleness),
            Sums(),
            store=out / "store",
            reports=[ConsoleReport(Console(stderr=True), steps), JsonLines(out)],
            base_url=server.url,
            api_key=KEY,
        )
        outcome = asyncio.run(trainer.run())  # Ctrl-C saves a checkpoint before the exit
    print(f"checkpoint of step {outcome.checkpoint.step}: {outcome.checkpoint.paths['state']}")
    print(f"evaluation: {outcome.progress.evaluation['reward/mean']:.3f}")
    return [row["metrics"]["reward/mean"] for row in read_rows(out / METRICS) if "metrics" in row]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--svg", type=Path, metavar="FILE", help="plot the rewards into this file")
    parser.add_argument("--out", type=Path, metavar="DIR", help="keep the files of the run here, and resume from them")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--staleness", type=int, default=1, help="0: synchronous; 2 and more: asynchronous")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="chockstone-sums-") as temporary:
        out = arguments.out or Path(temporary)
        rewards = learn(out, arguments.steps, arguments.staleness)
        if arguments.svg:
            draw_rewards(out / METRICS, arguments.svg)
    last = sum(rewards[-10:]) / len(rewards[-10:])
    print(f"reward {rewards[0]:.3f} {sparkline(rewards)} {last:.3f}")
    sys.exit(0 if last > GOOD else f"the mean reward of the last 10 steps, {last:.3f}, is not above {GOOD}")


if __name__ == "__main__":
    main()
