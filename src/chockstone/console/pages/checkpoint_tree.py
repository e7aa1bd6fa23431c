"""The tree of checkpoints: runs below the runs whose checkpoints they were made from.

A run's checkpoints are loaded when its branch is opened, so that a tree of many runs stays small.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from chockstone.api.context import Context
from chockstone.catalog import RunRow, Usage
from chockstone.wire.failures import BadRequest
from chockstone.wire.paths import TinkerPath

MOST_RUNS: Final = 1000  # the newest
_DEEPEST: Final = 24  # deeper runs are shown at this depth
_NOTHING: Final = Usage(0, 0)


@dataclass(frozen=True, slots=True)
class RunNode:
    run_id: str
    owner: str
    base_model: str
    name: str | None  # that its script gave it
    made_from: str | None  # kind and name of the parent's checkpoint
    foreign_parent: str | None  # path of a checkpoint whose run is not in the tree
    step: int | None
    created_at: datetime
    checkpoints: int
    size_bytes: int
    children: tuple[RunNode, ...]


@dataclass(frozen=True, slots=True)
class RunTree:
    roots: tuple[RunNode, ...]
    is_complete: bool  # False: there are more runs than are shown


async def make_tree(context: Context, owner: str | None) -> RunTree:
    """Runs that have checkpoints, and those that lead to them; newest first. ``owner`` None: of all users."""
    rows: dict[str, RunRow] = {}
    is_complete = True
    async for row in context.runs_of(owner):
        if len(rows) == MOST_RUNS:
            is_complete = False
            break
        rows[row.run_id] = row
    used = await context.catalog.checkpoints.usage_by_run(context.now(), owner=owner)
    parents = {run_id: context.progress(row).parent for run_id, row in rows.items()}
    return RunTree(await asyncio.to_thread(build, rows, parents, used), is_complete)


def build(rows: dict[str, RunRow], parents: dict[str, str | None], used: dict[str, Usage]) -> tuple[RunNode, ...]:
    """Nothing recursive: a chain of runs may be long."""
    made_from = {run_id: _parse(path) for run_id, path in parents.items()}
    children: defaultdict[str | None, list[str]] = defaultdict(list)
    for run_id in rows:
        path = made_from[run_id]
        is_below = path is not None and path.run_id in rows and not _leads_to(run_id, path.run_id, made_from)
        children[path.run_id if path is not None and is_below else None].append(run_id)
    above: dict[str, str | None] = dict.fromkeys(children[None])  # where a run is shown; parents come before children
    depths = dict.fromkeys(children[None], 0)
    for run_id in (order := list(children[None])):
        is_deep = depths[run_id] == _DEEPEST
        for child in children[run_id]:
            above[child] = above[run_id] if is_deep else run_id
            depths[child] = depths[run_id] + (not is_deep)
            order.append(child)
    below: defaultdict[str | None, list[RunNode]] = defaultdict(list)
    for run_id in reversed(order):
        usage = used.get(run_id, _NOTHING)
        nodes = tuple(reversed(below[run_id]))
        if usage.count or nodes:
            below[above[run_id]].append(_node(rows, run_id, made_from[run_id], usage, nodes))
    return tuple(reversed(below[None]))


def _node(
    rows: dict[str, RunRow], run_id: str, path: TinkerPath | None, usage: Usage, children: tuple[RunNode, ...]
) -> RunNode:
    row = rows[run_id]
    return RunNode(
        run_id=run_id,
        owner=row.owner,
        base_model=row.base_model,
        name=row.user_metadata.get("name"),
        made_from=None if path is None else path.checkpoint_id,
        foreign_parent=None if path is None or path.run_id in rows else str(path),
        step=row.steps,
        created_at=row.created_at,
        checkpoints=usage.count,
        size_bytes=usage.size_bytes,
        children=children,
    )


def _leads_to(run_id: str, start: str, made_from: dict[str, TinkerPath | None]) -> bool:
    """Whether ``run_id`` is among the ancestors of ``start``: runs may load from each other in a circle."""
    seen: set[str] = set()
    at: str | None = start
    while at is not None and at not in seen:
        if at == run_id:
            return True
        seen.add(at)
        path = made_from.get(at)
        at = None if path is None else path.run_id
    return False


def _parse(path: str | None) -> TinkerPath | None:
    try:
        return None if path is None else TinkerPath.parse(path)
    except BadRequest:
        return None
