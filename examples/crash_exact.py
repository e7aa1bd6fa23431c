"""Kill the server and its worker seven times during training, and get the same bits as without a kill.

Run it: `python examples/crash_exact.py`. It makes a random model, starts the real server, and runs a
script that trains through the unmodified `tinker` SDK: once without interruption, and once while `kill -9`
hits the torch worker, the server, or both. A dead server is started again with the same command. Then the
example compares every loss, the final samples, and each tensor of the final weights and moments. With
`--svg FILE` it plots both runs and the kills.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tinker
from crash_picture import draw
from rich.console import Console
from train_and_sample import ANSWERS, MODEL, Quiz, Server, sparkline

from chockstone.checkpoints import Archive
from chockstone.checkpoints.restoring.diff import compare
from chockstone.checkpoints.stores.file_store import FileStore

STEPS = 48
KILLS = {7: "worker", 14: "server", 21: "both", 28: "both, twice", 35: "worker", 42: "both"}  # after which step
AGAIN_SECONDS = 2.5  # after a kill: the server is recovering


def train(url: str) -> None:
    """The training script. It prints one line of JSON per step and does nothing about crashes."""
    service = tinker.ServiceClient(base_url=url, api_key="tml-local")
    run = service.create_lora_training_client(base_model=MODEL, rank=16, seed=1)
    quiz = Quiz(run.get_tokenizer())
    for step in range(1, STEPS + 1):
        print(json.dumps({"step": step, "loss": quiz.step(run)}), flush=True)
    answers = quiz.ask(run.save_weights_and_get_sampling_client())
    path = run.save_state("final").result().path
    print(json.dumps({"answers": answers, "path": path}), flush=True)
    service.close("success").result()


@dataclass
class Story:
    """The output of one run of the script, with times."""

    losses: dict[int, float] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)  # wait for the loss of each step
    answers: list[str] = field(default_factory=list)
    path: str = ""


class Script:
    """The script in its own process."""

    def __init__(self, url: str, directory: Path) -> None:
        self._errors = directory / "script.err"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, __file__, "--train", url], stdout=subprocess.PIPE, stderr=errors, text=True
            )

    def said(self) -> Iterator[dict[str, Any]]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield json.loads(line)
        if self._process.wait() != 0:
            raise SystemExit(f"the script failed:\n{self._errors.read_text()}")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def watch(console: Console, script: Script, server: Server, kills: dict[int, str]) -> Story:
    """Print the output of the script, and kill the processes of ``kills``."""
    story, last = Story(), time.monotonic()
    for said in script.said():
        if "path" in said:
            story.answers, story.path = said["answers"], said["path"]
            continue
        now = time.monotonic()
        step, story.losses[said["step"]], story.seconds[said["step"]] = said["step"], said["loss"], now - last
        if step == 1 or step % 8 == 0 or step - 1 in kills:
            waited = f"  [dim]# {now - last:.1f} s later" if step - 1 in kills else ""
            console.print(f"step {step:2}  loss {said['loss']:.17g}{waited}")
        last = now
        if step in kills:
            console.print(f"[red]kill -9[/]  {kills[step]}")
            kill(server, kills[step])
    return story


def kill(server: Server, what: str) -> None:
    """Kill, and start the server again. The server itself restarts its worker."""
    if what == "worker":
        server.kill_worker()
        return
    (server.kill_server if what == "server" else server.kill)()
    server.start()
    if what == "both, twice":
        time.sleep(AGAIN_SECONDS)
        server.kill()
        server.start()


def demonstrate(console: Console, directory: Path, server: Server, picture: Path | None) -> bool:
    console.rule("[bold]1. an uninterrupted run")
    make = [sys.executable, "-m", "chockstone.cli", "model", "make", str(directory / MODEL)]
    subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
    server.start()
    alone = watch(console, Script(server.url, directory), server, {})

    console.rule("[bold]2. the same script while its server is killed")
    killed = watch(console, Script(server.url, directory), server, KILLS)

    console.rule("[bold]3. comparison")
    kills = len(KILLS) + sum("twice" in what for what in KILLS.values())
    console.print(f"uninterrupted  {sparkline(alone.losses)}  {alone.losses[1]:.3f} → {alone.losses[STEPS]:.3f}")
    console.print(f"killed         {sparkline(killed.losses)}  {killed.losses[1]:.3f} → {killed.losses[STEPS]:.3f}")
    same = sum(killed.losses[step] == loss for step, loss in alone.losses.items())
    store = FileStore(directory / "data" / "checkpoints")
    with open_archive(store, alone.path) as before, open_archive(store, killed.path) as after:
        difference = compare(before, after)
    show_receipts(console, server, killed.path)
    different = sum(each.what == "tensor" for each in difference.changes)
    longest = max(seconds for step, seconds in killed.seconds.items() if step > 1)  # the first step waits for torch
    verdicts = {
        f"{same} of {STEPS} losses have the same bits": same == STEPS,
        "both answer " + repr(killed.answers[-1]): killed.answers == alone.answers == list(ANSWERS.values()),
        f"{difference.same['tensors']} tensors of weights and moments have the same bits, {different} differ": (
            difference.is_empty
        ),
        f"{kills} kills; the script waited {longest:.1f} s at most": True,
    }
    for text, is_good in verdicts.items():
        console.print(f"[{'green' if is_good else 'red'}]{text}")
    is_exact = all(verdicts.values())
    if picture is not None:
        draw(
            picture,
            title=f"Server killed {kills} times: {'the same bits' if is_exact else 'DIFFERENT BITS'}",
            alone=alone.losses,
            killed=killed.losses,
            kills=KILLS,
            facts={
                f"{same} of {STEPS}": "losses identical",
                f"{difference.same['tensors']} of {difference.same['tensors'] + different}": "tensors identical",
                "0": "errors in the script",
            },
        )
        console.print(f"the picture is {picture}")
    return is_exact


def show_receipts(console: Console, server: Server, path: str) -> None:
    """Print the receipts of the run's recoveries."""
    run_id = path.removeprefix("tinker://").partition("/")[0]
    command = [sys.executable, "-m", "chockstone.cli", "runs", "recoveries", run_id, "--server", server.url]
    shown = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, "COLUMNS": "100"})
    console.print(f"$ chockstone runs recoveries {run_id}", soft_wrap=True)
    console.print(shown.stdout, markup=False, soft_wrap=True)


def open_archive(store: FileStore, path: str) -> Archive:
    run_id, kind, name = path.removeprefix("tinker://").split("/")
    folder = f"{run_id.replace(':', '.')}/{kind}"
    [found] = [entry.name for entry in store.entries(folder) if entry.name.startswith(f"{folder}/{name}.")]
    return Archive(store.open(found))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--svg", type=Path, metavar="FILE", help="also plot both runs into this file")
    parser.add_argument("--train", metavar="URL", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "TINKER_TELEMETRY": "0"}  # the tokenizer is in the model's directory
    if arguments.train:
        train(arguments.train)
        return 0
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started this with it ignored
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    directory = Path(tempfile.mkdtemp(prefix="chockstone-demo-")).resolve()
    server = Server(directory)
    console = Console(highlight=False, emoji=False)
    try:
        return 0 if demonstrate(console, directory, server, arguments.svg) else 1
    except KeyboardInterrupt:
        console.print("interrupted; all files are removed")
        return 130
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C would leave something behind
        server.kill()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
