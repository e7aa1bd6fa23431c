from __future__ import annotations

import pytest

from chockstone.wire.sizes import format_size
from support.api.users import MODEL, User
from support.engine.gap_meter import ScriptedGapMeter, measured, unmeasured
from support.page_visitor import Markup, PageVisitor
from support.served import Served


async def open_sampler(user: User, **facts: str) -> str:
    session_id = await user.session()
    body = {"session_id": session_id, "sampling_session_seq_id": 0, **facts}
    answer = await user.http.post("create_sampling_session", json=body)
    return str(answer.json()["sampling_session_id"])


async def test_the_page_shows_the_worker_its_models_and_open_samplers(ann: PageVisitor, users: dict[str, User]) -> None:
    sampler = await open_sampler(users["ann"], base_model=MODEL)

    page = Markup((await ann.open("/console/samplers")).text)

    assert page.refused_by_policy() == []
    for test in ("worker-state", "restarts", "model", "sampler"):
        assert page.having("data-test", test), test
    assert sampler in page.text
    assert "0 running, 0 queued" in page.text


async def test_without_samplers_the_page_teaches_how_to_open_one(ann: PageVisitor) -> None:
    assert "create_sampling_client" in (await ann.open("/console/samplers")).text


async def test_another_users_samplers_are_not_there(
    ann: PageVisitor, root: PageVisitor, users: dict[str, User]
) -> None:
    theirs = await open_sampler(users["bob"], base_model=MODEL)

    assert theirs not in (await ann.open("/console/samplers")).text
    assert theirs in (await root.open("/console/samplers")).text


async def test_the_page_follows_the_load(ann: PageVisitor) -> None:
    page = await ann.open("/console/samplers")

    assert 'data-live="/console/live/samplers"' in page.text
    assert {"worker", "samplers"} == {given["data-part"] for given in Markup(page.text).having("data-part")}


@pytest.mark.parametrize("replicas", [2])
async def test_each_replica_has_a_row_with_its_state_runs_memory_and_restarts(
    served: Served, ann: PageVisitor, users: dict[str, User]
) -> None:
    for _ in range(3):
        await users["ann"].run()
    served.backends[1].die("signal <9>")
    served.backends[1].is_ready = False
    served.engine.membership.drain(0)

    page = Markup((await ann.open("/console/samplers")).text)

    assert page.refused_by_policy() == []
    assert len(page.having("data-test", "replica")) == 2
    assert f"0 ready leaving 2 {format_size(1 << 20)} 0 –" in page.text
    assert "1 starting 1 – 1 –" in page.text, "its memory is not known, and it died once"


async def test_a_single_worker_has_no_table_of_replicas(ann: PageVisitor) -> None:
    assert not Markup((await ann.open("/console/samplers")).text).having("data-test", "replicas")


@pytest.mark.parametrize(
    "gap_meter",
    [ScriptedGapMeter(measured(0.0021), measured(0.31, server="http://two"), unmeasured("<NaN>", server="h"))],
)
async def test_a_sampler_shows_the_gap_of_its_weights_on_each_vllm_server(
    ann: PageVisitor, users: dict[str, User], gap_meter: ScriptedGapMeter
) -> None:
    sampler = await open_sampler(users["ann"], base_model=MODEL)
    before = Markup((await ann.open("/console/samplers")).text)
    assert (await users["ann"].http.post("samplers/check", json={"sampler": sampler})).status_code == 200

    text = (await ann.open("/console/samplers")).text
    page = Markup(text)

    assert "vLLM gap" in before.text
    assert page.refused_by_policy() == []
    assert "not measured 0.0021 0.31" in page.text
    assert "largest 0.0105 of 128 tokens" in text and "h: &lt;NaN&gt;" in text


async def test_without_vllm_servers_there_is_no_column_of_gaps(ann: PageVisitor, users: dict[str, User]) -> None:
    await open_sampler(users["ann"], base_model=MODEL)

    assert "vLLM gap" not in (await ann.open("/console/samplers")).text
