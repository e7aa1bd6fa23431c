"""New environments with one install each, and the questions that the measures ask of them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.context import Context

PROJECT = Path(__file__).resolve().parents[2]
PLAIN = "chockstone"
NOT_COUNTED = {"pip", "setuptools"}


@dataclass(frozen=True, slots=True)
class Installed:
    """A virtual environment with one install of this project."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def program(self) -> Path:
        return self.folder / "bin" / "chockstone"

    def packages(self) -> set[str]:
        """Names of the installed distributions, in lower case with hyphens."""
        listed = run(self.python, "-m", "pip", "list", "--format=freeze").split()
        names = {re.split("==| @", line)[0].lower().replace("_", "-") for line in listed}
        return names - NOT_COUNTED

    def size_bytes(self) -> int:
        """What the packages take on the disk, without pip."""
        [folder] = (self.folder / "lib").glob("python3*/site-packages")
        kept = [each for each in folder.iterdir() if not re.match(r"(pip|setuptools)\b", each.name)]
        return int(run("du", "--bytes", "--summarize", "--total", *kept).splitlines()[-1].split()[0])


@dataclass(frozen=True, slots=True)
class Setup:
    plain: Installed
    store: Path  # with three checkpoints of numpy states
    repeats: int


def install(folder: Path, extras: str) -> Installed:
    """A new environment with this project and ``extras``: "", or names in brackets."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    installed = Installed(folder)
    run(installed.python, "-m", "pip", "install", "--quiet", f"chockstone{extras} @ {PROJECT.as_uri()}")
    return installed


def run(*words: object) -> str:
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{words[0]} exited with {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout


SAVE = """
import sys
import numpy as np
from chockstone.checkpoints import Checkpointer
with Checkpointer(sys.argv[1]) as checkpointer:
    for step in range(3):
        checkpointer.save({"weights": np.ones(1000), "step": step}, step=step)
"""


@contextmanager
def set_up(context: Context) -> Iterator[Setup]:
    context.say("installing chockstone without extras")
    plain = install(context.directory / "plain", "")
    store = context.directory / "store"
    run(plain.python, "-c", SAVE, store)
    yield Setup(plain=plain, store=store, repeats=10 if context.quick else 40)
