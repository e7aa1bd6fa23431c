"""Run the async benchmark as a file: ``python benchmarks/async/run.py --help``."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from pathlib import Path

if __package__ in (None, ""):  # the repository goes on the path, and this directory comes off it
    sys.path[0] = str(Path(__file__).resolve().parents[2])

logging.disable(logging.WARNING)
os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TRANSFORMERS_VERBOSITY": "error"}

if __name__ == "__main__":
    sys.exit(importlib.import_module("benchmarks.async.command").main())
