"""Run the resume benchmark as a file: ``python benchmarks/resume/run.py --help``."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

if __package__ in (None, ""):  # the repository goes on the path, and this directory comes off it
    sys.path[0] = str(Path(__file__).resolve().parents[2])

logging.disable(logging.CRITICAL)  # flytekit tells of each candidate that it does not find

if __name__ == "__main__":
    from benchmarks.resume.command import main

    sys.exit(main())
