"""Deletes checkpoints of a server by path, or by run, kind and age, and whole runs (``rm``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from chockstone.cli.output.confirmation import is_confirmed
from chockstone.cli.output.exit_codes import ExitCode
from chockstone.cli.output.formatting import format_count, format_size
from chockstone.cli.output.terminal import print_json, print_line, print_stderr
from chockstone.cli.remote.addresses import parse_path, route, run_route
from chockstone.cli.remote.checkpoint import ListedCheckpoint, list_checkpoints
from chockstone.cli.remote.client import LONG_SECONDS, NotThere, Server, ServerRefused
from chockstone.wire.paths import TinkerPath

_AT_ONCE: Final = 8
_NAMED: Final = 5  # published ones, in the question


@dataclass(frozen=True, slots=True)
class RemovalFilter:
    """Which of a run's checkpoints, or of all of the caller's."""

    run_id: str | None
    kind: str | None
    older_than_seconds: float | None

    def takes(self, listed: ListedCheckpoint, now: datetime) -> bool:
        if self.kind not in (None, listed.kind):
            return False
        age_seconds = (now - listed.created_at).total_seconds()
        return self.older_than_seconds is None or age_seconds > self.older_than_seconds


def remove_chosen(
    server: Server, choice: RemovalFilter, *, now: datetime, yes: bool, dry_run: bool, as_json: bool
) -> int:
    """Remove all that the choice takes, and return the exit code. Raises NotThere for a run of another's."""
    own = list_checkpoints(server) if choice.run_id is None else _list_own(server, choice.run_id)
    found = [listed for listed in own if choice.takes(listed, now)]
    return _remove(server, found, [], now=now, yes=yes, dry_run=dry_run, as_json=as_json)


def remove_paths(
    server: Server, paths: Sequence[TinkerPath], *, now: datetime, yes: bool, dry_run: bool, as_json: bool
) -> int:
    """Remove each that is there, and return the exit code. One failing delete stops no other."""
    listed: dict[str, ListedCheckpoint] = {}
    foreign: set[str] = set()
    for run_id in dict.fromkeys(path.run_id for path in paths):
        try:
            listed |= {each.path: each for each in _list_own(server, run_id)}
        except NotThere:
            with suppress(NotThere):  # each of its paths is reported below
                foreign.update(each.path for each in list_checkpoints(server, run_id))
    words = list(dict.fromkeys(map(str, paths)))
    missing = [word for word in words if word not in listed]
    for word in missing:
        if word in foreign:
            print_stderr(
                f"chockstone: checkpoint {word!r} belongs to another user, who published it; only they can remove it"
            )
        else:
            print_stderr(f"chockstone: checkpoint {word!r} does not exist, or is not yours")
    found = [listed[word] for word in words if word in listed]
    return _remove(server, found, missing, now=now, yes=yes, dry_run=dry_run, as_json=as_json)


def _remove(
    server: Server,
    found: Sequence[ListedCheckpoint],
    missing: list[str],
    *,
    now: datetime,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    if found and not (dry_run or yes or _is_agreed(found, now)):
        print_stderr("nothing was removed")
        found = []
    removed: list[ListedCheckpoint] = []
    failed: list[dict[str, str]] = []
    with _interruptible() as pool:
        answers = pool.map(lambda listed: None if dry_run else _delete(server, listed), found)
        for listed, answer in zip(found, answers, strict=True):
            if isinstance(answer, NotThere):
                print_stderr(f"chockstone: checkpoint {listed.path!r} was removed by another request meanwhile")
                missing.append(listed.path)
            elif answer is not None:
                print_stderr(f"chockstone: {answer}")
                failed.append({"tinker_path": listed.path, "error": str(answer)})
            else:
                removed.append(listed)
                if not as_json:
                    verb = "would remove" if dry_run else "removed"
                    print_line(f"{verb} {listed.path}, {format_size(listed.size_bytes)}")
    if as_json:
        gone = [{"tinker_path": listed.path, "size_bytes": listed.size_bytes} for listed in removed]
        print_json({"server": server.url, "dry_run": dry_run, "removed": gone, "missing": missing, "failed": failed})
    elif len(found) != 1:
        total = format_size(sum(listed.size_bytes for listed in removed))
        print_line(f"{'would remove' if dry_run else 'removed'} {format_count(len(removed), 'checkpoint')}, {total}")
    if failed:
        return ExitCode.USAGE
    return ExitCode.FAILED if missing else 0


@contextmanager
def _interruptible() -> Iterator[ThreadPoolExecutor]:
    """Threads whose work, when interrupted, is not all done first: what is waiting is dropped."""
    pool = ThreadPoolExecutor(_AT_ONCE)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _list_own(server: Server, run_id: str) -> list[ListedCheckpoint]:
    """The caller's checkpoints of a run, also of a run that was removed. Raises NotThere for a run of another's."""
    try:
        server.get(run_route(run_id))  # of another's run the published ones would be listed
    except NotThere:
        own = [each for each in list_checkpoints(server) if parse_path(each.path).run_id == run_id]
        if not own:
            raise
        return own
    return list_checkpoints(server, run_id)


def _delete(server: Server, listed: ListedCheckpoint) -> NotThere | ServerRefused | None:
    try:
        server.delete(route(parse_path(listed.path)))
    except (NotThere, ServerRefused) as error:
        return error
    return None


def _is_agreed(found: Sequence[ListedCheckpoint], now: datetime) -> bool:
    total = format_size(sum(listed.size_bytes for listed in found))
    lines = (
        f"{listed.path}  {format_size(listed.size_bytes)}, {listed.age(now)} old{', published' * listed.is_public}"
        for listed in found
    )
    return is_confirmed(lines, f"Remove {format_count(len(found), 'checkpoint')}, {total}{_published(found)}?")


def _published(found: Sequence[ListedCheckpoint]) -> str:
    """Others may rely on them."""
    paths = [listed.path for listed in found if listed.is_public]
    if not paths:
        return ""
    more = "" if len(paths) <= _NAMED else f" and {len(paths) - _NAMED:,} more"
    return f", {len(paths):,} of them published: {', '.join(paths[:_NAMED])}{more}"


@dataclass(frozen=True, slots=True)
class _FoundRun:
    run_id: str
    state: str
    checkpoints: Sequence[ListedCheckpoint]

    @property
    def size_bytes(self) -> int:
        return sum(listed.size_bytes for listed in self.checkpoints)

    def describe(self) -> str:
        published = sum(listed.is_public for listed in self.checkpoints)
        public = f", {published:,} of them published" if published else ""
        active = ", still loaded" if self.state == "active" else ""
        size = f"{format_count(len(self.checkpoints), 'checkpoint')}, {format_size(self.size_bytes)}"
        return f"{self.run_id}  {size}{public}{active}"


def remove_runs(server: Server, run_ids: Sequence[str], *, yes: bool, dry_run: bool, as_json: bool) -> int:
    """Delete each run that exists, and return the exit code. A run that cannot be deleted stops no other."""
    found: list[_FoundRun] = []
    missing: list[str] = []
    for run_id in run_ids:
        try:
            state = str(server.get(run_route(run_id)).get("state") or "")
            found.append(_FoundRun(run_id, state, list_checkpoints(server, run_id)))
        except NotThere as error:
            print_stderr(f"chockstone: {error}")
            missing.append(run_id)
    if found and not (yes or dry_run) and not _are_agreed(found):
        print_stderr("nothing was removed")
        found = []
    removed: list[_FoundRun] = []
    failed: list[dict[str, str]] = []
    for run in found:
        try:
            if not dry_run:
                server.delete(run_route(run.run_id), seconds=LONG_SECONDS)
        except (NotThere, ServerRefused) as error:
            print_stderr(f"chockstone: {error}")
            failed.append({"training_run_id": run.run_id, "error": str(error)})
            continue
        removed.append(run)
        if not as_json:
            print_line(f"{'would remove' if dry_run else 'removed'} {run.describe()}")
    if as_json:
        gone = [
            {"training_run_id": run.run_id, "checkpoints": len(run.checkpoints), "size_bytes": run.size_bytes}
            for run in removed
        ]
        print_json({"server": server.url, "dry_run": dry_run, "removed": gone, "missing": missing, "failed": failed})
    return ExitCode.FAILED if missing or failed else ExitCode.OK


def _are_agreed(found: Sequence[_FoundRun]) -> bool:
    count = sum(len(run.checkpoints) for run in found)
    total = format_size(sum(run.size_bytes for run in found))
    question = f"Remove {format_count(len(found), 'run')} with {format_count(count, 'checkpoint')}, {total}?"
    return is_confirmed((run.describe() for run in found), question)
