"""What a model takes is known from its shapes: as much as it takes with its numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from chockstone.backends.planning.live_bytes import LiveBytes
from chockstone.backends.planning.outline import ModelOutline
from chockstone.backends.run_spec import Recomputed, RunSpec
from chockstone.backends.training.base_model import load_base_model
from chockstone.backends.training.run import TrainedRun
from chockstone.wire.failures import ServerFailure
from support.backends.saving import make_directory
from support.tiny_models import apply, datum

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_directory(tmp_path_factory.mktemp("model"), "qwen3", tied=True)


def outlined(directory: Path) -> ModelOutline:
    return ModelOutline(directory, dtype="auto", device="cpu")


def test_the_base_model_takes_what_its_shapes_say(directory: Path) -> None:
    outline, base = outlined(directory), load_base_model("tiny", directory)

    assert outline.parameters == sum(parameter.numel() for parameter in base.model.parameters())
    assert outline.base_bytes == sum(t.nbytes for t in (*base.model.parameters(), *base.model.buffers()))
    assert outline.dtype == "float32"
    assert ModelOutline(directory, dtype="bfloat16", device="cpu").base_bytes < outline.base_bytes


@pytest.mark.parametrize("rank", [4, 0])
def test_a_run_trains_as_many_parameters(directory: Path, rank: int) -> None:
    spec = RunSpec(rank=rank, seed=0)

    planned, real = outlined(directory).make_run(spec), TrainedRun(load_base_model("tiny", directory), spec)

    assert planned.parameter_count == real.parameter_count


@pytest.mark.parametrize("mode", ["off", "on"])
@pytest.mark.parametrize(("sequences", "tokens"), [(6, 60), (12, 40)])
def test_a_pass_takes_what_was_predicted(directory: Path, sequences: int, tokens: int, mode: str) -> None:
    spec, outline = RunSpec(rank=8, seed=0), outlined(directory)
    run = TrainedRun(load_base_model("tiny", directory, activation_checkpointing=mode), spec)  # type: ignore[arg-type]  # a literal
    data = [datum(tokens, seed=seed) for seed in range(sequences)]
    apply(run, *data)  # warms up

    with LiveBytes(CPU) as live:
        apply(run, *data)

    predicted = outline.tensor_bytes(outline.make_run(spec), sequences, tokens, "all" if mode == "on" else "none")
    assert predicted == pytest.approx(live.peak, rel=0.3)  # tiny tensors; benchmarks/models has the real figure


def test_more_tokens_take_more_and_recomputation_takes_less(directory: Path) -> None:
    outline = outlined(directory)
    run = outline.make_run(RunSpec(rank=4, seed=0))

    def needed(tokens: int, recomputed: Recomputed = "none") -> int:
        return outline.pass_bytes(run, sequences=1, tokens=tokens, recomputed=recomputed)

    assert needed(64) < needed(1024) < needed(100_000)
    assert needed(100_000, "all") < needed(100_000)


def test_short_passes_leave_gaps_in_the_memory_of_a_cpu(directory: Path) -> None:
    outline = outlined(directory)
    run = outline.make_run(RunSpec(rank=4, seed=0))

    def share(tokens: int) -> float:
        resident = outline.pass_bytes(run, sequences=1, tokens=tokens, recomputed="none")
        return resident / outline.tensor_bytes(run, 1, tokens, "none")

    assert share(2048) == pytest.approx(1.3, rel=0.01)
    assert share(2049) == 1


def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ServerFailure, match="no model can be planned from"):
        ModelOutline(tmp_path, dtype="auto", device="cpu")
