"""Finds out, without importing torch, whether this machine can compute on CUDA.

Asks torch's version file for its build, and the driver for its devices. AMD's ROCm is a build of its own, and torch
calls its devices CUDA, too: the driver is not asked there.
"""

from __future__ import annotations

import ast
import ctypes
import os
import platform
from importlib.util import find_spec
from pathlib import Path
from typing import Final

_DRIVER: Final = "libcuda.so.1"
_NO_DEVICE: Final = 100  # CUDA_ERROR_NO_DEVICE


def why_no_cuda() -> str | None:
    """Why no model can be on CUDA here; None: nothing speaks against it, though the worker may still fail to use it."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return "torch is not installed"
    build = read_build(Path(spec.origin).with_name("version.py"))
    if build.get("hip"):
        return None
    if not build.get("cuda"):
        return f"torch {build.get('__version__') or ''} is a build for CPUs only".replace("  ", " ")
    return None if platform.system() != "Linux" else why_no_device(_DRIVER)


def visible_gpus(device: str, driver: str = _DRIVER) -> list[str]:
    """The GPUs that a worker on ``device`` could use, named as in CUDA_VISIBLE_DEVICES. Finds none on ROCm."""
    if device == "cpu":
        return []
    try:
        library = ctypes.CDLL(driver)
    except OSError:
        return []
    count = ctypes.c_int(0)
    if library.cuInit(0) != 0 or library.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return named[: count.value] if named else [str(number) for number in range(count.value)]


def read_build(version_file: Path) -> dict[str, str | None]:
    """The constants of torch's ``version.py``, such as ``cuda``."""
    try:
        tree = ast.parse(version_file.read_text())
    except (OSError, SyntaxError, ValueError):
        return {"cuda": "unknown"}  # the worker finds out
    found: dict[str, str | None] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            value = node.value.value
            if isinstance(target, ast.Name) and (value is None or isinstance(value, str)):
                found[target.id] = value
    return found


def why_no_device(driver: str) -> str | None:
    """``driver``: the file of NVIDIA's driver library."""
    try:
        library = ctypes.CDLL(driver)
    except OSError:
        return "there is no NVIDIA driver"
    status = library.cuInit(0)
    count = ctypes.c_int(0)
    if status == 0:
        status = library.cuDeviceGetCount(ctypes.byref(count))
    if status == _NO_DEVICE or (status == 0 and count.value == 0):
        return "the NVIDIA driver finds no device; CUDA_VISIBLE_DEVICES may hide it"
    return None if status == 0 else f"the NVIDIA driver does not work (CUDA error {status})"
