"""Prints the report of a training run from its files, which cover every start of the run."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chockstone.checkpoints import Checkpointer
from chockstone.cli.output.formatting import format_count, printable
from chockstone.cli.output.terminal import print_line, print_stderr
from chockstone.cli.settings.values import ModelSetting
from chockstone.trainers.config import TrainerConfig
from chockstone.trainers.reports.jsonl import EVENTS, METRICS, SAMPLES, read_rows
from chockstone.trainers.reports.plot import draw_rewards
from chockstone.trainers.reports.reports import read_saved_text
from chockstone.trainers.saves import TrainerCheckpoint
from chockstone.trainers.snapshot import KIND
from chockstone.trainers.trainer import PREFIX

BARS: Final = "▁▂▃▄▅▆▇█"
_WIDTH: Final = 40  # of a sparkline, at most
_ENDS: Final = 10  # steps whose mean is the reward at first and at last


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """What was recorded of a run."""

    steps: Sequence[Mapping[str, float]]  # metrics, step by step
    evaluations: Mapping[int, Mapping[str, float]]  # by step
    saves: Mapping[int, float]  # seconds by step

    def total(self, name: str) -> float:
        return sum(step.get(name) or 0.0 for step in self.steps)

    def most(self, name: str) -> float:
        return max(step.get(name) or 0.0 for step in self.steps)


def read_recorded_run(out: Path) -> RecordedRun:
    rows = list(read_rows(out / METRICS))
    steps = [row["metrics"] for row in rows if "metrics" in row]
    evaluations = {row["step"]: row["evaluation"] for row in rows if "evaluation" in row}
    events = (read_saved_text(row["text"]) for row in read_rows(out / EVENTS))
    saves = dict(event for event in events if event is not None)
    return RecordedRun(steps, evaluations, {step: seconds for step, seconds in saves.items() if step <= len(steps)})


def newest_checkpoint(out: Path) -> TrainerCheckpoint | None:
    """Of the run in this directory."""
    if not (out / "store").exists():
        return None
    with Checkpointer(out / "store", prefix=PREFIX) as checkpointer:
        for found in reversed(checkpointer.checkpoints()):
            if found.manifest is not None and found.manifest.kind == KIND and found.manifest.step is not None:
                return TrainerCheckpoint(found.manifest.step, found.name, found.manifest.metadata.get("paths", {}))
    return None


def draw_plot(out: Path, picture: Path | None) -> None:
    """Draw the rewards into ``picture``. Does nothing before the first step; complains if matplotlib is missing."""
    if picture is None:
        return
    try:
        with suppress(ValueError):
            draw_rewards(out / METRICS, picture)
    except ModuleNotFoundError as error:
        print_stderr(f"{str(picture)!r} was not drawn: {error}")


def print_report(
    out: Path,
    config: TrainerConfig,
    *,
    served: tuple[ModelSetting, Path] | None,  # by a server of its own: the model, and the data directory
    train_on: Callable[[int], str],
    is_finished: bool,
) -> None:
    recorded, newest = read_recorded_run(out), newest_checkpoint(out)
    print_line()
    for line in _lines(recorded, config):
        print_line(line)
    _print_files(out)
    if newest is not None:
        print_line(f"The checkpoint of step {newest.step}", style="bold")
        for what, path in newest.paths.items():
            print_line(f"  {what:<10}  {printable(path)}")
        _print_sampling(newest, served)
    steps = config.steps * 2 if is_finished else config.steps
    print_line(f"{'Train more' if is_finished else 'Resume'}: {train_on(steps)}")


def _lines(recorded: RecordedRun, config: TrainerConfig) -> Iterator[str]:
    done = len(recorded.steps)
    if not done:
        yield "Stopped before the first step."
        return
    seconds = recorded.total("time/step")
    rewards = [step.get("reward/mean") or 0.0 for step in recorded.steps]
    ends = min(_ENDS, max(1, done // 4))
    samples = done * config.batch_size * config.group_size
    yield (
        f"Trained {format_count(done, 'step')} of {config.steps} on {samples:,} samples in {_format_seconds(seconds)}"
    )
    first, last = sum(rewards[:ends]) / ends, sum(rewards[-ends:]) / ends
    yield f"  reward      {first:.3f} → {last:.3f}  {sparkline(rewards)}  best {max(rewards):.3f}"
    if recorded.evaluations:
        step, found = max(recorded.evaluations.items())
        yield f"  evaluation  {found['reward/mean']:.3f} at step {step}, on {found['problems']:.0f} problems"
    staleness = recorded.total("staleness/mean") / done
    yield f"  staleness   {staleness:.2f} steps on average, {recorded.most('staleness/max'):.0f} at most"
    generated, waited = recorded.total("tokens/generated"), recorded.total("time/wait_for_rollouts")
    yield f"  generated   {generated:,.0f} tokens, {generated / seconds:,.0f} per second"
    yield f"  waiting     {_format_seconds(waited)} of training for rollouts, {waited / seconds:.0%} of the time"
    yield f"  saves       {_format_saves(recorded)}"
    yield f"  event loop  {recorded.most('loop/stall_max') * 1000:.0f} ms late at most"


def _format_saves(recorded: RecordedRun) -> str:
    if not recorded.saves:
        return "none"
    times = sorted(recorded.saves.values())
    waited = recorded.total("time/wait_for_save")
    spread = f"{times[0]:.1f} s" if len(times) == 1 else f"{times[0]:.1f} to {times[-1]:.1f} s each"
    return f"{len(times)} in the background, {spread}; training waited {waited:.1f} s for them"


def sparkline(values: Sequence[float]) -> str:
    """At most ``_WIDTH`` bars, each the mean of its share."""
    width = min(len(values), _WIDTH)
    shares = [values[len(values) * at // width : len(values) * (at + 1) // width] for at in range(width)]
    means = [sum(share) / len(share) for share in shares]
    low, high = min(0.0, *means), max(*means, 0.0)
    span = (high - low) or 1.0
    return "".join(BARS[round((mean - low) / span * (len(BARS) - 1))] for mean in means)


def _print_files(out: Path) -> None:
    names = [METRICS, SAMPLES, EVENTS, "rewards.svg", "tensorboard"]
    there = [name for name in names if (out / name).exists()]
    print_line(f"  files       {printable(str(out))}: {', '.join(there)}")


def _print_sampling(newest: TrainerCheckpoint, served: tuple[ModelSetting, Path] | None) -> None:
    path = newest.paths.get("sampler")
    if path is None:
        return
    print_line("Sample from it:")
    if served is not None:
        model, data = served
        words = ["chockstone", "serve", "--model", f"{model.name}={model.directory}", "--data", str(data)]
        print_line(f"  {printable(shlex.join(words))}")
    print_line(f"  tinker.ServiceClient().create_sampling_client(model_path={path!r})")


def _format_seconds(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"
