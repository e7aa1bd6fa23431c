"""Train a small model through the Tinker SDK, kill the server, resume, and sample from the model.

Run it: `python examples/train_and_sample.py`. It makes a random model, starts the real server, and
trains with the unmodified `tinker` SDK until the model has learnt three answers. In between it kills the
server with SIGKILL and starts it again; the run continues. A second run starts from a checkpoint and
repeats some of the steps with bit-identical losses. At the end the example lists, downloads and deletes
checkpoints, and compares the lists with the disk. It needs no network.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import tinker
from rich.console import Console
from rich.table import Table
from tinker import types

MODEL = "tiny"
ANSWERS = {
    "What is a chockstone?": "A rock wedged in a crack that holds a climber's fall.",
    "What does a checkpoint promise?": "Once it was returned, it always loads.",
    "What is a lane?": "The order in which one run's operations happen.",
}
SAVED, KILLED, STEPS = 40, 45, 60  # the steps of the checkpoint, of the kill, and of the end
ADAM = types.AdamParams(learning_rate=4e-3)
BARS = "▁▂▃▄▅▆▇█"


class Server:
    """`chockstone serve` in its own process, on the same port at each start."""

    def __init__(self, directory: Path) -> None:
        self.url = ""
        self._directory = directory
        self._log = directory / "server.log"
        self._port = 0  # a free port at the first start
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Start the server and return the seconds until it answers. Torch may still be loading."""
        started = time.monotonic()
        command = [sys.executable, "-m", "chockstone.cli", "serve", f"--model={MODEL}={self._directory / MODEL}"]
        command += [f"--data={self._directory / 'data'}", f"--port={self._port}", "--threads=1"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                cwd=self._directory,
                env={name: value for name, value in os.environ.items() if not name.startswith("CHOCKSTONE_")},
                start_new_session=True,  # Ctrl-C goes to this script, which then ends the server
            )
        while (said := re.search(r"TINKER_BASE_URL=(\S+:(\d+))\n", self._log.read_text())) is None:
            if self._process.poll() is not None or time.monotonic() - started > 60:
                raise SystemExit(f"the server did not start. Its output:\n{self._log.read_text()}")
            time.sleep(0.01)
        self.url, self._port = said[1], int(said[2])
        return time.monotonic() - started

    def kill(self) -> None:
        """Send SIGKILL to the server, to its worker and to the spare worker."""
        if self._process is None or self._process.poll() is not None:
            return
        workers = self._workers()
        self._process.kill()
        _kill(workers)
        self._process.wait()

    def kill_server(self) -> None:
        """Send SIGKILL to the server only. Its worker ends by itself."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def kill_worker(self) -> None:
        """Send SIGKILL to the worker only. Its spare replaces it, or the server starts another one."""
        _kill(self._workers()[:1])

    def _workers(self) -> list[int]:
        """Process ids of the worker and its spare, the oldest first."""
        assert self._process is not None
        return [*map(int, Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split())]


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Quiz:
    """The questions and answers as a batch to train on. The loss counts the tokens of the answers only."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.batch = [self._datum(question, answer) for question, answer in ANSWERS.items()]
        self.answer_tokens = sum(sum(datum.loss_fn_inputs["weights"].data) for datum in self.batch)

    def step(self, run: tinker.TrainingClient) -> float:
        """Make one optimizer step, and return the mean loss per token before it."""
        passed = run.forward_backward(self.batch, "cross_entropy")
        stepped = run.optim_step(ADAM)  # queued behind it
        stepped.result()
        return float(passed.result().metrics["loss:sum"] / self.answer_tokens)

    def ask(self, sampler: tinker.SamplingClient, *, temperature: float = 0.0) -> list[str]:
        params = types.SamplingParams(max_tokens=48, temperature=temperature, seed=1)
        asked = [
            sampler.sample(types.ModelInput.from_ints(self._prompt(question)), num_samples=1, sampling_params=params)
            for question in ANSWERS
        ]
        return [
            str(self._tokenizer.decode(future.result().sequences[0].tokens, skip_special_tokens=True))
            for future in asked
        ]

    def _prompt(self, question: str) -> list[int]:
        return self._tokens([{"role": "user", "content": question}], add_generation_prompt=True)

    def _datum(self, question: str, answer: str) -> types.Datum:
        prompt = self._prompt(question)
        text = self._tokens([{"role": "user", "content": question}, {"role": "assistant", "content": answer}])
        weights = [0.0] * (len(prompt) - 1) + [1.0] * (len(text) - len(prompt))
        return types.Datum(
            model_input=types.ModelInput.from_ints(text[:-1]),
            loss_fn_inputs={"target_tokens": text[1:], "weights": weights},  # type: ignore[dict-item]  # converted
        )

    def _tokens(self, messages: list[dict[str, str]], **options: bool) -> list[int]:
        return list(self._tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False, **options))


def demonstrate(console: Console, directory: Path, server: Server) -> bool:
    started = time.monotonic()
    console.rule("[bold]1. make a model and start a server")
    make = [sys.executable, "-m", "chockstone.cli", "model", "make", str(directory / MODEL)]
    subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
    console.print(f"$ chockstone model make ./{MODEL}           [dim]# a million random parameters")
    seconds = server.start()
    console.print(f"$ chockstone serve --model {MODEL}=./{MODEL}   [dim]# answers after {seconds:.1f} s")

    console.rule("[bold]2. train through the tinker SDK")
    with console.status("waiting for torch"):
        service = tinker.ServiceClient(base_url=server.url, api_key="tml-local")
        run = service.create_lora_training_client(base_model=MODEL, rank=16, seed=1)
        quiz = Quiz(run.get_tokenizer())
        untrained = quiz.ask(service.create_sampling_client(base_model=MODEL), temperature=1.0)
    losses = {1: quiz.step(run)}
    console.print(
        f"step  1  loss {losses[1]:.3f}  [dim]# first step, {time.monotonic() - started:.1f} s after the start"
    )
    for step in range(2, SAVED + 1):
        losses[step] = quiz.step(run)
        if step % 10 == 0:
            console.print(f"step {step:2}  loss {losses[step]:.3f}")
    path = run.save_state(f"step-{SAVED}").result().path
    console.print(f"saved {path}", soft_wrap=True)
    for step in range(SAVED + 1, KILLED + 1):
        losses[step] = quiz.step(run)

    console.rule(f"[bold]3. SIGKILL after step {KILLED}, restart, resume")
    server.kill()
    with console.status("restarting"):
        seconds = server.start()
        losses[KILLED + 1] = quiz.step(run)
    console.print(f"the server answers again after {seconds:.1f} s; the run continues with step {KILLED + 1}")
    for step in range(KILLED + 2, STEPS + 1):
        losses[step] = quiz.step(run)
    second = service.create_training_client_from_state_with_optimizer(path)
    console.print(f"a second run starts from the checkpoint of step {SAVED}, with its optimizer")
    resumed = {step: quiz.step(second) for step in range(SAVED + 1, STEPS + 1)}
    table = Table("step", "loss, first run", "loss, second run", "")
    for step in range(KILLED - 2, KILLED + 3):
        verdict = "[green]same bits" if resumed[step] == losses[step] else "[red]differs"
        table.add_row(str(step), f"{losses[step]:.17g}", f"{resumed[step]:.17g}", verdict)
    console.print(table)
    is_exact = all(resumed[step] == losses[step] for step in resumed)

    console.rule("[bold]4. sample")
    console.print(f"loss  {sparkline(losses)}  {losses[1]:.3f} → {losses[STEPS]:.3f}")
    learnt = quiz.ask(run.save_weights_and_get_sampling_client())
    for question, before, after in zip(ANSWERS, untrained, learnt, strict=True):
        console.print(f"[bold]{question}[/]")
        noise = "".join(character if "!" <= character <= "~" else "·" for character in before[:48])
        console.print(f"  untrained  {noise!r} …", markup=False)
        console.print(f"  trained    {after!r}", markup=False)

    console.rule("[bold]5. save, list, download, delete")
    rest = tinker.RestClient(base_url=server.url, api_key="tml-local")
    lists_agree = check_lists(console, second, rest, directory / "data" / "checkpoints")
    service.close("success").result()

    has_learnt = losses[STEPS] < losses[1] / 10 and learnt == list(ANSWERS.values())
    console.rule("[bold]result")
    console.print(
        "[green]the model learnt all three answers" if has_learnt else "[red]the model did not learn the answers"
    )
    console.print(
        "[green]both runs are bit-identical, before the kill and after" if is_exact else "[red]the runs differ"
    )
    console.print(
        "[green]deleted checkpoints left the lists and the disk" if lists_agree else "[red]lists and disk differ"
    )
    console.print(f"{time.monotonic() - started:.0f} s in total")
    return has_learnt and is_exact and lists_agree


def check_lists(console: Console, run: tinker.TrainingClient, rest: tinker.RestClient, store: Path) -> bool:
    """Save five checkpoints, download an adapter, delete two. Returns whether lists and disk always agreed."""

    def show(what: str) -> tuple[set[str], set[str]]:
        listed = {each.checkpoint_id for each in rest.list_checkpoints(run.model_id).result().checkpoints}
        folder = store / run.model_id.replace(":", ".")
        on_disk = {file.relative_to(folder).as_posix().partition(".")[0] for file in folder.rglob("*.tar")}
        on_disk = {name for name in on_disk if not name.startswith("recovery/")}  # the server's own recovery archives
        console.print(f"{what:<24} {' '.join(sorted(listed))}", soft_wrap=True)
        return listed, on_disk

    for number in range(1, 6):
        run.save_state(str(number)).result()
    before, stored_before = show("saved")
    adapter = run.save_weights_external("adapter").result().path
    for name, url in rest.get_external_weights_urls(adapter).result().urls.items():
        with urllib.request.urlopen(url, timeout=60) as answer:
            console.print(f"downloaded               {name}, {len(answer.read()):,} bytes")
    rest.delete_checkpoint_from_tinker_path(adapter).result()
    for number in (2, 4):
        rest.delete_checkpoint(run.model_id, f"weights/{number}").result()
    after, stored_after = show("deleted 2 and 4")
    return (before, after) == (stored_before, stored_after) and after == {f"weights/{number}" for number in (1, 3, 5)}


def sparkline(losses: dict[int, float]) -> str:
    values = [losses[step] for step in sorted(losses)]
    low, high = min(values), max(values)
    return "".join(BARS[round((value - low) / (high - low or 1) * (len(BARS) - 1))] for value in values)


def draw(console: Console, path: Path) -> None:
    picture = console.export_svg(title="make demo")
    path.write_text(re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL))  # use the fonts of the reader


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--svg", type=Path, metavar="FILE", help="also write the report as SVG into this file")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="keep all files in this new directory")
    arguments = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"  # the tokenizer is in the model's directory
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started this with it ignored
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if arguments.keep:
        arguments.keep.mkdir(parents=True)
    directory = (arguments.keep or Path(tempfile.mkdtemp(prefix="chockstone-demo-"))).resolve()
    console = Console(
        highlight=False, emoji=False, record=arguments.svg is not None, width=104 if arguments.svg else None
    )
    server = Server(directory)
    try:
        is_good = demonstrate(console, directory, server)
        if arguments.svg:
            draw(console, arguments.svg)
        return 0 if is_good else 1
    except KeyboardInterrupt:
        console.print("interrupted; all files are removed")
        return 130
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C would leave something behind
        server.kill()
        if not arguments.keep:
            shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
