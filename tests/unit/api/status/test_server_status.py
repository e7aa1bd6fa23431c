from __future__ import annotations

import asyncio

from chockstone.api.context import Context
from support.api.users import User


async def test_disk_and_problems_are_watched_while_the_server_runs(context: Context, ann: User) -> None:
    tasks = [asyncio.create_task(task) for task in context.status.tasks()]
    record = context.config.data / "disk-space.json"
    while not record.exists():
        await asyncio.sleep(0.001)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

    assert context.status.uptime_seconds > 0
    assert (await context.status.disk.look()).free_bytes > 0
