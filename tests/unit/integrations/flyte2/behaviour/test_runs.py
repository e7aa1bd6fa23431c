"""Real runs: flyte executes the task in this process, lets it fail, and tries again."""

from __future__ import annotations

import json
import uuid

import flyte
import pytest
from flyte._checkpoint import Checkpoint as NativeCheckpoint

from chockstone.integrations.flyte2 import Flyte2Checkpoint, checkpoint, install, resumable
from support.integrations.flyte2_attempts import Storage

env = flyte.TaskEnvironment(name="chockstone_flyte2_runs")
DIES_AT = (3, 3, 5)  # in the first attempt, in the second before it has saved anything, in the third
_begun: list[int] = []  # the step at which each attempt of the present run began


class Died(RuntimeError):
    pass


def _work(begin: int) -> int:
    """The step to die at, for this attempt."""
    _begun.append(begin)
    return DIES_AT[len(_begun) - 1] if len(_begun) <= len(DIES_AT) else 10


@env.task(retries=3)
@resumable
async def train_directory(steps: int) -> int:
    cp = flyte.ctx().checkpoint
    assert isinstance(cp, Flyte2Checkpoint)
    found = await cp.load()
    step = json.loads((found / "state.json").read_text())["step"] if found else 0
    end = _work(step)
    while step < steps:
        if step == end:
            raise Died(f"at {step}")
        step += 1
        (cp.path / "state.json").write_text(json.dumps({"step": step}))
        await cp.save(cp.path)
    return step


@env.task(retries=3)
def train_bytes(steps: int) -> int:
    cp = checkpoint()
    assert cp is not None
    found = cp.load_sync()
    step = int(found.read_bytes()) if found else 0
    end = _work(step)
    while step < steps:
        if step == end:
            raise Died(f"at {step}")
        step += 1
        cp.save_sync(str(step).encode(), step=step)
    return step


@env.task(retries=3)
async def train_native(steps: int) -> int:
    """Knows nothing of us."""
    cp = flyte.ctx().checkpoint
    assert cp is not None
    found = await cp.load()
    step = int(found.read_bytes()) if found else 0
    end = _work(step)
    while step < steps:
        if step == end:
            raise Died(f"at {step}")
        step += 1
        await cp.save(str(step).encode())
    return step


@pytest.fixture(autouse=True)
def begun(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    _begun.clear()
    monkeypatch.setattr("flyte._internal.controllers._local_controller._MIN_BACKOFF_ON_ERR_SEC", 0.01)
    flyte.init()
    return _begun


def run(task: object, storage: Storage, name: str | None = None) -> object:
    context = flyte.with_runcontext(mode="local", name=name, raw_data_path=storage.base)
    return context.run(task, steps=7).outputs()  # type: ignore[arg-type]


@pytest.mark.parametrize("task", [train_directory, train_bytes], ids=["directory, async", "bytes, sync"])
def test_each_retry_goes_on_where_the_last_save_was(task: object, storage: Storage, begun: list[int]) -> None:
    outputs = run(task, storage)

    assert tuple(outputs) == (7,)  # type: ignore[arg-type]
    assert begun == [0, 3, 3, 5]


def test_a_task_that_knows_nothing_of_us_does_so_too_once_we_are_installed(
    storage: Storage, begun: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flyte.Checkpoint", NativeCheckpoint)
    monkeypatch.setattr("flyte._checkpoint.Checkpoint", NativeCheckpoint)
    install()

    outputs = run(train_native, storage)

    assert tuple(outputs) == (7,)  # type: ignore[arg-type]
    assert begun == [0, 3, 3, 5]


def test_another_run_with_the_same_raw_data_begins_anew(s3: Storage, begun: list[int]) -> None:
    """On disk flyte itself copies what one run left to where the next looks for its previous attempt."""
    run(train_bytes, s3, name=f"first-{uuid.uuid4().hex[:6]}")
    begun.clear()

    run(train_bytes, s3, name=f"second-{uuid.uuid4().hex[:6]}")

    assert begun[0] == 0


def test_a_refusal_ends_the_run_without_more_attempts(
    s3: Storage, begun: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYTE_AWS_SECRET_ACCESS_KEY", "")
    monkeypatch.setenv("FLYTE_AWS_ACCESS_KEY_ID", "")

    with pytest.raises(flyte.errors.RuntimeUserError, match="no valid AWS credentials"):
        run(train_bytes, s3)

    assert begun == []
