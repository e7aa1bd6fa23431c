"""The parts of the storage core tell the sweeper what changed."""

from __future__ import annotations

from chockstone.checkpoints import Retention
from chockstone.engine.engine import Engine
from support.engine.making import Start, made_run, names, saved


async def test_a_new_policy_applies_to_checkpoints_that_were_swept_before(engine: Engine) -> None:
    run = await made_run(engine)
    for number in (1, 2):
        await saved(engine, run, number, str(number))
    await engine.sweeper.sweep_what_changed()

    await engine.policies.set("global", {"keep_last": 1}, by="local")
    await engine.sweeper.sweep_what_changed()

    assert await names(engine) == {"2"}


async def test_a_checkpoint_that_is_not_public_any_more_is_swept_again(start: Start) -> None:
    engine = await start(retention=Retention(keep_last=1))
    run = await made_run(engine)
    first = await saved(engine, run, 1, "1")
    await engine.checkpoints.set_public(first, public=True, by="local")
    await saved(engine, run, 2, "2")
    await engine.sweeper.sweep_what_changed()
    assert await names(engine) == {"1", "2"}

    await engine.checkpoints.set_public(first, public=False, by="local")
    await engine.sweeper.sweep_what_changed()

    assert await names(engine) == {"2"}
