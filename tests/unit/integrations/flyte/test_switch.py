"""A task gets the checkpoint that resumes, by a decorator, a call, or the environment; or a clear refusal."""

from __future__ import annotations

import asyncio
import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import flytekit
import pytest
from flytekit.core import checkpointer, context_manager
from flytekit.core.checkpointer import SyncCheckpoint

from chockstone.checkpoints.errors import CheckpointError
from chockstone.integrations.flyte import FlyteCheckpoint, FlytekitChanged, checkpoint, install, resumable
from chockstone.integrations.flyte.switch import check_host


def present() -> Any:
    return flytekit.current_context().checkpoint


def quiet(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


@flytekit.task
@resumable
def bare(n: int) -> str:
    return f"{type(present()).__name__} {n}"


@flytekit.task
@quiet
@resumable(flyte_native_view=False, sources=("/elsewhere",))
def with_options(n: int) -> str:
    options = present()._options
    return f"{options.flyte_native_view} {options.sources} {n}"


@flytekit.task
@resumable
def both() -> bool:
    return checkpoint() is present() and checkpoint() is checkpoint()


@flytekit.task
def called() -> bool:
    return checkpoint() is checkpoint() and checkpoint() is not present()


@flytekit.task
@resumable
def options_too_late() -> str:
    present().prev_exists()
    try:
        checkpoint(flyte_native_view=False)
    except CheckpointError as error:
        return str(error)
    return "no error"


@flytekit.dynamic
@resumable
def planned(n: int) -> str:
    assert isinstance(present(), FlyteCheckpoint)
    return bare(n=n)


@flytekit.workflow
def workflow(n: int) -> str:
    return bare(n=n)


def test_below_task_the_context_has_ours() -> None:
    assert bare(n=1) == "FlyteCheckpoint 1"
    assert workflow(n=2) == "FlyteCheckpoint 2"
    assert planned(n=3) == "FlyteCheckpoint 3"
    assert flytekit.map_task(bare)(n=[4, 5]) == ["FlyteCheckpoint 4", "FlyteCheckpoint 5"]


def test_afterwards_the_context_is_what_it_was() -> None:
    depth = flytekit.FlyteContextManager.size()

    bare(n=1)

    assert flytekit.FlyteContextManager.size() == depth


def test_options_are_given_to_the_decorator() -> None:
    assert with_options(n=1) == "False ('/elsewhere',) 1"


def test_options_that_are_none_are_refused_where_they_stand() -> None:
    with pytest.raises(TypeError, match="flyte_native_wiev"):
        resumable(flyte_native_wiev=False)


def test_there_is_one_checkpoint_however_it_is_come_by() -> None:
    assert both()
    assert called()


def test_options_come_before_use() -> None:
    assert "in use already" in options_too_late()


def test_the_interface_of_the_task_is_that_of_the_function() -> None:
    assert list(bare.python_interface.inputs) == ["n"]
    assert bare.name.endswith("test_switch.bare")


def test_a_coroutine_stays_one() -> None:
    @resumable
    async def waits() -> int:
        return 7

    assert inspect.iscoroutinefunction(waits)
    assert asyncio.run(waits()) == 7


def test_above_task_it_says_where_it_belongs() -> None:
    with pytest.raises(TypeError, match="below @task"):
        resumable(bare)


def test_outside_of_a_task_nothing_is_replaced() -> None:
    @resumable
    def plain() -> int:
        return 7

    assert plain() == 7


class TestHost:
    @pytest.fixture(autouse=True)
    def _restored(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(checkpointer, "SyncCheckpoint", SyncCheckpoint)
        monkeypatch.setattr(context_manager, "SyncCheckpoint", SyncCheckpoint)

    def test_installed_it_stands_in_everywhere(self) -> None:
        import flytekit.bin.entrypoint as entrypoint

        kept = entrypoint.SyncCheckpoint
        try:
            install()
            install()

            assert checkpointer.SyncCheckpoint is FlyteCheckpoint
            assert context_manager.SyncCheckpoint is FlyteCheckpoint
            assert entrypoint.SyncCheckpoint is FlyteCheckpoint
            assert bare(n=1) == "FlyteCheckpoint 1"
            assert with_options(n=1).startswith("False")
        finally:
            entrypoint.SyncCheckpoint = kept

    @pytest.mark.parametrize(
        "changed",
        [
            lambda self, checkpoint_dest, checkpoint_src=None, region=None: None,
            lambda self, checkpoint_dest: None,
            lambda self, dest, src=None: None,
            lambda self, checkpoint_dest, checkpoint_src: None,
            lambda self, *, checkpoint_dest, checkpoint_src=None: None,
        ],
        ids=["another", "fewer", "renamed", "no default", "keywords only"],
    )
    def test_another_constructor_is_refused_with_what_to_do(
        self, monkeypatch: pytest.MonkeyPatch, changed: Callable[..., None]
    ) -> None:
        monkeypatch.setattr(SyncCheckpoint, "__init__", changed)

        for switch in (check_host, install, lambda: resumable(lambda: None), checkpoint):
            with pytest.raises(FlytekitChanged, match="flytekit>=1.14,<2"):
                switch()

    def test_a_module_that_has_no_checkpoint_any_more(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(context_manager, "SyncCheckpoint")

        with pytest.raises(FlytekitChanged, match="context_manager"):
            install()


@pytest.mark.parametrize(("value", "expected"), [("1", "True True"), ("0", "False False"), ("", "False False")])
def test_the_entry_point_acts_only_when_it_is_asked_to(value: str, expected: str) -> None:
    code = (
        "import sys, flytekit.core.checkpointer as c; "
        "print(c.SyncCheckpoint.__module__.startswith('chockstone'), 'chockstone.checkpoints' in sys.modules)"
    )
    environ = {**os.environ, "CHOCKSTONE_FLYTE_AUTO": value}

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ, timeout=120)

    assert done.stdout.strip() == expected, done.stderr


def test_without_flytekit_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['flytekit'] = None; from chockstone.integrations.flyte import resumable"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)

    assert "pip install 'chockstone[flyte]'" in done.stderr
