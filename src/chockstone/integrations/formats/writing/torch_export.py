"""Exports as torch files: one ``.pt`` that ``torch.load(weights_only=True)`` opens."""

from __future__ import annotations

import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

from chockstone.checkpoints.restoring.new_file import new_file
from chockstone.extras import require
from chockstone.integrations.formats.reading.type_notes import NOTES, encode_notes, make_plain


def write_torch_file(state: dict[str, Any], target: Path) -> Counter[str]:  # Any: a state
    """Write ``state`` to a new file. Returns how many values have another type in it, by type.

    numpy arrays become tensors and frozen sets become sets, because ``weights_only=True`` reads neither; an import of
    the file restores them.
    """
    require("torch", "an export to torch")
    import torch

    plain, counts = make_plain(state)
    with new_file(target) as partial:
        torch.save(plain, partial)
        if counts:
            _add_record(partial, encode_notes(state))
    return counts


def _add_record(path: Path, content: bytes) -> None:
    """Add a record to the zip, in the folder that holds all of torch's."""
    with zipfile.ZipFile(path, "a", zipfile.ZIP_STORED) as archive:
        folder = archive.namelist()[0].partition("/")[0]
        archive.writestr(f"{folder}/{NOTES}", content)
