from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import pytest

from chockstone.cli.serving.server_config import server_config
from chockstone.cli.settings.settings import Settings
from chockstone.engine.config import Durability, EngineLimits, StorageRules


def test_an_engine_without_settings_works_as_a_server_without_flags() -> None:
    config = server_config(Settings())

    assert (config.limits, config.durability, config.storage) == (EngineLimits(), Durability(), StorageRules())


@pytest.mark.parametrize(
    "settings", [Durability(), EngineLimits(), StorageRules()], ids=lambda each: type(each).__name__
)
def test_settings_do_not_change_while_the_server_runs(settings: Durability | EngineLimits | StorageRules) -> None:
    for field in fields(settings):
        with pytest.raises(FrozenInstanceError):
            setattr(settings, field.name, None)


def test_a_run_is_parked_long_before_its_session_ends_and_workers_are_suspected_before_servers() -> None:
    limits = EngineLimits()

    assert limits.park_seconds < limits.forget_seconds
    assert limits.deaths < limits.attempts
    assert Durability().on_journal_loss == "fail", "a run never goes back in silence"
