from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from chockstone.backends.supervision import cuda
from chockstone.backends.supervision.cuda import read_build, visible_gpus, why_no_cuda, why_no_device

DRIVER = """
int cuInit(unsigned flags) {{ return {init}; }}
int cuDeviceGetCount(int *count) {{ *count = {count}; return 0; }}
"""


def compiled(directory: Path, *, init: int, count: int) -> str:
    """A driver library that answers so."""
    source, library = directory / "driver.c", directory / "libcuda.so.1"
    source.write_text(DRIVER.format(init=init, count=count))
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    return str(library)


def test_the_answer_is_that_of_torch() -> None:
    assert (why_no_cuda() is None) == torch.cuda.is_available()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("__version__ = '2.9.0+cpu'\ncuda: Optional[str] = None\nhip: Optional[str] = None\n", "torch 2.9.0+cpu is a"),
        ("__version__ = '2.9.0'\ncuda = '12.8'\n", "there is no NVIDIA driver"),
        ("__version__ = '2.9.0'\ncuda = None\nhip = '6.4'\n", None),
    ],
)
def test_the_build_of_torch_is_read_from_its_version_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, reason: str | None
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise AssertionError('imported')")
    (tmp_path / "torch/version.py").write_text(text)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(cuda, "_DRIVER", "no-such-driver.so")

    found = why_no_cuda()

    assert found is None if reason is None else found is not None and found.startswith(reason)


@pytest.mark.parametrize("content", [None, "this is (not Python", "\0"])
def test_a_build_that_cannot_be_read_is_left_to_the_worker(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "version.py").write_text(content)

    assert read_build(tmp_path / "version.py")["cuda"]


@pytest.mark.parametrize(
    ("init", "count", "reason"),
    [
        (0, 1, None),
        (0, 0, "the NVIDIA driver finds no device; CUDA_VISIBLE_DEVICES may hide it"),
        (100, 0, "the NVIDIA driver finds no device; CUDA_VISIBLE_DEVICES may hide it"),
        (999, 0, "the NVIDIA driver does not work (CUDA error 999)"),
    ],
)
def test_the_driver_is_asked_for_devices(tmp_path: Path, init: int, count: int, reason: str | None) -> None:
    assert why_no_device(compiled(tmp_path, init=init, count=count)) == reason


@pytest.mark.parametrize(
    ("visible", "found"), [(None, ["0", "1"]), ("3, 5", ["3", "5"]), ("GPU-a,GPU-b,-1", ["GPU-a", "GPU-b"])]
)
def test_gpus_are_named_as_the_environment_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, found: list[str]
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    driver = compiled(tmp_path, init=0, count=2)

    assert visible_gpus("auto", driver) == found
    assert visible_gpus("cpu", driver) == []


def test_without_a_driver_or_a_device_there_are_no_gpus(tmp_path: Path) -> None:
    assert visible_gpus("auto", "no-such-driver.so") == []
    assert visible_gpus("auto", compiled(tmp_path, init=100, count=0)) == []
