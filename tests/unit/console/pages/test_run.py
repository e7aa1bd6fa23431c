from __future__ import annotations

import asyncio
import csv
import html
import io
import json
from datetime import UTC, datetime
from unittest.mock import Mock

import pytest

from chockstone.api.context import Context
from chockstone.console.pages.run import PARTS, PointFeed, RunView, flatten, marks_of, marks_part, timings_of
from chockstone.engine.history.points import HistoryPoint, Measurement
from chockstone.wire.messages.runs import Recovery
from support.api.users import User
from support.page_visitor import Markup, PageVisitor

HOSTILE = "<script>alert(1)</script>\"'{{7*7}}</div>"


def page_of(run_id: str) -> str:
    return f"/console/runs/{run_id}"


async def post(user: User, run_id: str, step: int, **values: float) -> None:
    body = {"points": [{"step": step, "values": values}]}
    answer = await user.http.post(f"training_runs/{run_id}/metrics", json=body)
    assert answer.status_code == 200, answer.text


async def test_the_page_shows_the_run_with_its_checkpoints(ann: PageVisitor, users: dict[str, User]) -> None:
    run_id = await users["ann"].run()
    await users["ann"].save(run_id, "first")

    page = Markup((await ann.open(page_of(run_id))).text)

    assert page.having("data-test", "run-step")
    assert page.having("data-copy", f"tinker://{run_id}/weights/first")
    assert {given["data-part"] for given in page.having("data-part")} == {*PARTS, "run_marks"}


@pytest.mark.parametrize("tail", ["", "/points", "/points.csv"])
async def test_another_users_run_is_not_there(
    ann: PageVisitor, root: PageVisitor, users: dict[str, User], tail: str
) -> None:
    run_id = await users["bob"].run()

    theirs, nothing = await ann.open(page_of(run_id) + tail), await ann.open(page_of("s:train:0") + tail)

    assert (theirs.status_code, nothing.status_code) == (404, 404)
    assert theirs.text.replace(run_id, "X") == nothing.text.replace("s:train:0", "X")
    assert (await root.open(page_of(run_id) + tail)).status_code == 200
    assert (await ann.open(f"/console/live/runs/{run_id}")).status_code == 404


async def test_metadata_and_names_are_text(ann: PageVisitor, users: dict[str, User]) -> None:
    user = users["ann"]
    body = {
        "session_id": await user.session(),
        "model_seq_id": 1,
        "base_model": "tiny",
        "lora_config": {"rank": 4, "seed": 0},
        "user_metadata": {"name": HOSTILE, HOSTILE[:30]: HOSTILE},
    }
    run_id = str((await user.result("create_model", body))["model_id"])

    answer = await ann.open(page_of(run_id))
    page = Markup(answer.text)

    assert HOSTILE in page.text
    assert page.refused_by_policy() == []


def test_marks_of_a_live_page_are_text() -> None:
    now = datetime.now(UTC)
    counts = {"replayed": 0, "redone": 0, "matched": 0, "mismatched": 0}
    crash = Recovery(at=now, reason=HOSTILE, skipped=[], seconds=0.0, notes=[], **counts)
    view = Mock(spec_set=RunView, recoveries=[crash], checkpoints=[])

    markup = marks_part(view)

    assert "<" not in markup
    assert json.loads(html.unescape(markup)) == marks_of(view)
    assert marks_of(view)[0]["label"] == HOSTILE


async def test_points_come_as_json_and_csv(ann: PageVisitor, users: dict[str, User]) -> None:
    run_id = await users["ann"].run()
    for step in range(3):
        await post(users["ann"], run_id, step, reward=step / 2)

    points = (await ann.open(page_of(run_id) + "/points")).json()
    later = (await ann.open(page_of(run_id) + f"/points?after={points['points'][1]['position']}")).json()
    sheet = await ann.open(page_of(run_id) + "/points.csv")

    assert [point["values"]["reward"] for point in points["points"]] == [0, 0.5, 1]
    assert [point["values"]["reward"] for point in later["points"]] == [1]
    assert [row["reward"] for row in csv.DictReader(io.StringIO(sheet.text))] == ["0.0", "0.5", "1.0"]
    assert sheet.headers["content-disposition"].startswith("attachment; filename=")


async def test_a_page_that_connects_again_gets_the_points_that_it_missed(
    context: Context, users: dict[str, User]
) -> None:
    run_id = await users["ann"].run()
    for step in range(3):
        await post(users["ann"], run_id, step, reward=float(step))
    first = (await context.engine.history.read(run_id)).points[0].position

    with PointFeed(context.engine.history, run_id, after=first) as feed:
        missed = await feed.next(timeout_seconds=10)
        nothing = await feed.next(timeout_seconds=0.01)
        posting = asyncio.create_task(post(users["ann"], run_id, 3, reward=3.0))
        new = await feed.next(timeout_seconds=10)
        await posting

    assert missed is not None and nothing is None and new is not None
    assert [each["step"] for each in json.loads(missed.split(b"data: ")[1])] == [1, 2]
    assert [each["step"] for each in json.loads(new.split(b"data: ")[1])] == [3]


async def test_marks_are_json_in_the_page_and_no_script(ann: PageVisitor, users: dict[str, User]) -> None:
    run_id = await users["ann"].run()
    await users["ann"].save(run_id, "first")

    page = await ann.open(page_of(run_id))
    text = page.text.partition("data-marks>")[2].partition("<")[0]

    assert [(mark["kind"], mark["label"]) for mark in json.loads(html.unescape(text))] == [("checkpoint", "first")]


def test_timings_tell_passes_from_steps() -> None:
    def point(position: int, **values: float) -> HistoryPoint:
        return HistoryPoint(position, position, float(position), position, "server", values)

    points = [point(1, tokens=10, seconds=0.3), point(2, learning_rate=1e-3, seconds=0.1), point(3, loss=1.0)]

    first, second = timings_of(points)

    assert (first.label, first.middle, first.slowest) == ("forward_backward", 0.3, 0.3)
    assert (second.label, round(second.share, 2)) == ("optim_step", 0.25)
    assert timings_of([]) == []


def test_settings_are_flat() -> None:
    assert flatten({"rank": 4, "train": {"mlp": True, "seed": None}, "name": "x"}) == [
        ("rank", "4"),
        ("train.mlp", "true"),
        ("name", "x"),
    ]


async def test_the_history_of_a_client_is_not_timed(context: Context, users: dict[str, User]) -> None:
    run_id = await users["ann"].run()
    await context.engine.history.record_client(
        run_id, [Measurement(1.0, 1, {"seconds": 9.0, "tokens": 1.0})], owner="ann"
    )

    points = (await context.engine.history.read(run_id)).points

    assert timings_of([each for each in points if each.source == "server"]) == []
