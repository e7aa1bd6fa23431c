"""Co-batching: what passes of several runs on one base model would gain from sharing a pass, and whether bits stay.

``python benchmarks/models/co_batching.py [--quick]`` prints three tables, without a server:

gain       A pass of several runs' sequences together against the same passes one after another: plain forward and
           backward through a frozen base in float32. This is the most that co-batching can gain.
bits       Whether a run's numbers are bit for bit those that it has alone: of the whole model, and of its operations.
tiles      The same when every product is computed in tiles of a fixed number of rows, which keeps bits whatever else is
           in the batch; and what is left of the gain.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

if __package__ in (None, ""):  # the repository goes on the path, and this directory comes off it
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch
import torch.nn.functional as F  # the name everyone reads
from transformers import AutoModelForCausalLM, PreTrainedModel

from chockstone.cli.models.making import make_model

RUNS = 4
SHAPES = ((4, 64), (3, 37), (1, 16))  # sequences of each run, and tokens of each sequence
MODELS = {"1M": 1_000_000, "125M": 125_000_000}
TILE = 64  # rows of a product


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks/models/co_batching.py", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the small model and few repeats: some seconds")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="default: %(default)s")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    print(f"{RUNS} runs, {chosen.threads} threads, torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as directory:
        for name, parameters in MODELS.items():
            if chosen.quick and name != "1M":
                continue
            made = make_model(Path(directory) / name, architecture="qwen3", parameters=parameters)
            model = AutoModelForCausalLM.from_pretrained(made.directory, dtype=torch.float32)
            model.requires_grad_(requires_grad=False)
            for shape in SHAPES:
                report(name, model, shape, repeats=2 if chosen.quick else 5)
    return 0


def report(name: str, model: PreTrainedModel, shape: tuple[int, int], *, repeats: int) -> None:
    sequences, length = shape
    tokens = torch.randint(0, model.config.vocab_size, (RUNS * sequences, length))
    alone = [tokens[run * sequences : (run + 1) * sequences] for run in range(RUNS)]
    print(f"\n{name}, {sequences} × {length} tokens of each run: gain")
    times = measure(
        {
            "one after another": lambda: [passed(model, one) for one in alone],
            "together": lambda: passed(model, tokens),
        },
        repeats=repeats,
    )
    show(times)
    print("bits of the first run, alone and together")
    print_equality("whole model", passed(model, alone[0]), passed(model, tokens), rows=sequences)
    for operation, function in operations(model, shape).items():
        batch = function.__defaults__[0] if function.__defaults__ else None
        assert isinstance(batch, torch.Tensor), "each operation has its input"
        rows = len(batch) // RUNS
        print_equality(operation, [function(batch[:rows].clone())], [function(batch)], rows=rows)
    print(f"products in tiles of {TILE} rows")
    with tiled(model):
        print_equality("whole model", passed(model, alone[0]), passed(model, tokens), rows=sequences)
        tiles = measure({"together, tiles": lambda: passed(model, tokens)}, repeats=repeats)
    show(times | tiles)


def passed(model: PreTrainedModel, tokens: torch.Tensor) -> list[torch.Tensor]:
    """Log-probabilities, and gradients of the embeddings: what low-rank products of a run are computed from."""
    embedded = model.get_input_embeddings()(tokens).detach().requires_grad_(requires_grad=True)
    logits = model(inputs_embeds=embedded, use_cache=False).logits
    logprobs = -F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    torch.autograd.backward(-logprobs.sum())
    assert embedded.grad is not None, "it was just computed"
    return [logprobs.detach().view(len(tokens), -1), embedded.grad]


def operations(model: PreTrainedModel, shape: tuple[int, int]) -> dict[str, Callable[..., torch.Tensor]]:
    """Each with the input of all runs as its default argument, one row per token."""
    config = model.config
    torch.manual_seed(0)
    sequences, length = shape
    rows, heads = RUNS * sequences * length, config.num_attention_heads
    hidden, wide = torch.randn(rows, config.hidden_size), torch.randn(rows, config.intermediate_size)
    queries = torch.randn(RUNS * sequences, heads, length, config.hidden_size // heads)
    up, down = model.model.layers[0].mlp.up_proj.weight, model.model.layers[0].mlp.down_proj.weight
    head = model.lm_head.weight
    return {
        f"product {tuple(up.shape)}": lambda x=hidden: x @ up.t(),
        f"its backward {tuple(up.shape)}": lambda x=wide: x @ up,
        f"product {tuple(down.shape)}": lambda x=wide: x @ down.t(),
        f"product {tuple(head.shape)}": lambda x=hidden: x @ head.t(),
        "rms_norm": lambda x=hidden: F.rms_norm(x, x.shape[-1:]),
        "silu": lambda x=wide: F.silu(x),
        "softmax": lambda x=hidden: x.softmax(-1),
        "attention": lambda x=queries: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    }


@contextmanager
def tiled(model: PreTrainedModel) -> Iterator[None]:
    """Compute every linear layer in tiles of TILE rows: the shape, and so the kernel, is always the same."""
    linears = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    for linear in linears:
        linear.forward = TiledProduct(linear)  # type: ignore[method-assign]  # undone below
    try:
        yield
    finally:
        for linear in linears:
            del linear.forward  # the method of the class is visible again


class TiledProduct:
    def __init__(self, linear: torch.nn.Linear) -> None:
        self._weight, self._bias = linear.weight, linear.bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1, x.shape[-1])
        padded = F.pad(flat, (0, 0, 0, -len(flat) % TILE))
        made = torch.cat([F.linear(tile, self._weight, self._bias) for tile in padded.split(TILE)])
        return made[: len(flat)].view(*x.shape[:-1], -1)


def measure(turns: dict[str, Callable[[], object]], *, repeats: int) -> dict[str, tuple[float, float]]:
    """Median seconds and CPU-seconds of each; they alternate, after a round that does not count."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in turns}
    for number in range(repeats + 1):
        for name, turn in turns.items():
            started, cpu = perf_counter(), process_time()
            turn()
            if number:
                taken[name].append((perf_counter() - started, process_time() - cpu))
    return {name: (median(s for s, _ in each), median(c for _, c in each)) for name, each in taken.items()}


def show(times: dict[str, tuple[float, float]]) -> None:
    first, first_cpu = next(iter(times.values()))
    for name, (seconds, cpu) in times.items():
        print(
            f"  {name:20s} {seconds * 1e3:9.1f} ms {first / seconds:5.2f}×   "
            f"CPU {cpu * 1e3:9.1f} ms {first_cpu / max(cpu, 1e-9):5.2f}×"
        )


def print_equality(name: str, alone: list[torch.Tensor], together: list[torch.Tensor], *, rows: int) -> None:
    pairs = [(one, all_[:rows]) for one, all_ in zip(alone, together, strict=True)]
    same = all(torch.equal(one, other) for one, other in pairs)
    apart = max(float((one - other).abs().max()) for one, other in pairs)
    print(f"  {name:28s} {'bit-equal' if same else f'differs by up to {apart:.1e}'}")


if __name__ == "__main__":
    sys.exit(main())
