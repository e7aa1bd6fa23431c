from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chockstone.cli.settings.settings import SettingsError
from chockstone.cli.settings.values import MODELS, SWITCH, TRACKER_KINDS, number_or_auto
from support.cli.settings import load


@pytest.mark.parametrize(
    ("name", "word", "message"),
    [
        ("user_quota", "0", "flag --user-quota: '0' is too small"),
        ("run_quota", "5 apples", "'5 apples' is not a size: write bytes, or a number and a unit"),
        ("disk_reserve", "-1GB", "is not a size"),
        ("trash", "7", "'7' is not a duration"),
        ("sweep_interval", "off", "'off' is not a duration"),
        ("checkpoint_ttl", "0s", "is not a duration"),
        ("keep_last", "0", "'0' is not a whole number from 1"),
        ("replicas", "0", "flag --replicas: '0' is not a whole number from 1 to 64, nor auto"),
        ("replicas", "all", "'all' is not a whole number"),
        ("journal", "always", "flag --journal: 'always' is none of off, on, synced"),
        ("recovery_steps", "0", "flag --recovery-steps: '0' is not a whole number from 1"),
        ("recovery_replay", "0s", "is not a duration"),
        ("park_after", "never", "'never' is not a duration"),
        ("session_timeout", "off", "'off' is not a duration"),
        ("admins", ["al ice"], "flag --admin: a user's name has letters"),
        ("public_url", "models.example.com", "is not the URL of a server"),
        ("engine", "http://ann:pass@engine:8000", "this URL is printed and must not hold a password"),
        ("store", "s3:///prefix", "flag --store: 's3:///prefix' is not an object store"),
        ("store", "s3://key:secret@bucket", "flag --store: a store URL holds a bucket and a prefix only"),
        ("store", "s3://bucket/a/../b", "'a/../b' cannot name a checkpoint"),
        ("sampler_gap_limit", "0", "flag --sampler-gap-limit: '0' is not a number above 0"),
        ("sampler_gap_limit", "inf", "'inf' is not a number above 0"),
        ("sampler_gap_limit", "nan", "'nan' is not a number above 0"),
        ("sampler_gap_limit", "much", "'much' is not a number above 0"),
    ],
)
def test_a_rule_that_cannot_be_read_is_named(tmp_path: Path, name: str, word: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load(tmp_path, {name: word})


@pytest.mark.parametrize(
    ("word", "name", "directory"),
    [
        ("Qwen/Qwen3-8B=./models/tiny", "Qwen/Qwen3-8B", "models/tiny"),
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("./models/tiny", "tiny", "models/tiny"),
        ("models/tiny/", "tiny", "models/tiny"),
        ("./models/a=b/tiny", "tiny", "models/a=b/tiny"),
        ("name=a=b", "name", "a=b"),
        ("name:64k=a", "name:64k", "a"),
    ],
)
def test_a_model_is_a_name_a_directory_or_both(tmp_path: Path, word: str, name: str, directory: str) -> None:
    settings = load(tmp_path, {"models": [word]})

    assert [(model.name, model.directory) for model in settings.models] == [(name, tmp_path / directory)]


@pytest.mark.parametrize(
    ("word", "is_on_hub"),
    [
        ("Qwen/Qwen3-8B", True),
        ("here/tiny", False),
        ("here/gone", False),
        ("tiny", False),
        ("a/b/c", False),
        ("Qwen/Qwen3-8B=./x", False),
    ],
)
def test_a_name_of_the_hub_without_a_directory_is_looked_for_there(tmp_path: Path, word: str, is_on_hub: bool) -> None:
    (tmp_path / "here/tiny").mkdir(parents=True)

    [model] = load(tmp_path, {"models": [word]}).models

    assert model.is_on_hub == is_on_hub
    written = MODELS.write((model,))
    assert written == (word if is_on_hub else f"{model.name}={model.directory}")
    assert MODELS.read(written, tmp_path)[0].is_on_hub == is_on_hub


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a=x", "a=y"], "flag --model: the model 'a' is given twice"),
        (["=x"], "'' cannot be a model's name"),
        (["a b=x"], "'a b' cannot be a model's name"),
        (["a="], "the value is empty"),
        (["./my models"], "'my models' cannot be a model's name.* NAME=DIRECTORY gives a directory another name"),
    ],
)
def test_a_model_that_cannot_be_named_is_refused(tmp_path: Path, words: list[str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load(tmp_path, {"models": words})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tml-geheim1"], "flag --key: number 1 is not of the form USER=tml-…"),
        (["alice=sk-geheim1"], "the key of 'alice' cannot be used: a key starts with tml-"),
        (["alice=tml-x"], "at least 8 characters"),
        (["alice=tml-geheim 1"], "none of them a space"),
        (["alice=tml-geheim1", "alice=tml-geheim2"], "the user 'alice' is given twice"),
        (["alice=tml-geheim1", "bob=tml-geheim1"], "the key of 'bob' is also the key of another user"),
        (["a lice=tml-geheim1"], "a user's name has letters"),
    ],
)
def test_a_bad_key_is_refused_and_never_repeated(tmp_path: Path, words: list[str], message: str) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        load(tmp_path, {"keys": words})

    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "expected"), [(True, True), (False, False), ("on", True), ("OFF", False), ("1", True), ("no", False)]
)
def test_a_switch_is_on_or_off(given: object, expected: bool) -> None:
    assert SWITCH.read(given, Path()) is expected
    assert SWITCH.read(SWITCH.write(expected), Path()) is expected


def test_a_switch_is_nothing_else() -> None:
    with pytest.raises(ValueError, match="neither on nor off"):
        SWITCH.read("maybe", Path())


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (["wandb,mlflow", "trackio", "mlflow"], ("wandb", "mlflow", "trackio")),
        ("tensorboard", ("tensorboard",)),
        ("none", ()),
        ("off", ()),
    ],
)
def test_trackers_are_named_with_commas_or_one_by_one(given: object, read: tuple[str, ...]) -> None:
    assert TRACKER_KINDS.read(given, Path()) == read


@pytest.mark.parametrize("given", ["comet", "wandb,", "none,wandb", ["Wandb"]])
def test_an_unknown_tracker_is_refused(given: object) -> None:
    with pytest.raises(ValueError):
        TRACKER_KINDS.read(given, Path())


@pytest.mark.parametrize(("given", "read"), [("auto", 0), ("1", 1), (64, 64)])
def test_a_number_or_auto_is_written_as_it_is_read(given: object, read: int) -> None:
    kind = number_or_auto(1, 64)

    assert kind.read(given, Path()) == read
    assert kind.write(read) == str(given)


@pytest.mark.parametrize(("word", "limit"), [("0.05", 0.05), ("2", 2.0), ("off", None), ("none", None), (1, 1.0)])
def test_the_limit_of_the_gap_is_a_number_or_off(tmp_path: Path, word: Any, limit: float | None) -> None:
    assert load(tmp_path, {"sampler_gap_limit": word}).deployment.sampler_gap_limit == limit
    assert load(tmp_path).deployment.sampler_gap_limit == 0.1
