"""Verifies archives against their digests (``verify``)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from chockstone.checkpoints import verify_archive
from chockstone.checkpoints.errors import CheckpointMissing, DamagedArchive, ForeignArchive, UnsupportedArchive
from chockstone.checkpoints.reading.archive import Verify
from chockstone.cli.local.targets import CommandTarget
from chockstone.cli.output.exit_codes import ExitCode
from chockstone.cli.output.formatting import format_count, format_size, format_states, printable
from chockstone.cli.output.terminal import bytes_bar, print_alarm, print_json, print_line, print_stderr


@dataclass(frozen=True, slots=True)
class ArchiveVerdict:
    name: str
    state: Literal["good", "damaged", "foreign", "unsupported", "missing"]
    reason: str | None = None
    size_bytes: int | None = None
    blocks: int | None = None
    blocks_verified: int | None = None
    seconds: float = 0.0


def verify_targets(
    targets: Iterable[CommandTarget], *, place: str, policy: Verify, as_json: bool, were_listed: bool
) -> int:
    """Verify each archive of ``place``, print each verdict at once, and return the exit code. Nothing to verify is a
    failure.

    ``were_listed``: the names come from the store itself, so a missing archive was removed meanwhile.
    """
    verdicts: list[ArchiveVerdict] = []
    for target in targets:
        verdict = _verify(target, policy)
        if were_listed and verdict.state == "missing":
            continue
        verdicts.append(verdict)
        if not as_json:
            _print(verdict)
    bad = sum(verdict.state != "good" for verdict in verdicts)
    if as_json:
        document = [asdict(verdict) for verdict in verdicts]
        print_json({"policy": policy, "checkpoints": document, "good": len(verdicts) - bad, "bad": bad})
    else:
        _print_totals(verdicts)
    if not verdicts:
        print_stderr(f"chockstone: nothing was verified: {place} holds no checkpoint; check the path, or the --prefix")
    return ExitCode.FAILED if bad or not verdicts else ExitCode.OK


def _verify(target: CommandTarget, policy: Verify) -> ArchiveVerdict:
    started = time.perf_counter()
    try:
        with target.open(verify=policy) as archive, bytes_bar(target.name, archive.size) as on_bytes:
            verified = verify_archive(archive, on_bytes=on_bytes)
    except CheckpointMissing as error:
        return ArchiveVerdict(target.name, "missing", str(error))
    except ForeignArchive as error:
        return ArchiveVerdict(target.name, "foreign", str(error))
    except UnsupportedArchive as error:
        return ArchiveVerdict(target.name, "unsupported", str(error))
    except DamagedArchive as error:
        return ArchiveVerdict(target.name, "damaged", str(error), seconds=time.perf_counter() - started)
    seconds = time.perf_counter() - started
    return ArchiveVerdict(target.name, "good", None, archive.size, archive.layout.block_count, verified, seconds)


def _print(verdict: ArchiveVerdict) -> None:
    name = printable(verdict.name)
    if verdict.state != "good":
        print_alarm(f"{name}: {verdict.state}: {printable(verdict.reason or '')}")
        return
    size, seconds = format_size(verdict.size_bytes or 0), f"{verdict.seconds:.2f} s"
    print_line(f"{name}: ok: {verdict.blocks_verified:,} of {verdict.blocks:,} blocks verified, {size} in {seconds}")


def _print_totals(verdicts: Sequence[ArchiveVerdict]) -> None:
    if len(verdicts) > 1:
        states = format_states(verdict.state for verdict in verdicts)
        print_line(f"{format_count(len(verdicts), 'checkpoint')}: {states}")
