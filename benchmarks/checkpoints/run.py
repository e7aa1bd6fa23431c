"""Run the checkpoint benchmark as a file: ``python benchmarks/checkpoints/run.py --help``."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

if __package__ in (None, ""):  # the repository goes on the path, and this directory comes off it
    sys.path[0] = str(Path(__file__).resolve().parents[2])

logging.disable(logging.INFO)  # here, so that DCP's daemon, which imports this file again, is quiet as well

if __name__ == "__main__":
    from benchmarks.checkpoints.command import main

    sys.exit(main())
