"""The environment: everything besides the operations that the bits of a result depend on.

The same operations in the same environment give the same bits. In another environment they may not.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch
import xxhash

from chockstone.backends.export.model_files import CONFIG
from chockstone.backends.supervision.instruction_sets import describe_limits
from chockstone.backends.supervision.process import WorkerConfig
from chockstone.backends.training.micro_batches import TOKENS_ON_CPU, TOKENS_ON_GPU

# Version of how a pass computes. Increase it with any change that may round differently:
# 1: micro-batches padded to their longest datum. 2: packed micro-batches, in which common beginnings are computed once.
# 3: prompts of samples computed in blocks, without regard to the prompts beside them.
# 4: on CPUs with AVX-512 of other makers than Intel, float32 products of the base model in oneDNN.
ARITHMETIC: Final = 4
# Version of how tokens are sampled, likewise. 1: products of MKL alone. 2: on a CPU, products of 2 to 32 decoding rows
# in oneDNN, for models with up to 1 GiB of matrices. 3: on the CPUs that 4 above names, those of more rows, too.
DECODING: Final = 3
_CPU_FACTS: Final = Path("/proc/cpuinfo")
_WEIGHTS: Final = ("*.safetensors", "*.bin")
_LENGTH_BYTES: Final = 8  # of the header at the front of a safetensors file
_SAMPLES: Final = 64  # per file
_SAMPLE_BYTES: Final = 4096
_LONGEST_HEADER_BYTES: Final = 100_000_000  # the limit of safetensors


def describe_environment(config: WorkerConfig, device: str, *, processes: int = 1) -> dict[str, Any]:
    """Plain JSON. ``device`` is the one in use; the configuration may say "auto"."""
    is_on_cpu = device == "cpu"
    return {
        "arithmetic": ARITHMETIC,
        "decoding": DECODING,
        "processes": processes,
        "device": device if is_on_cpu else f"{device} ({torch.cuda.get_device_name(device)})",
        "dtype": "float32" if is_on_cpu and config.dtype == "auto" else config.dtype,
        "base_precision": config.base_precision,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "tokens_per_micro_batch": config.tokens_per_micro_batch or (TOKENS_ON_CPU if is_on_cpu else TOKENS_ON_GPU),
        "cpu": f"{_cpu_name()}, {torch.backends.cpu.get_cpu_capability()}",
        "instruction_sets": describe_limits(os.environ),
        "models": {name: digest_model(Path(directory)) for name, directory in config.models.items()},
    }


def digest_model(directory: Path) -> str:
    """A digest of the model's configuration, of the names, sizes and layouts of its weights, and of samples of their
    bytes: to read all bytes would take too long."""
    digest = xxhash.xxh3_128((directory / CONFIG).read_bytes())
    for path in sorted(path for pattern in _WEIGHTS for path in directory.glob(pattern)):
        digest.update(json.dumps([path.name, path.stat().st_size]).encode())
        if path.suffix == ".safetensors":
            digest.update(_read_header(path))
        for piece in _samples(path):
            digest.update(piece)
    return digest.hexdigest()


def _read_header(path: Path) -> bytes:
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        return file.read(min(length, _LONGEST_HEADER_BYTES))


def _samples(path: Path) -> Iterator[bytes]:
    """Evenly spaced: weights of another training differ everywhere."""
    size = path.stat().st_size
    with open(path, "rb", buffering=0) as file:
        for number in range(_SAMPLES):
            file.seek(size * (2 * number + 1) // (2 * _SAMPLES))
            yield file.read(_SAMPLE_BYTES)


def _cpu_name() -> str:
    try:
        lines = _CPU_FACTS.read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
