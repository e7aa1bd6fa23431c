"""A coverage-guided fuzzer of everything that reads archives, to be run by hand for as long as you like.

    pip install atheris
    PYTHONPATH=src:tests python tests/fuzz/fuzz_archive.py -max_total_time=600 /tmp/fuzz-corpus

Seeds are written into the directory when it is empty. All options are libFuzzer's: ``-runs=10000``,
``-max_len=70000``, ``-rss_limit_mb=2048``, ``-timeout=10``. It stops at the first input that ends in
anything but a CheckpointError, runs too long or takes too much memory, and writes that input to
``crash-…``; give the file in place of the directory to see it again.

The first byte of an input says what the rest is: an archive as it is, one to be sealed again, or
the bytes of one hostile part in an archive that is sound otherwise.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

if __name__ == "__main__":
    import atheris

    watched = atheris.instrument_imports(include=["chockstone.checkpoints"])
else:
    watched = contextlib.nullcontext()
with watched:  # what is imported first in here reports which branches it takes
    importlib.import_module("chockstone.checkpoints.restoring.restore")

from mutations import reseal

from chockstone.checkpoints import Archive, verify_archive
from chockstone.checkpoints.errors import CheckpointError
from chockstone.checkpoints.restoring.restore import load_state
from support.archives import BytesSource
from support.hostile_archives import GOOD_STATE, GOOD_TENSORS, forge, pad_manifest, with_state, with_tensors

MODES: Final[dict[int, Callable[[bytes], bytes]]] = {
    0: lambda content: content,
    1: reseal,
    2: with_state,
    3: with_tensors,
    4: lambda text: forge([("state.json", b"{}")], encode=lambda _: pad_manifest(text)),
}


def look(content: bytes) -> None:
    """Open, load and verify what ``content`` stands for; refusals are fine, anything else comes through."""
    archive_bytes = MODES[content[0] % len(MODES)](content[1:]) if content else b""
    try:
        with Archive(BytesSource(archive_bytes)) as archive:
            load_state(archive)
            verify_archive(archive)
    except CheckpointError:
        return


def write_seeds(directory: Path) -> list[Path]:
    """One sound input for every mode."""
    state = json.dumps(GOOD_STATE).encode("ascii")
    whole = with_state(GOOD_STATE)
    manifest = forge([("state.json", b"{}")])[4096:8192].rstrip()
    tagged = {
        "a": {"$": "tuple", "items": [{"$": "int", "hex": "0x1f"}, {"$": "bytes", "base64": "YQ=="}]},
        "b": {"$": "dict", "items": [[1, {"$": "float", "value": "inf"}], [None, {"$": "complex", "parts": [1, 2]}]]},
        "c": {"$": "OrderedDict", "items": [["k", {"$": "set", "items": [1]}]], "metadata": {}},
        "d": [{"$": "torch.Size", "items": [2]}, {"$": "torch.dtype", "name": "int8"}],
        "e": {"$": "torch.device", "name": "cpu"},
    }
    raw = {"$": "tensor", "group": "model", "key": "w", "dtype": "F64", "shape": [1], "as": "numpy"}
    seeds = {
        "whole": b"\0" + whole,
        "sealed-again": b"\1" + whole,
        "state": b"\2" + state,
        "tagged-state": b"\2" + json.dumps(tagged).encode("ascii"),
        "raw-state": b"\2" + json.dumps({"x": [raw, {**raw, "as": "numpy.scalar"}]}).encode("ascii"),
        "tensors": b"\3" + GOOD_TENSORS,
        "manifest": b"\4" + manifest,
    }
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in seeds.items():
        (directory / name).write_bytes(content)
    return sorted(directory / name for name in seeds)


def main() -> None:
    for argument in sys.argv[1:]:
        directory = Path(argument)
        if not argument.startswith("-") and not directory.is_file() and not any(directory.glob("*")):
            write_seeds(directory)
    atheris.Setup(sys.argv, look)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
