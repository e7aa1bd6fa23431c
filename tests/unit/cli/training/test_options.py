from __future__ import annotations

from chockstone.cli.settings.fields import list_fields
from chockstone.cli.training.options import TrainOptions
from chockstone.trainers.config import TrainerConfig


def test_the_defaults_that_the_help_shows_are_those_of_the_trainer() -> None:
    config = TrainerConfig("tiny")

    for option in list_fields(TrainOptions):
        assert getattr(config, option.name) == option.default, option.name
