from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from sqlalchemy.dialects import postgresql, sqlite

from chockstone.catalog import schema

NOON = datetime(2026, 1, 2, 12, 30, tzinfo=timezone(timedelta(hours=2)))


@pytest.mark.parametrize("dialect", [sqlite.dialect(), postgresql.dialect()], ids=["sqlite", "postgresql"])
def test_times_come_back_in_utc(dialect: sqlite.dialect | postgresql.dialect) -> None:
    column = schema.Moment()

    stored = column.process_bind_param(NOON, dialect)
    read = column.process_result_value(stored, dialect)

    assert read == NOON
    assert read is not None and read.tzinfo is UTC
    assert column.process_bind_param(None, dialect) is None


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="zone"):
        schema.Moment().process_bind_param(datetime(2026, 1, 2), sqlite.dialect())  # the point
