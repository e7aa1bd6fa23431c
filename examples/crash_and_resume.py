"""Train a small model, kill it three times, and get the same bits as without a kill.

Run it: `python examples/crash_and_resume.py`. It trains a model once without interruption and once with
three SIGKILLs, some of them during a save. Each restart resumes from the newest good checkpoint. Then the
example compares the two runs, damages a checkpoint on purpose and shows the receipt of a restore.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

STEPS = 60
SAVE_EVERY = 4
KILLS = (13, 29, 46)  # steps after which the process is killed, even during a save
BARS = "▁▂▃▄▅▆▇█"


def train(directory: Path) -> None:
    """One training process: resume from the newest checkpoint, if there is one, and train."""
    import torch

    from chockstone.checkpoints import Checkpointer, RandomState, Retention

    torch.manual_seed(7)
    model = torch.nn.Sequential(
        torch.nn.Embedding(64, 256),
        torch.nn.Flatten(),
        torch.nn.Linear(8 * 256, 512),
        torch.nn.GELU(),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(512, 64),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    state: dict[str, Any] = {
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "random": RandomState(),
        "step": 0,
    }

    with Checkpointer(directory, prefix="run", retention=Retention(keep_last=3)) as checkpointer:
        receipt = checkpointer.restore(state)
        report(resumed=state["step"], receipt=str(receipt or "no checkpoint found: step 0"))
        for step in range(state["step"] + 1, STEPS + 1):
            words = torch.randint(0, 64, (32, 8))
            loss = torch.nn.functional.cross_entropy(model(words), words[:, 0])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
            optimizer.step()
            scheduler.step()
            if step % SAVE_EVERY == 0:
                state["step"] = step
                checkpointer.save(state, step=step)  # written in the background
            report(step=step, loss=loss.item())

    digest = hashlib.sha256()
    for tensor in (*model.parameters(), *(slot[name] for slot in optimizer.state.values() for name in sorted(slot))):
        digest.update(tensor.detach().numpy().tobytes())
    report(digest=digest.hexdigest())


def report(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def run(directory: Path, *, kill_after: int | None = None) -> Iterator[dict[str, object]]:
    """Yield the output of one training process, which is killed after step ``kill_after``."""
    command = [sys.executable, __file__, "--train", str(directory)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            facts = json.loads(line)
            yield facts
            if kill_after is not None and facts.get("step") == kill_after:
                break
        else:
            if process.wait() != 0:
                raise SystemExit("the training process failed; its output is above")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def sparkline(losses: dict[int, float]) -> str:
    values = [losses[step] for step in sorted(losses)]
    low, high = min(values), max(values)
    return "".join(BARS[round((value - low) / (high - low or 1) * (len(BARS) - 1))] for value in values)


def demonstrate(console: Console, directory: Path) -> bool:
    console.rule("[bold]1. an uninterrupted run")
    alone: dict[int, float] = {}
    alone_digest = ""
    for facts in run(directory / "alone"):
        if "step" in facts:
            alone[int(str(facts["step"]))] = float(str(facts["loss"]))
        alone_digest = str(facts.get("digest", alone_digest))
    console.print(f"loss  {sparkline(alone)}  {alone[1]:.3f} → {alone[STEPS]:.3f}")

    console.rule(f"[bold]2. the same run, killed with SIGKILL after steps {', '.join(map(str, KILLS))}")
    crashed: dict[int, float] = {}
    crashed_digest = ""
    table = Table("process", "resumed from step", "reached step", "ended by")
    for number, kill_after in enumerate((*KILLS, None), start=1):
        resumed = last = 0
        for facts in run(directory / "crashed", kill_after=kill_after):
            if "resumed" in facts:
                resumed = last = int(str(facts["resumed"]))
                console.print(first_line(str(facts["receipt"])), style="dim", markup=False)
            if "step" in facts:
                last = int(str(facts["step"]))
                crashed[last] = float(str(facts["loss"]))
            crashed_digest = str(facts.get("digest", crashed_digest))
        table.add_row(str(number), str(resumed), str(last), "SIGKILL" if kill_after else "finished")
    console.print(table)
    console.print(f"loss  {sparkline(crashed)}  {crashed[1]:.3f} → {crashed[STEPS]:.3f}")

    console.rule("[bold]3. verify the remaining checkpoints")
    command = [sys.executable, "-m", "chockstone.cli", "checkpoints", "verify", str(directory / "crashed")]
    verified = subprocess.run(command, check=True, capture_output=True, text=True)
    console.print(verified.stdout.rstrip(), markup=False)

    console.rule("[bold]4. flip a bit in the newest checkpoint and restore")
    flip_a_bit(max((directory / "crashed" / "run").glob("*.tar")))
    walked = next(iter(run(directory / "crashed", kill_after=0)))
    console.print(str(walked["receipt"]), markup=False, highlight=False, soft_wrap=True)

    same = alone == crashed and alone_digest == crashed_digest
    console.rule("[bold]result")
    console.print(
        f"uninterrupted  sha256 {alone_digest}",
        f"killed {len(KILLS)} times sha256 {crashed_digest}",
        sep="\n",
        soft_wrap=True,
    )
    console.print(
        "[bold green]weights, moments and every loss are bit-identical[/]" if same else "[bold red]the runs differ[/]"
    )
    return same


def first_line(receipt: str) -> str:
    """What was restored, without the place and the parts."""
    return receipt.partition("\n")[0].partition(" from ")[0]


def flip_a_bit(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))


def draw(console: Console, path: Path) -> None:
    picture = console.export_svg(title="python examples/crash_and_resume.py")
    path.write_text(re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL))  # use the fonts of the reader


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, metavar="DIRECTORY", help="run one training process (internal)")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="also write the report as SVG into this file")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="keep the checkpoints in this directory")
    arguments = parser.parse_args()
    if arguments.train:
        train(arguments.train)
        return 0
    directory = arguments.keep or Path(tempfile.mkdtemp(prefix="chockstone-demo-"))
    console = Console(
        highlight=False, emoji=False, record=arguments.svg is not None, width=104 if arguments.svg else None
    )
    try:
        same = demonstrate(console, directory)
        if arguments.svg:
            draw(console, arguments.svg)
        return 0 if same else 1
    finally:
        if not arguments.keep:
            shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
