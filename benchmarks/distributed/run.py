"""Run the benchmark of many ranks as a file: ``python benchmarks/distributed/run.py --help``."""

from __future__ import annotations

import sys
from pathlib import Path

if __package__ in (None, ""):  # the repository goes on the path, and this directory comes off it
    sys.path[0] = str(Path(__file__).resolve().parents[2])

if __name__ == "__main__":
    from benchmarks.distributed.command import main

    sys.exit(main())
