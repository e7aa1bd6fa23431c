from __future__ import annotations

from pathlib import Path

import pytest

from chockstone.cli.settings.fields import build, list_fields, value_of
from chockstone.cli.settings.settings import DeploymentSettings, LimitSettings, Settings


def test_every_setting_has_names_of_its_own() -> None:
    fields = list_fields(Settings)

    for names in ([field.name for field in fields], [field.flag for field in fields]):
        assert len(set(names)) == len(names)


def test_a_repeatable_flag_is_singular() -> None:
    flags = {field.name: field.flag for field in list_fields(Settings)}

    assert (flags["models"], flags["keys"], flags["admins"]) == ("--model", "--key", "--admin")
    assert (flags["vllm_urls"], flags["workers"], flags["max_runs"]) == ("--vllm-url", "--workers", "--max-runs")


def test_a_description_is_one_sentence_that_starts_with_a_capital_letter() -> None:
    for field in list_fields(Settings):
        assert field.help[0].isupper(), field.name
        assert field.help.endswith("."), field.name
        assert "\n" not in field.help, field.name


def test_every_default_can_be_written_and_read_again() -> None:
    for field in list_fields(Settings):
        text = field.kind.write(field.default)

        if text not in ("none", "chockstone-data"):  # an empty list, and a path that starts from a directory
            assert field.kind.read(text, Path("/")) == field.default, field.name


def test_a_value_is_found_in_its_group() -> None:
    settings = Settings(port=9, limits=LimitSettings(max_runs=3))

    assert (value_of(settings, "port"), value_of(settings, "max_runs")) == (9, 3)
    with pytest.raises(KeyError):
        value_of(settings, "limits")


def test_a_model_is_built_of_the_values_of_its_settings() -> None:
    values = {field.name: field.default for field in list_fields(Settings)}

    built = build(Settings, {**values, "workers": 4}, sources={"workers": "flag --workers"})

    assert built == Settings(deployment=DeploymentSettings(workers=4))
    assert built.source_of("workers") == "flag --workers"
