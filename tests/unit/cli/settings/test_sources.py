from __future__ import annotations

import json
from pathlib import Path

import pytest

from chockstone.cli.settings.settings import (
    NAMES,
    LimitSettings,
    RecoverySettings,
    SettingsError,
    StorageSettings,
    TraceSettings,
)
from chockstone.cli.settings.values import ModelSetting
from support.cli.settings import load


def test_a_flag_wins_over_the_environment_that_over_the_file_that_over_the_default(tmp_path: Path) -> None:
    file = "port = 1\nthreads = 1\nmax_runs = 1\n"
    environment = {"CHOCKSTONE_PORT": "2", "CHOCKSTONE_THREADS": "2"}

    settings = load(tmp_path, {"port": 3, "host": None}, file=file, **environment)

    assert (settings.port, settings.threads, settings.limits.max_runs) == (3, 2, 1)
    assert settings.limits.max_sequences == 256
    assert [settings.source_of(name) for name in ("port", "threads", "max_runs", "max_sequences")] == [
        "flag --port",
        "environment CHOCKSTONE_THREADS",
        f"file {tmp_path}/chockstone.toml",
        "default",
    ]


def test_every_setting_can_come_from_each_source(tmp_path: Path) -> None:
    texts = {
        "models": "a=./a,./b",
        "host": "localhost",
        "data": "elsewhere",
        "activation_checkpointing": "on",
        "router_replay": "off",
        "memory_check": "off",
        "base_precision": "4bit",
        "device": "cuda",
        "dtype": "bfloat16",
        "log_level": "debug",
        "log_format": "json",
        "otlp_endpoint": "http://collector:4318",
        "trace_ratio": "0.17",
        "keys": "alice=tml-alice, bob=tml-bobby",
        "admins": "alice, bob",
        "public_url": "https://models.example.com/",
        "console": "off",
        "keep_best": "loss:max:17",
        "journal": "synced",
        "on_journal_loss": "continue",
        **dict.fromkeys(("checkpoint_ttl", "trash", "sweep_interval", "scrub_interval"), "17h"),
        **dict.fromkeys(("recovery_replay", "spare_worker", "park_after", "session_timeout"), "17h"),
        **dict.fromkeys(("user_quota", "run_quota"), "17GiB"),
        "database": "postgresql://ann:secret@db/x",
        "store": "s3://bucket/prefix",
        "backend": "ray",
        "ray_address": "auto",
        "sampler": "vllm",
        "track": "mlflow, tensorboard",
        "vllm_urls": "http://one:8000, http://other:8000",
        "vllm_adapters": "adapters",
        "engine": "http://engine:8000",
        "downloads": "relay",
    }
    environment = {f"CHOCKSTONE_{name.upper()}": texts.get(name, "17") for name in NAMES}
    lines = [f"{name} = {json.dumps(texts[name]) if name in texts else 17}" for name in NAMES]

    from_environment = load(tmp_path, **environment)
    from_flags = load(tmp_path, {name: texts.get(name, 17) for name in NAMES})
    from_file = load(tmp_path, file="\n".join(lines))

    assert from_environment == from_flags == from_file
    assert from_file.models == (ModelSetting("a", tmp_path / "a"), ModelSetting("b", tmp_path / "b"))
    assert from_file.keys == {"alice": "tml-alice", "bob": "tml-bobby"}
    assert from_file.limits == LimitSettings(17, 17, 17, 17, 17, 17, 17, "on", "off", memory_check=False)
    assert (from_file.admins, from_file.public_url) == ({"alice", "bob"}, "https://models.example.com")
    hours, gib = 17 * 3600.0, 17 * 2**30
    assert from_file.storage == StorageSettings(
        17, 17, ("loss", "max", 17), hours, gib, gib, 17, 17, hours, hours, scrub_rate=17, scrub_interval=hours
    )
    assert from_file.traces == TraceSettings("http://collector:4318", 0.17)
    assert from_file.recovery == RecoverySettings("synced", "continue", 17, hours, hours, hours, hours)


def test_rules_can_be_switched_off_over_another_source(tmp_path: Path) -> None:
    file = "keep_last = 3\nuser_quota = '50GiB'\ntrash = '7d'\nscrub_rate = '1MB'\npublic_url = 'http://x'\n"
    environment = dict.fromkeys(("keep_last", "user_quota", "trash", "scrub_rate", "public_url"), "off")

    on = load(tmp_path, file=file)
    off = load(tmp_path, file=file, **{f"CHOCKSTONE_{name.upper()}": word for name, word in environment.items()})

    assert (on.storage.keep_last, on.storage.user_quota, on.storage.trash) == (3, 50 * 2**30, 604_800.0)
    assert (off.storage, off.public_url) == (StorageSettings(scrub_rate=0), None)
    assert load(tmp_path, {"trash": "0"}).storage.trash == load(tmp_path, file="trash = 0").storage.trash == 0.0


def test_one_source_gives_the_whole_of_a_setting(tmp_path: Path) -> None:
    settings = load(tmp_path, {"models": ["a=a"]}, file="[models]\nb = 'b'\n")

    assert [model.name for model in settings.models] == ["a"]


def test_an_empty_variable_counts_as_not_set(tmp_path: Path) -> None:
    assert load(tmp_path, CHOCKSTONE_PORT="").source_of("port") == "default"


def test_relative_paths_in_a_file_start_from_the_file(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/mine.toml").write_text("data = 'd'\nmodels = ['m=../m']\n")

    by_flag = load(tmp_path, config="etc/mine.toml")
    by_variable = load(tmp_path, CHOCKSTONE_CONFIG="etc/mine.toml")

    assert by_flag == by_variable
    assert by_flag.data == tmp_path / "etc/d"
    assert by_flag.models == (ModelSetting("m", tmp_path / "m"),)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("prot = 1", "the key 'prot' in '.*/chockstone.toml' is not a setting; did you mean 'port'?"),
        ("[limits]\nmax_runs = 1", "the key 'limits' in .* is not a setting; settings: models, host, port"),
        ("port = \n", "the settings file '.*/chockstone.toml' is not TOML: .*line 1"),
        ("port = true", "file .*/chockstone.toml: True is not a whole number from 0 to 65535"),
        ("port = 65536", "65536 is not a whole number from 0 to 65535"),
        ("max_runs = 0", "0 is not a whole number from 1"),
        ("host = 8", "8 is not text"),
        ("host = 'http://localhost'", "'http://localhost' is not an address to listen on"),
        ("device = 'gpu'", "'gpu' is none of auto, cpu, cuda"),
        ("data = ''", "the value is empty"),
        ("models = [1]", "expected a list of words"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path: Path, file: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load(tmp_path, file=file)


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ("CHOCKSTONE_MODEL", "variable 'CHOCKSTONE_MODEL' is not a setting; did you mean 'CHOCKSTONE_MODELS'?"),
        ("CHOCKSTONE_XYZZY", "variable 'CHOCKSTONE_XYZZY' is not a setting; settings: CHOCKSTONE_MODELS,"),
        ("CHOCKSTONE_PORT", "environment CHOCKSTONE_PORT: 'x' is not a whole number"),
        ("CHOCKSTONE_CONFIG", "cannot read the settings file '.*/x': No such file"),
    ],
)
def test_a_mistake_in_the_environment_is_named(tmp_path: Path, variable: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load(tmp_path, **{variable: "x"})
