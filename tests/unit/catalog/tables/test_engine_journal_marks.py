from __future__ import annotations

from chockstone.catalog import Catalog
from chockstone.catalog.tables.engine import JournalMarkRow

FIRST = JournalMarkRow("s:train:0", "b1", sequence=7, operations=4)


async def test_a_mark_comes_back_as_it_was_written_and_is_replaced_by_the_next(catalog: Catalog) -> None:
    await catalog.journal_marks.put_many({FIRST.run_id: FIRST})
    assert await catalog.journal_marks.get(FIRST.run_id) == FIRST

    later = JournalMarkRow("s:train:0", "b2", sequence=2**40, operations=2**39)
    other = JournalMarkRow("s:train:1", "b1", sequence=1, operations=1)
    await catalog.journal_marks.put_many({row.run_id: row for row in (other, later)})

    assert await catalog.journal_marks.get(later.run_id) == later
    assert await catalog.journal_marks.get(other.run_id) == other


async def test_a_run_that_is_over_has_no_mark(catalog: Catalog) -> None:
    await catalog.journal_marks.put_many({FIRST.run_id: FIRST})

    await catalog.journal_marks.remove(FIRST.run_id)
    await catalog.journal_marks.remove(FIRST.run_id)

    assert await catalog.journal_marks.get(FIRST.run_id) is None
    await catalog.journal_marks.put_many({})
