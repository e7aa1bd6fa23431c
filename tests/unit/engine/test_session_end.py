"""The end of sessions: what they held is freed, whoever ends them and whenever."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from chockstone.catalog import Catalog, LossRow
from chockstone.engine.config import EngineLimits
from chockstone.engine.engine import Engine
from chockstone.engine.samples.sampling import SamplerSource
from chockstone.engine.session_end import SERVER_SDK
from support.engine.fake_backend import FakeBackend
from support.engine.making import NOW, RUN, Start, answer, live_run, made_run, make_run, result_of, settle_down, until

LATER = NOW + timedelta(hours=1)


async def test_a_full_lane_does_not_keep_its_run(start: Start, backend: FakeBackend, catalog: Catalog) -> None:
    engine = await start(limits=EngineLimits(operations_per_run=1))
    live = await made_run(engine)
    backend.hold("forward_backward")
    await engine.training.forward_backward(live, 1, b"1")
    await engine.training.forward_backward(live, 2, b"1")
    await settle_down()

    await engine.sessions.finish("s")
    backend.let_go("forward_backward")

    await until(lambda: not backend.runs and not len(engine.runs))


async def test_weights_that_were_still_to_be_saved_for_sampling_are_freed_too(
    engine: Engine, backend: FakeBackend
) -> None:
    live = await made_run(engine)
    backend.hold("forward_backward")
    await engine.training.forward_backward(live, 1, b"1")
    saving = await engine.training.save_for_sampling(live, 2, 0)
    await settle_down()

    await engine.sessions.finish("s")
    backend.let_go("forward_backward")

    assert "sampling_session_id" in await answer(engine, saving)
    await until(lambda: "forget" in backend.words())
    await until(lambda: not backend.archives)


async def test_uploaded_losses_go_with_their_session(engine: Engine, backend: FakeBackend) -> None:
    loss = LossRow("s:loss:0", "s", 0, "local", "mine", {"graph": {}, "inputs": []}, NOW)
    await answer(engine, engine.add_loss(loss))
    assert backend.losses

    await engine.sessions.finish("s")

    await until(lambda: not backend.losses)


async def test_a_session_may_be_ended_twice(engine: Engine, backend: FakeBackend) -> None:
    await made_run(engine)

    await engine.sessions.finish("s")
    await engine.sessions.finish("s")

    await until(lambda: not backend.runs)
    assert backend.words().count("close_run") == 1


def clock(engine_time: list[datetime]) -> Callable[[], datetime]:
    return lambda: engine_time[0]


async def test_a_session_that_nobody_hears_of_has_its_runs_parked_until_somebody_comes_back(
    start: Start, backend: FakeBackend, catalog: Catalog
) -> None:
    time = [NOW]
    engine = await start(clock=clock(time))
    live = await made_run(engine)
    await result_of(engine, await engine.training.forward_backward(live, 1, b"5"))

    await engine.sessions.end_silent()
    assert RUN in backend.runs, "it was heard of just now"
    time[0] = LATER
    await engine.sessions.end_silent()

    assert backend.runs == {}
    assert list(engine.runs) == []
    assert (await catalog.runs.get(RUN)).state == "parked"
    assert not (await catalog.sessions.get("s")).is_finished
    back = await engine.wake(RUN)
    assert back is not None
    assert (await answer(engine, await engine.training.optim_step(back, 2, {})))["metrics"]["weight"] == 5
    assert (await catalog.runs.get(RUN)).state == "active"


async def test_a_session_that_nobody_comes_back_to_ends_and_its_parked_runs_go(
    start: Start, backend: FakeBackend, catalog: Catalog
) -> None:
    time = [NOW]
    ended: list[str] = []
    engine = await start(clock=clock(time), on_session_end=ended.append)
    live = await made_run(engine)
    await answer(engine, await engine.training.optim_step(live, 1, {}))
    time[0] = LATER
    await engine.sessions.end_silent()
    assert backend.archives and not ended

    time[0] = LATER + timedelta(days=30)
    await engine.sessions.end_silent()

    await until(lambda: not backend.archives)
    row = await catalog.sessions.get("s")
    assert (row.finish_reason, ended) == ("cancelled", ["s"])
    assert "30 days" in (row.finish_detail or "")
    assert (await catalog.runs.get(RUN)).state == "unloaded"
    assert await engine.wake(RUN) is None


async def test_a_session_that_beats_or_works_goes_on(start: Start, backend: FakeBackend, catalog: Catalog) -> None:
    time = [NOW]
    engine = await start(clock=clock(time))
    live = await made_run(engine)

    time[0] = LATER
    engine.presence.saw_session("s")
    await engine.sessions.end_silent()
    time[0] = LATER + timedelta(hours=1)
    backend.hold("forward_backward")
    await engine.training.forward_backward(live, 1, b"1")
    await engine.sessions.end_silent()
    backend.let_go("forward_backward")

    assert not (await catalog.sessions.get("s")).is_finished


async def test_a_restarted_server_gives_clients_time_to_be_heard_again(
    start: Start, backend: FakeBackend, catalog: Catalog
) -> None:
    time = [LATER]
    engine = await start(clock=clock(time))

    await engine.sessions.end_silent()

    assert not (await catalog.sessions.get("s")).is_finished


async def test_a_run_that_was_made_while_its_session_ended_does_not_stay(engine: Engine, backend: FakeBackend) -> None:
    await engine.catalog.sessions.finish("s", reason="success", now=NOW)
    await engine.sessions.finish("s")
    await answer(engine, await make_run(engine))
    assert live_run(engine).run_id in backend.runs

    await engine.sessions.end_silent()

    await until(lambda: not backend.runs)


async def test_remembering_a_sample_of_many_sequences_costs_no_more_than_one_of_few(engine: Engine) -> None:
    source = SamplerSource("s:sample:0", "local", "tiny", None)

    first = await engine.sampling.submit(source, 0, b"1", num_samples=4096)
    again = await engine.sampling.submit(source, 0, b"1", num_samples=4096)

    assert again.sequence_ids == first.sequence_ids
    assert len(set(first.sequence_ids)) == 4096
    assert not any(isinstance(getattr(again, name), tuple) for name in again.__slots__)


async def test_a_session_that_a_killed_server_had_opened_for_itself_ends(start: Start, catalog: Catalog) -> None:
    for session_id, sdk_version in (("left", SERVER_SDK), ("script", "0.36.0")):
        await catalog.sessions.create(session_id, owner="local", sdk_version=sdk_version, now=NOW)
    ended: list[str] = []
    engine = await start(clock=lambda: LATER, on_session_end=ended.append)
    await catalog.sessions.create("own", owner="local", sdk_version=SERVER_SDK, now=LATER)
    engine.presence.saw_session("own")

    await engine.sessions.end_silent()

    row = await catalog.sessions.get("left")
    assert (row.finish_reason, ended) == ("interrupted", ["left"])
    assert not (await catalog.sessions.get("own")).is_finished, "its sample runs"
    assert not (await catalog.sessions.get("script")).is_finished, "its client may come back"
