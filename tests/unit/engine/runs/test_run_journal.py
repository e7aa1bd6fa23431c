from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from chockstone.engine.futures import Result
from chockstone.engine.journal.journal import JournalWriter
from chockstone.engine.journal.mark_file import MarkFile
from chockstone.engine.runs.commands import Command, ForwardBackward, OpenRun, StepOptimizer
from chockstone.engine.runs.operations import Operation, OperationOutcome, OperationRequest
from chockstone.engine.runs.run import RunFacts, journal_head
from chockstone.engine.runs.run_journal import RunJournal, RunJournals
from chockstone.engine.runs.used_seq_ids import UsedSeqIds
from support.engine.making import RUN

FACTS = RunFacts(RUN, "s", 0, "local", "tiny", {"rank": 8}, {"type": "adamw"}, birth="ab")
HEAD = journal_head(FACTS, UsedSeqIds(), {})


@pytest.fixture
async def journals(tmp_path: Path) -> AsyncIterator[RunJournals]:
    writer = JournalWriter(synced=False)
    yield RunJournals(tmp_path / "runs", writer, lambda _: MarkFile(tmp_path / "mark"))
    await writer.close()


async def ended(journal: RunJournal, command: Command, seq_id: int, *, is_failure: bool = False) -> Operation:
    operation = journal.add(OperationRequest(command, f"{RUN}:{seq_id}", seq_id, body=b"body"))
    await journal.written_at_last(operation.request_id)
    journal.settle(operation, OperationOutcome(Result(b"{}", is_failure=is_failure)))
    await journal.flushed()
    return operation


async def test_operations_are_read_as_they_were_added(journals: RunJournals) -> None:
    journal = await journals.create(RUN, HEAD)
    await ended(journal, OpenRun(), 0)
    added = journal.add(OperationRequest(ForwardBackward("s:loss:1"), f"{RUN}:1", 1, body=b"body", loss={"graph": 1}))
    await journal.flushed()
    await journal.close()

    again, contents = await journals.reopen(RUN)
    [first, second] = contents.operations
    definition, body = await again.loss(second), await again.body(second)
    await again.close()

    assert RunFacts.from_json(contents.facts) == FACTS
    assert (first.command, first.outcome is None) == (OpenRun(), False)
    assert (second.command, second.outcome, second.sequence) == (added.command, None, added.sequence)
    assert second.request.after == first.sequence
    assert (definition, body) == ({"graph": 1}, b"body")
    assert contents.used_seq_ids.has(1) and not contents.used_seq_ids.has(2)


async def test_an_operation_that_ended_keeps_no_body_in_memory(journals: RunJournals) -> None:
    journal = await journals.create(RUN, HEAD)

    operation = await ended(journal, StepOptimizer({}), 1)

    assert operation.request.body is None
    assert await journal.body(operation) == b"body"
    await journal.close()


async def test_journals_are_listed_by_the_age_of_their_last_file_until_they_are_deleted(
    journals: RunJournals, tmp_path: Path
) -> None:
    for run_id in (RUN, "s:train:1"):
        await (await journals.create(run_id, journal_head(replace(FACTS, run_id=run_id), UsedSeqIds(), {}))).close()
    os.utime(tmp_path / "runs" / "s.train.1", (0, 0))

    assert await journals.list_runs() == [RUN, "s:train:1"]
    assert await journals.list_runs(min_age_seconds=60) == ["s:train:1"]
    await journals.delete(RUN)
    assert (await journals.exists(RUN), await journals.exists("s:train:1")) == (False, True)


async def test_without_a_writer_nothing_is_kept(tmp_path: Path) -> None:
    journals = RunJournals(tmp_path / "runs", None, lambda _: MarkFile(tmp_path / "mark"))

    journal = await journals.create(RUN, HEAD)

    assert (journals.are_kept, journal.is_kept, await journals.list_runs()) == (False, False, [])
