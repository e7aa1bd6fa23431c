"""What cannot fit is refused with the numbers, and what fits is not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from chockstone.backends.planning import refusals
from chockstone.backends.planning.plan import RunMemory
from chockstone.backends.planning.refusals import available_bytes, check_base, check_run, held_memory
from chockstone.backends.run_spec import RunSpec
from chockstone.backends.training.process_group import SINGLE_PROCESS
from chockstone.backends.training.run import TrainedRun
from chockstone.wire.failures import BadRequest, ServerFailure
from support.backends.saving import make_directory
from support.backends.training import STEP
from support.tiny_models import apply, datum, tiny_base

CPU = torch.device("cpu")


@pytest.mark.parametrize("rank", [8, 0])
def test_a_run_fits_into_what_it_takes_and_not_into_less(rank: int) -> None:
    base, spec = tiny_base(), RunSpec(rank=rank, seed=0)
    needed = RunMemory.of(TrainedRun(base, spec).parameter_count, "adamw").total_bytes

    check_run(base, spec, others=[], free_bytes=needed)
    check_run(base, spec, others=[], free_bytes=None)
    with pytest.raises(BadRequest, match="the run does not fit into memory: weights, gradient and moments need"):
        check_run(base, spec, others=[], free_bytes=needed - 1)


def test_the_refusal_names_a_rank_that_fits() -> None:
    base = tiny_base()
    needed = RunMemory.of(TrainedRun(base, RunSpec(rank=8, seed=0)).parameter_count, "adamw").total_bytes

    with pytest.raises(BadRequest, match="a rank of at most 4"):
        check_run(base, RunSpec(rank=8, seed=0), others=[], free_bytes=needed // 2)

    check_run(base, RunSpec(rank=4, seed=0), others=[], free_bytes=needed // 2)


def test_what_other_runs_were_promised_is_not_free() -> None:
    base, spec = tiny_base(), RunSpec(rank=8, seed=0)
    other = TrainedRun(base, spec)
    needed = RunMemory.of(other.parameter_count, "adamw").total_bytes
    missing = needed - other.held_bytes  # its gradient and moments

    check_run(base, spec, others=[other], free_bytes=needed + missing)
    with pytest.raises(BadRequest, match="beside 1 other run, which may still take"):
        check_run(base, spec, others=[other], free_bytes=needed + missing - 1)


def test_what_runs_hold_and_will_take_is_known() -> None:
    base, spec = tiny_base(), RunSpec(rank=8, seed=0)
    run = TrainedRun(base, spec)
    size = 4 * run.parameter_count

    fresh = held_memory([base], [run], free_bytes=5)
    apply(run, datum(9))
    run.optim_step(STEP)

    assert (fresh.runs_bytes, fresh.promised_bytes, fresh.available_bytes) == (size, 3 * size, 5)
    assert held_memory([base], [run], free_bytes=None).promised_bytes == size, "the gradient is not accumulated"
    assert fresh.base_bytes == base.weight_bytes


def test_a_base_model_is_refused_before_it_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = make_directory(tmp_path / "model", "qwen3", tied=True)
    stored = sum(path.stat().st_size for path in directory.glob("*.safetensors"))
    monkeypatch.setattr(refusals, "available_bytes", lambda _: stored)
    check_base("tiny", directory, ("auto", "auto"), CPU, SINGLE_PROCESS)

    monkeypatch.setattr(refusals, "available_bytes", lambda _: stored // 2 - 4096)
    with pytest.raises(ServerFailure, match=r"model 'tiny' does not fit into memory: its [0-9,]+ parameters need"):
        check_base("tiny", directory, ("auto", "auto"), CPU, SINGLE_PROCESS)
    with pytest.raises(ServerFailure):
        check_base("tiny", directory, ("bfloat16", "auto"), CPU, SINGLE_PROCESS)
    check_base("tiny", directory, ("auto", "4bit"), CPU, SINGLE_PROCESS)


def test_free_swap_is_available(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "meminfo").write_text("MemAvailable: 100 kB\nSwapFree:   7 kB\n")
    monkeypatch.setattr(refusals, "_MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(refusals, "free_memory", lambda _: 1000)

    assert available_bytes(CPU) == 1000 + 7 * 1024
    assert available_bytes(torch.device("meta")) == 1000
