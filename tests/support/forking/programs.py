"""Which commands can be forked, and what their zygote imports."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

_INTERPRETER = sys.executable  # tests may replace it
ZYGOTE = [_INTERPRETER, str(Path(__file__).with_name("zygote.py"))]
_WITH_CHILDREN = {"serve", "train"}  # commands that start workers
_MODULES = ("chockstone.cli", "chockstone.cli.training.server", "chockstone.backends.worker.main")
_TESTS = Path(__file__).parents[2]
_SCRIPTS = (str(_TESTS / "faults" / "crash_scripts.py"), str(_TESTS.parent / "examples" / "resume.py"))
_IMPORTED = (
    "chockstone.api.replica.server",
    "chockstone.api.serving.server",
    "chockstone.backends.worker.main",
    "chockstone.backends.worker.promotion",
    "chockstone.backends.worker.service",
    "chockstone.cli.app",
    "chockstone.cli.commands.serve",
    "chockstone.cli.serving.banner",
    "chockstone.cli.serving.checks",
    "chockstone.cli.serving.launch",
    "chockstone.cli.training.server",
    "chockstone.console.app",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen3.modeling_qwen3",
    "tinker",  # for scripts
)
# What is read when a module is imported, or when the interpreter or a library is loaded.
_READ_EARLY = (
    *("PYTHON", "LD_", "MALLOC_", "LANG", "LC_", "HOME", "XDG_"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "ONEDNN_", "DNNL_", "ATEN_", "TORCH", "CUDA_"),
    *("HF_", "HUGGINGFACE_", "TRANSFORMERS_", "TOKENIZERS_"),
)


@dataclass(frozen=True, slots=True)
class Program:
    module: str  # or the path of a script
    arguments: tuple[str, ...]
    is_safe_path: bool  # the working directory is not on ``sys.path``

    @property
    def has_children(self) -> bool:
        return not _WITH_CHILDREN.isdisjoint(self.arguments)


def find_program(command: Sequence[str]) -> Program | None:
    """The program that a command runs; None: it must be executed."""
    if not command or command[0] != _INTERPRETER:
        return None
    words = list(command[1:])
    is_safe_path = words[:1] == ["-P"]
    words = words[is_safe_path:]
    if words[:1] and words[0] in _SCRIPTS:
        return Program(words[0], tuple(words[1:]), is_safe_path)
    if len(words) < 2 or words[0] != "-m" or words[1] not in _MODULES:
        return None
    if "pull" in words or any("=" not in model for model in _models(words)):
        return None  # they look for models on the hub, and the zygote was imported without one
    return Program(words[1], tuple(words[2:]), is_safe_path)


def _models(words: Sequence[str]) -> list[str]:
    joined = [word.removeprefix("--model=") for word in words if word.startswith("--model=")]
    return joined + [value for flag, value in pairwise(words) if flag == "--model"]


def zygote_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Of a zygote whose programs get ``environ``: as workers load models."""
    from chockstone.backends.supervision.process import MODEL_ENVIRONMENT

    return {**environ, **MODEL_ENVIRONMENT}


def is_like(environ: Mapping[str, str], zygote: Mapping[str, str]) -> bool:
    """Whether a program that is imported in ``environ`` is as it was imported in the environment of ``zygote``."""
    names = {name for name in {*environ, *zygote} if name.startswith(_READ_EARLY)}
    names -= {name for name in zygote_environment({}) if name not in environ}  # it loads no models itself
    return all(environ.get(name) == zygote.get(name) for name in names)


def import_programs() -> None:
    """Import what the programs import when they run, as they do it. No thread may be started by that."""
    from chockstone.backends.importing import hidden_packages, quick_imports
    from chockstone.backends.supervision.instruction_sets import limit_instruction_sets
    from support.certificates import share_certificates

    limit_instruction_sets()
    with quick_imports(), hidden_packages("scipy", "accelerate"):
        for module in _IMPORTED:
            importlib.import_module(module)
        share_certificates()
