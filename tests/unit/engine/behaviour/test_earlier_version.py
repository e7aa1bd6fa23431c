"""Journals, catalogs and archives of an earlier version are read by this one, and written in the same bytes."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import orjson
import pytest

from chockstone.engine.journal.scan import scan_all
from chockstone.wire.paths import Kind
from support.engine.lives import Life, lived
from support.engine.making import RUN

EARLIER = Path(__file__).parents[3] / "fixtures" / "version-0.1.0"
# Each run has an id of its own at birth. Names and seals of its archives depend on it.
OWN = re.compile(rb'"[0-9a-f]{8}"|"[0-9a-f]{64}"|-[0-9a-f]{16}"')
EXPECTED: dict[str, Any] = json.loads((EARLIER / "expected.json").read_text())


@pytest.fixture
def earlier_data(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EARLIER / "data", tmp_path / "data"))


async def test_a_run_of_an_earlier_version_is_recovered_with_every_answer_it_gave(earlier_data: Path) -> None:
    async with lived(earlier_data) as life:
        told = {request_id: (await life.result(request_id)).body.decode() for request_id in EXPECTED["results"]}
        state = await life.state()
        receipt = (await life.receipts())[0]

    assert told == EXPECTED["results"]
    assert state == (22, 13, 3)  # the step and the pass that were only acknowledged are done, too
    assert (receipt.mismatched, receipt.lost) == (0, 0)


async def test_the_requests_that_an_earlier_version_only_acknowledged_are_answered(earlier_data: Path) -> None:
    step, last = EXPECTED["asked"][-2:]

    async with lived(earlier_data) as life:
        metrics = (await life.told(step))["metrics"]
        loss = (await life.result(last)).body

    assert metrics == {"weight": 22, "steps": 3.0}
    assert loss == b"loss 13"


async def test_checkpoints_of_an_earlier_version_are_listed_and_loaded(earlier_data: Path) -> None:
    async with lived(earlier_data) as life:
        life.seq_id = EXPECTED["seq_id"]
        await life.state()
        loaded = await life.told(await life.ask_load("a"))

        assert loaded["path"] == f"tinker://{RUN}/weights/a"
        assert (await life.state())[0] == 11


async def test_the_same_requests_make_the_same_records(tmp_path: Path) -> None:
    async with lived(tmp_path / "data") as life:
        await _ask_as_then(life)
        await life.written()
        journal = life.crash() / life.journal().relative_to(life.home)

    earlier = EARLIER / "data" / life.journal().relative_to(life.home)
    assert _records(journal) == _records(earlier)
    # All that this version adds:
    assert (_trained(journal), _trained(earlier)) == ([5, 11, 18, 29], [])
    assert (_measured(journal), _measured(earlier)) == ([0, 1, 1, 2, 2, 3, 2], [])
    assert (_trains_experts(journal), _trains_experts(earlier)) == (True, None)


async def _ask_as_then(life: Life) -> None:
    await life.make()
    await life.train(5, 6)
    await life.result(await life.ask_save("a", user_metadata={"note": "é"}))
    await life.result(await life.ask_save("s", kind=Kind.SAMPLER_WEIGHTS, ttl_seconds=10**9))
    await life.result(await life.ask_sampler(3))
    await life.train(7)
    await life.result(await life.ask_load("a"))
    await life.result(await life.ask_pass(11))


def _records(journal: Path) -> list[bytes]:
    """The JSON of the records of all requests that were answered, without what differs from run to run."""
    heads = [{**record.head} for scan in scan_all(journal) for record in scan.records]
    for head in heads:
        head.pop("trained", None)
        head.pop("measured", None)
    heads[0]["run"]["spec"].pop("train_experts", None)
    answered = 1 + 2 * (1 + len(EXPECTED["results"]))  # the head; then a request and its result, beginning with "open"
    assert len(heads) >= answered
    return [OWN.sub(b"", orjson.dumps(head)) for head in heads[:answered]]


def _trained(journal: Path) -> list[int]:
    """How many tokens the run had trained, after each pass."""
    heads = [record.head for scan in scan_all(journal) for record in scan.records]
    return [head["trained"]["tokens"] for head in heads if "trained" in head]


def _trains_experts(journal: Path) -> bool | None:
    return next(iter(scan_all(journal))).records[0].head["run"]["spec"].get("train_experts")


def _measured(journal: Path) -> list[int]:
    """The step at which each operation has numbers in the run's step history."""
    heads = [record.head for scan in scan_all(journal) for record in scan.records]
    return [head["measured"]["step"] for head in heads if "measured" in head]
