"""Extras: the optional packages of ``pip install 'chockstone[EXTRA]'``, and the error when one is not installed.

A plain install has the checkpoint library and its command line. Whatever needs more calls ``require`` before it imports
a package of an extra, so that users read a command instead of a traceback. Every room may import this file.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Final

# By extra: its packages, by the names under which they are imported. pyproject.toml has the versions.
PACKAGES: Final[dict[str, tuple[str, ...]]] = {
    "torch": ("torch",),
    "s3": ("obstore", "boto3"),
    "gs": ("obstore",),
    "az": ("obstore",),
    "flyte": ("flytekit",),
    "flyte2": ("flyte",),
    "server": (
        "torch",
        "aiosqlite",
        "alembic",
        "fastapi",
        "httptools",
        "huggingface_hub",
        "jinja2",
        "orjson",
        "prometheus_client",
        "google.protobuf",
        "pydantic",
        "jwt",
        "pyrage",
        "safetensors",
        "sqlalchemy",
        "tokenizers",
        "transformers",
        "uvicorn",
        "uvloop",
        "zstandard",
    ),
    "postgres": ("asyncpg",),
    "otel": ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
    "ray": ("ray",),
    "replica": ("aiohttp",),
    "vllm": ("aiohttp",),
    "constrained": ("llguidance",),
    "gguf": ("gguf", "safetensors", "tokenizers", "torch", "transformers"),
    "wandb": ("wandb",),
    "mlflow": ("mlflow", "sqlalchemy"),
    "trackio": ("trackio",),
    "tensorboard": ("tensorboardX",),
    "sdk": ("tinker",),
    "train": ("tinker", "matplotlib", "tensorboardX"),
    "accelerate": ("torch", "accelerate"),
    "hf-trainer": ("torch", "accelerate", "transformers"),
    "lightning": ("torch", "lightning"),
    "ray-train": ("torch", "ray", "pandas", "pyarrow"),
    "torchtitan": ("torch", "torchtitan"),
    "jax": ("jax", "ml_dtypes"),
    "orbax": ("orbax.checkpoint",),
}
_NAMED: Final = 3  # packages that a message names


class ExtraMissing(ModuleNotFoundError):
    """A package of ``extra`` is not installed. ``name`` is the first such package; ``command`` installs all of them."""

    def __init__(self, what: str, packages: Sequence[str], extra: str) -> None:
        self.extra = extra
        self.command = f"pip install 'chockstone[{extra}]'"
        named = ", ".join(map(repr, packages[:_NAMED]))
        more = f" and {len(packages) - _NAMED} more" if len(packages) > _NAMED else ""
        noun, verb = ("package", "is") if len(packages) == 1 else ("packages", "are")
        super().__init__(
            f"{what} needs the Python {noun} {named}{more}, which {verb} not installed: {self.command}",
            name=packages[0],
        )


def require(extra: str, what: str, *, packages: Sequence[str] | None = None) -> None:
    """Raise ExtraMissing, with ``what`` as the subject of its message, unless the extra's packages are installed.

    ``packages``: the ones that matter here; None: all of the extra.
    """
    missing = [name for name in packages or PACKAGES[extra] if not is_installed(name)]
    if missing:
        raise ExtraMissing(what, missing, extra)


def is_installed(package: str) -> bool:
    """Whether a package can be found. Imports nothing, except the parents of a dotted name."""
    if package in sys.modules:
        return sys.modules[package] is not None
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # a parent
        return False


def explain(error: ModuleNotFoundError, what: str) -> ExtraMissing | None:
    """The error that names the extra of the package which was not found; None if no extra has that package."""
    if isinstance(error, ExtraMissing):
        return error
    missing = (error.name or "").partition(".")[0]
    for extra, packages in PACKAGES.items():
        if missing in {package.partition(".")[0] for package in packages}:
            return ExtraMissing(what, [missing], extra)
    return None
