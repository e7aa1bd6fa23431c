"""One line switches, and a flyte that is not as expected is refused instead of half switched."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import flyte
import pytest
from flyte._checkpoint import Checkpoint as NativeCheckpoint
from flyte._context import internal_ctx
from flyte.models import ActionID, CheckpointPaths, RawDataPath, TaskContext
from flyte.report import Report

from chockstone.integrations.flyte2 import Flyte2Checkpoint, FlyteSdkChanged, checkpoint, install, resumable, switch
from chockstone.integrations.flyte2.switch import install_if_asked

ROOT = Path(__file__).parents[4]


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("flyte.Checkpoint", NativeCheckpoint)
    monkeypatch.setattr("flyte._checkpoint.Checkpoint", NativeCheckpoint)
    switch._check_host.cache_clear()
    yield
    switch._check_host.cache_clear()


@pytest.fixture
def task(tmp_path: Path) -> Iterator[TaskContext]:
    context = TaskContext(
        action=ActionID(name="a0", run_name="r1", project="p", domain="d"),
        version="v1",
        raw_data_path=RawDataPath(path=str(tmp_path)),
        output_path=str(tmp_path),
        run_base_dir=str(tmp_path),
        report=Report(name="t"),
        checkpoint_paths=CheckpointPaths(checkpoint_path=f" {tmp_path}/out ", prev_checkpoint_path=f"{tmp_path}/prev"),
    )
    with internal_ctx().replace_task_context(context):
        yield context


def test_the_checkpoint_of_the_task_is_ours_and_the_same_everywhere(task: TaskContext, tmp_path: Path) -> None:
    ours = checkpoint()

    assert isinstance(ours, Flyte2Checkpoint)
    assert ours is checkpoint() is flyte.ctx().checkpoint
    assert ours.remote_destination == f"{tmp_path}/out"
    assert ours.remote_source == f"{tmp_path}/prev"
    assert ours._identity == {"project": "p", "domain": "d", "run": "r1", "action": "a0"}


def test_one_that_flyte_has_made_already_is_replaced(task: TaskContext) -> None:
    assert type(task.checkpoint) is NativeCheckpoint

    assert checkpoint() is task.checkpoint
    assert type(task.checkpoint) is Flyte2Checkpoint


def test_outside_of_a_task_there_is_none() -> None:
    assert checkpoint() is None


async def test_a_decorated_function_finds_ours(task: TaskContext) -> None:
    @resumable
    def sync_task(x: int) -> tuple[int, type]:
        return x, type(flyte.ctx().checkpoint)

    @resumable(legacy="reject")
    async def async_task(x: int, *, y: int = 2) -> tuple[int, Any]:
        return x + y, flyte.ctx().checkpoint

    assert sync_task(1) == (1, Flyte2Checkpoint)
    task.data.clear()
    total, ours = await async_task(1)
    assert total == 3
    assert ours._rules.legacy == "reject"


def test_a_decorated_function_looks_as_it_did() -> None:
    def train(x: int, y: str = "a") -> float:
        """Trains."""
        return 0.0

    async def train_async(x: int) -> float:
        return 0.0

    decorated = resumable(train)

    assert (decorated.__name__, decorated.__module__, decorated.__doc__) == ("train", __name__, "Trains.")
    assert inspect.signature(decorated) == inspect.signature(train)
    assert not inspect.iscoroutinefunction(decorated)
    assert inspect.iscoroutinefunction(resumable(train_async))
    task = flyte.TaskEnvironment(name="env").task(decorated)
    assert set(task.native_interface.inputs) == {"x", "y"}
    assert task.name == "env.train"


def test_a_decorated_function_runs_outside_of_a_task() -> None:
    @resumable
    def train(x: int) -> int:
        return x + 1

    assert train(1) == 2


def test_a_decorated_function_can_be_sent_to_worker_processes() -> None:
    @resumable(flyte_native_view=False)
    def train(x: int) -> int:
        return x + 1

    assert cloudpickle.loads(cloudpickle.dumps(train))(1) == 2


def test_above_the_task_the_decorator_says_where_it_belongs() -> None:
    task = flyte.TaskEnvironment(name="env").task(lambda: None)

    with pytest.raises(TypeError, match="below @env.task"):
        resumable(task)


def test_installed_it_is_what_flyte_makes(task: TaskContext) -> None:
    install()
    install()

    assert type(flyte.ctx().checkpoint) is Flyte2Checkpoint
    assert flyte.Checkpoint is Flyte2Checkpoint
    assert flyte.ctx().checkpoint._identity["run"] == "r1"  # type: ignore[union-attr]


def test_the_entry_point_does_nothing_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    install_if_asked()
    assert flyte.Checkpoint is NativeCheckpoint

    monkeypatch.setenv("CHOCKSTONE_FLYTE_AUTO", "1")
    install_if_asked()
    assert flyte.Checkpoint is Flyte2Checkpoint


def test_the_entry_point_is_where_the_package_says() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    module, _, name = project["entry-points"]["flyte.plugins.types"]["chockstone"].partition(":")

    assert (module, name) == (switch.__name__, install_if_asked.__name__)


@pytest.mark.parametrize(("asked", "module"), [("1", "chockstone"), ("", "flyte")])
def test_flyte_itself_finds_the_entry_point(asked: str, module: str, tmp_path: Path) -> None:
    """As installed with the package: beside it stands what the project file says."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    entry = project["entry-points"]["flyte.plugins.types"]["chockstone"]
    folder = tmp_path / "stand_in-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: stand-in\nVersion: 1\n")
    (folder / "entry_points.txt").write_text(f"[flyte.plugins.types]\nstand-in = {entry}\n")
    code = "import flyte; flyte.init(); print(flyte.Checkpoint.__module__.split('.')[0])"
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT / 'src'}", "CHOCKSTONE_FLYTE_AUTO": asked}

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environ)

    assert done.stdout.strip() == module


def test_the_entry_point_is_cheap_when_not_asked() -> None:
    code = (
        "from chockstone.integrations.flyte2.switch import install_if_asked; install_if_asked(); import sys;"
        "print([name for name in ('flyte', 'numpy', 'torch', 'flytekit') if name in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_the_package_needs_neither_torch_nor_the_other_flyte() -> None:
    code = (
        "import chockstone.integrations.flyte2.checkpointer, sys;"
        "print([name for name in ('torch', 'flytekit') if name in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


class OtherParameters(NativeCheckpoint):
    __module__ = "flyte._checkpoint"

    def __init__(self, checkpoint_dest: str, checkpoint_src: str | None = None, retries: int = 3) -> None:
        super().__init__(checkpoint_dest, checkpoint_src)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("flyte._checkpoint.Checkpoint", OtherParameters, "retries"),
        ("flyte._checkpoint.Checkpoint", None, "is gone"),
        ("flyte._checkpoint.CHECKPOINT_CACHE_KEY", "other", "another name"),
        ("flyte._checkpoint.Checkpoint.load_sync", None, "load_sync"),
        ("flyte.models.TaskContext.checkpoint", None, "no flyte.ctx"),
    ],
)
def test_another_flyte_is_refused_with_what_to_do(
    name: str, value: object, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(name, value)

    with pytest.raises(FlyteSdkChanged, match=words) as caught:
        resumable(lambda: None)
    assert "Nothing was switched" in str(caught.value)
    with pytest.raises(FlyteSdkChanged):
        checkpoint()
    with pytest.raises(FlyteSdkChanged):
        install()


def test_a_refusal_that_flyte_swallows_is_raised_where_the_task_asks(
    task: TaskContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHOCKSTONE_FLYTE_AUTO", "1")
    monkeypatch.setattr("flyte._checkpoint.CHECKPOINT_CACHE_KEY", "other")
    with pytest.raises(FlyteSdkChanged):
        install_if_asked()

    with pytest.raises(FlyteSdkChanged, match="could not be switched"):
        _ = flyte.ctx().checkpoint
