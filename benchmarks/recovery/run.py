"""Run the recovery benchmark as a file: ``python benchmarks/recovery/run.py --help``."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

if __package__ in (None, ""):  # the repository goes on the path, and this directory comes off it
    sys.path[0] = str(Path(__file__).resolve().parents[2])

# Here, so that the baselines' processes, which import this file again, are quiet and offline as well.
logging.disable(logging.WARNING)
os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TRANSFORMERS_VERBOSITY": "error"}

if __name__ == "__main__":
    from benchmarks.recovery.command import main

    sys.exit(main())
