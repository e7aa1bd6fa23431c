"""Set-up: S3 on loopback for all measures of this benchmark, and how often each thing is measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.harness.context import Context
from benchmarks.resume.loopback import Loopback, loopback


class WrongRestore(Exception):
    """A restore did not give back what was saved."""


@dataclass(frozen=True, slots=True)
class Scale:
    attempts: int
    walks: int  # rounds
    saves: int
    keeping: bool  # whether saves with retention are measured, too
    restores: int
    resumed: int  # attempts that each resume and save


FULL = Scale(attempts=100, walks=5, saves=15, keeping=True, restores=9, resumed=40)
QUICK = Scale(attempts=100, walks=1, saves=2, keeping=False, restores=1, resumed=8)


@dataclass(frozen=True, slots=True)
class Setup:
    scale: Scale
    s3: Loopback


@contextmanager
def set_up(context: Context) -> Iterator[Setup]:
    with loopback() as s3:
        yield Setup(QUICK if context.quick else FULL, s3)
