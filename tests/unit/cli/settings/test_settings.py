from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from chockstone.cli.local.api_keys import create_key, list_keys, revoke_key
from chockstone.cli.models.directory import count_parameters, spell_parameters
from chockstone.cli.serving.checks import check_settings, is_loopback
from chockstone.cli.settings.settings import (
    NAMES,
    LimitSettings,
    ModelSetting,
    RecoverySettings,
    Settings,
    SettingsError,
    StorageSettings,
)
from chockstone.cli.settings.sources import load_settings
from chockstone.cli.settings.table import print_settings
from chockstone.cli.settings.values import READERS


def load(
    directory: Path,
    flags: dict[str, Any] | None = None,
    *,
    file: str | None = None,
    config: str | None = None,
    **environment: str,
) -> Settings:
    if file is not None:
        (directory / "chockstone.toml").write_text(file)
    return load_settings(flags or {}, config=config, environment=environment, working_directory=directory)


def make_directory(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text('{"model_type": "qwen3"}')
    return path


def test_defaults_are_safe_for_a_newcomer(tmp_path: Path) -> None:
    settings = load(tmp_path)

    assert (settings.host, settings.port, settings.data) == ("127.0.0.1", 8000, tmp_path / "chockstone-data")
    assert (settings.models, settings.keys, settings.device, settings.dtype) == ((), {}, "auto", "auto")
    assert settings.limits == LimitSettings()
    assert {settings.source_of(name) for name in NAMES} == {"default"}


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
        "device": "cuda",
        "dtype": "bfloat16",
        "log_level": "debug",
        "keys": "alice=tml-alice, bob=tml-bobby",
        "admins": "alice, bob",
        "public_url": "https://models.example.com/",
        "keep_best": "loss:max:17",
        "journal": "synced",
        "on_journal_loss": "continue",
        **dict.fromkeys(("checkpoint_ttl", "trash", "sweep_interval", "scrub_every"), "17h"),
        **dict.fromkeys(("recovery_replay", "park_after", "forget_after"), "17h"),
        **dict.fromkeys(("user_quota", "run_quota"), "17GiB"),
        "database": "postgresql://ann:secret@db/x",
        "store": "s3://bucket/prefix",
        "backend": "ray",
        "ray_address": "auto",
        "sampler": "vllm",
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

    assert set(READERS) == set(NAMES)
    assert from_environment == from_flags == from_file
    assert from_file.models == (ModelSetting("a", tmp_path / "a"), ModelSetting("b", tmp_path / "b"))
    assert from_file.keys == {"alice": "tml-alice", "bob": "tml-bobby"}
    assert from_file.limits == LimitSettings(17, 17, 17, 17, 17, 17)
    assert (from_file.admins, from_file.public_url) == ({"alice", "bob"}, "https://models.example.com")
    hours, gib = 17 * 3600.0, 17 * 2**30
    assert from_file.storage == StorageSettings(
        17, 17, ("loss", "max", 17), hours, gib, gib, 17, hours, hours, scrub_rate=17, scrub_every=hours
    )
    assert from_file.survival == RecoverySettings("synced", "continue", 17, hours, hours, hours)


def test_rules_can_be_switched_off_over_another_source(tmp_path: Path) -> None:
    file = "keep_last = 3\nuser_quota = '50GiB'\ntrash = '7d'\nscrub_rate = '1MB'\npublic_url = 'http://x'\n"
    environment = dict.fromkeys(("keep_last", "user_quota", "trash", "scrub_rate", "public_url"), "off")

    on = load(tmp_path, file=file)
    off = load(tmp_path, file=file, **{f"CHOCKSTONE_{name.upper()}": word for name, word in environment.items()})

    assert (on.storage.keep_last, on.storage.user_quota, on.storage.trash) == (3, 50 * 2**30, 604_800.0)
    assert (off.storage, off.public_url) == (StorageSettings(scrub_rate=0), None)
    assert load(tmp_path, {"trash": "0"}).storage.trash == load(tmp_path, file="trash = 0").storage.trash == 0.0


@pytest.mark.parametrize(
    ("name", "word", "message"),
    [
        ("user_quota", "0", "flag --user-quota: '0' is too little"),
        ("run_quota", "5 apples", "'5 apples' is not a size: write bytes, or a number and a unit"),
        ("disk_reserve", "-1GB", "is not a size"),
        ("trash", "7", "'7' is not a duration"),
        ("sweep_interval", "off", "'off' is not a duration"),
        ("checkpoint_ttl", "0s", "is not a duration"),
        ("keep_last", "0", "'0' is not a whole number from 1"),
        ("journal", "always", "flag --journal: 'always' is none of off, on, synced"),
        ("recovery_steps", "0", "flag --recovery-steps: '0' is not a whole number from 1"),
        ("recovery_replay", "0s", "is not a duration"),
        ("park_after", "never", "'never' is not a duration"),
        ("forget_after", "off", "'off' is not a duration"),
        ("admins", ["al ice"], "flag --admin: a user's name has letters"),
        ("public_url", "models.example.com", "is not how clients reach a server"),
        ("engine", "http://ann:pass@engine:8000", "a password does not belong into this URL"),
        ("store", "s3:///prefix", "flag --store: 's3:///prefix' is not an object store"),
        ("store", "s3://key:secret@bucket", "flag --store: a store URL holds a bucket and a prefix only"),
        ("store", "s3://bucket/a/../b", "'a/../b' cannot name a checkpoint"),
    ],
)
def test_a_rule_that_cannot_be_read_is_named(tmp_path: Path, name: str, word: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load(tmp_path, {name: word})


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
        ("prot = 1", "the key 'prot' in '.*/chockstone.toml' is no setting; did you mean 'port'?"),
        ("[limits]\nmax_runs = 1", "the key 'limits' in .* is no setting; there are models, host, port"),
        ("port = \n", "the settings file '.*/chockstone.toml' is not TOML: .*line 1"),
        ("port = true", "file .*/chockstone.toml: True is not a whole number from 0 to 65535"),
        ("port = 65536", "65536 is not a whole number from 0 to 65535"),
        ("max_runs = 0", "0 is not a whole number from 1"),
        ("host = 8", "8 is not text"),
        ("host = 'http://localhost'", "'http://localhost' is no address to listen on"),
        ("device = 'gpu'", "'gpu' is none of auto, cpu, cuda"),
        ("data = ''", "it is empty"),
        ("models = [1]", "expected a list of words"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path: Path, file: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load(tmp_path, file=file)


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ("CHOCKSTONE_MODEL", "variable 'CHOCKSTONE_MODEL' is no setting; did you mean 'CHOCKSTONE_MODELS'?"),
        ("CHOCKSTONE_XYZZY", "variable 'CHOCKSTONE_XYZZY' is no setting; there are CHOCKSTONE_MODELS,"),
        ("CHOCKSTONE_PORT", "environment CHOCKSTONE_PORT: 'x' is not a whole number"),
        ("CHOCKSTONE_CONFIG", "cannot read the settings file '.*/x': No such file"),
    ],
)
def test_a_mistake_in_the_environment_is_named(tmp_path: Path, variable: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load(tmp_path, **{variable: "x"})


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

    assert settings.models == (ModelSetting(name, tmp_path / directory),)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a=x", "a=y"], "flag --model: the model 'a' is given twice"),
        (["=x"], "'' cannot be a model's name"),
        (["a b=x"], "'a b' cannot be a model's name"),
        (["a="], "it is empty"),
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
        (["alice=tml-geheim1", "bob=tml-geheim1"], "the key of 'bob' is another user's, too"),
        (["a lice=tml-geheim1"], "a user's name has letters"),
    ],
)
def test_a_bad_key_is_refused_and_never_repeated(tmp_path: Path, words: list[str], message: str) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        load(tmp_path, {"keys": words})

    assert "geheim" not in str(caught.value)


def test_the_table_shows_sources_and_hides_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = load(tmp_path, {"models": ["a=x"]}, file="[keys]\nalice = 'tml-geheim1'\n", CHOCKSTONE_PORT="9")

    print_settings(settings)

    lines = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["SETTING", "VALUE", "SOURCE"]
    assert [line[0] for line in lines[1:]] == list(NAMES)
    assert ["models", f"a={tmp_path}/x", "flag --model"] in lines
    assert ["port", "9", "environment CHOCKSTONE_PORT"] in lines
    assert ["keys", "alice=tml-***", f"file {tmp_path}/chockstone.toml"] in lines
    assert "geheim" not in repr(settings)


def test_the_table_shows_rules_as_they_can_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = {"user_quota": "50GiB", "keep_best": "loss", "trash": "1.5d", "scrub_rate": "512MB", "admins": ["b", "a"]}
    settings = load(tmp_path, flags)

    print_settings(settings)

    shown = dict(line.split("  ", maxsplit=1) for line in capsys.readouterr().out.splitlines()[1:])
    values = {name: text.strip().split("  ")[0] for name, text in shown.items()}
    assert [values[name] for name in flags] == ["50GiB", "loss:min:1", "36h", "512MB", "a, b"]
    assert [values[name] for name in ("keep_last", "run_quota", "disk_reserve", "scrub_every")] == [
        "off",
        "off",
        "1GiB",
        "7d",
    ]
    unwritten = dict.fromkeys(("models", "keys", "vllm_urls"))
    assert load(tmp_path, values | unwritten) == settings


def test_without_a_model_there_is_nothing_to_serve(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="chockstone model make ./tiny && chockstone serve --model tiny=./tiny"):
        check_settings(load(tmp_path))


def test_a_model_must_be_a_directory_with_a_config(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    make_directory(tmp_path / "broken").joinpath("config.json").write_text("{")
    make_directory(tmp_path / "typeless").joinpath("config.json").write_text("{}")
    make_directory(tmp_path / "good")

    check_settings(load(tmp_path, {"models": ["good"]}))
    for word, message in {
        "missing": f"cannot serve the model 'missing': there is no directory '{tmp_path}/missing'",
        "empty": "holds no config.json",
        "broken": "is not JSON",
        "typeless": "names no model_type",
    }.items():
        with pytest.raises(SettingsError, match=message):
            check_settings(load(tmp_path, {"models": ["good", word]}))


def test_other_machines_are_let_in_only_with_keys(tmp_path: Path) -> None:
    flags = {"models": [str(make_directory(tmp_path / "good"))], "host": "0.0.0.0"}

    with pytest.raises(SettingsError, match=r"the host '0.0.0.0' .* --key USER=tml-…, CHOCKSTONE_KEYS or a \[keys\]"):
        check_settings(load(tmp_path, flags))
    check_settings(load(tmp_path, flags | {"keys": ["alice=tml-alice"]}))


def test_keys_of_the_catalog_let_other_machines_in_until_the_last_is_revoked(tmp_path: Path) -> None:
    flags = {"models": [str(make_directory(tmp_path / "good"))], "host": "0.0.0.0", "data": "data"}
    now = datetime.now(UTC)

    with pytest.raises(SettingsError, match="chockstone keys create USER"):
        check_settings(load(tmp_path, flags))
    create_key(load(tmp_path, flags), "alice", note="", now=now)
    check_settings(load(tmp_path, flags))
    [row] = list_keys(load(tmp_path, flags))
    revoke_key(load(tmp_path, flags), str(row.key_id), now=now)

    with pytest.raises(SettingsError, match="no keys are configured"):
        check_settings(load(tmp_path, flags))


def test_data_must_not_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "data").touch()

    with pytest.raises(SettingsError, match="is a file; choose another with --data"):
        check_settings(load(tmp_path, {"models": [str(make_directory(tmp_path / "good"))], "data": "data"}))


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        *((host, True) for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost")),
        *((host, False) for host in ("0.0.0.0", "::", "10.0.0.1", "localhost.example.com", "gpu-box")),
    ],
)
def test_only_loopback_is_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_foreign_weights_are_not_counted(tmp_path: Path) -> None:
    for index, content in enumerate((b"", b"\xff" * 64, b"\x02\0\0\0\0\0\0\0[]", b"\x09\0\0\0\0\0\0\0" + b'{"a": {}}')):
        directory = tmp_path / str(index)
        directory.mkdir()
        (directory / "model.safetensors").write_bytes(content)

        assert count_parameters(directory) is None


def test_parameters_are_spelled_shortly() -> None:
    assert [spell_parameters(count) for count in (7, 999_999, 1_049_000, 99_960_000, 595_776_512, 8_190_735_360)] == [
        "7",
        "1.0M",
        "1.0M",
        "100M",
        "596M",
        "8.2B",
    ]


def test_a_database_needs_its_driver_and_its_password_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = {"models": [str(make_directory(tmp_path / "good"))], "database": "postgresql://ann:se@cret@db/x"}
    monkeypatch.setattr("chockstone.cli.serving.checks.find_spec", lambda _: None)

    with pytest.raises(SettingsError, match=r"pip install 'chockstone\[postgres\]'"):
        check_settings(load(tmp_path, flags))
    print_settings(load(tmp_path, flags))

    shown = capsys.readouterr().out
    assert "postgresql://ann:***@db/x" in shown
    assert "cret" not in shown
    assert "cret" not in repr(load(tmp_path, flags))
