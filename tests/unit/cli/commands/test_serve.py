from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner, Result

from chockstone.api.config import ServerConfig
from chockstone.api.serving import preparing
from chockstone.backends.supervision import instruction_sets
from chockstone.backends.supervision.instruction_sets import InstructionSetChoice
from chockstone.checkpoints import Best, Retention
from chockstone.cli.app import app
from chockstone.cli.commands.serve import base_url, print_banner
from chockstone.cli.settings.settings import NAMES, ModelSetting, Settings
from chockstone.engine.config import Durability, EngineLimits, StorageRules


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["serve", *words], catch_exceptions=False)


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[ServerConfig]:
    """An empty directory to stand in, a model `tiny`, and a server that only notes what it is told."""
    seen: list[ServerConfig] = []

    def run_server(config: ServerConfig, _: object, *, announce: Callable[[int, list[str]], None]) -> int:
        seen.append(config)
        announce(4321, list(config.keys))
        return 0

    for variable in [name for name in os.environ if name.startswith("CHOCKSTONE_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setattr(preparing, "prepared", lambda _: nullcontext())
    monkeypatch.setitem(sys.modules, "chockstone.api.serving.server", SimpleNamespace(run=run_server))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny/config.json").write_text('{"model_type": "llama"}')
    return seen


def test_serve_starts_with_its_settings_and_says_how_to_reach_it(started: list[ServerConfig], tmp_path: Path) -> None:
    result = run("--model", "Qwen/Qwen3-8B=tiny", "--model", "./tiny", "--port", "0", "--max-runs", "3")

    config = started[0]
    assert result.exit_code == 0
    assert list(config.models) == ["Qwen/Qwen3-8B", "tiny"]
    assert (config.port, config.limits.runs) == (0, 3)
    lines = result.stdout.splitlines()
    assert f"  Qwen/Qwen3-8B from {tmp_path}/tiny" in lines
    assert f"data in {tmp_path}/chockstone-data" in lines
    assert "export TINKER_BASE_URL=http://127.0.0.1:4321" in lines
    assert "export TINKER_API_KEY=tml-local" in lines


def test_rules_for_storage_reach_the_server(started: list[ServerConfig]) -> None:
    words = ["--keep-last", "3", "--keep-every", "100", "--keep-best", "loss:min:2", "--checkpoint-ttl", "7d"]
    words += ["--user-quota", "50GiB", "--run-quota", "500MB", "--disk-reserve", "0", "--trash", "1h"]
    words += ["--sweep-interval", "5s", "--scrub-rate", "off", "--scrub-every", "1d"]
    words += ["--admin", "ann", "--admin", "bob", "--public-url", "https://models.example.com"]
    words += ["--key", "ann=tml-ann-00000001"]

    result = run("--model", "tiny", *words)

    config = started[0]
    retention = Retention(keep_last=3, keep_every=100, keep_best=Best("loss", "min", 2), ttl_seconds=604_800.0)
    assert config.storage == StorageRules(retention, 50 * 2**30, 500_000_000, 0, 3600.0, 5.0, 0, 86_400.0)
    assert (config.admins, config.public_url) == ({"ann", "bob"}, "https://models.example.com")
    kept = "the newest 3, steps divisible by 100, the best by loss:min:2"
    assert f"checkpoints: of each run and kind {kept} are kept" in result.stdout
    assert "checkpoints: removed 7d after they were saved" in result.stdout
    assert "checkpoints: at most 50GiB a user, 500MB a run" in result.stdout
    assert "trash: what is removed can be restored for 1h" in result.stdout
    assert "export TINKER_BASE_URL=https://models.example.com\n" in result.stdout


def test_without_rules_the_server_has_its_own_and_the_banner_says_nothing(started: list[ServerConfig]) -> None:
    result = run("--model", "tiny")

    assert started[0].storage == StorageRules()
    assert "trash" not in result.stdout
    assert "checkpoints:" not in result.stdout


def test_what_runs_survive_reaches_the_server_and_stands_in_the_banner(started: list[ServerConfig]) -> None:
    words = ["--recovery-steps", "7", "--recovery-replay", "90s", "--park-after", "5m", "--forget-after", "2d"]

    synced = run("--model", "tiny", "--journal", "synced", *words)
    plain, off = run("--model", "tiny"), run("--model", "tiny", "--journal", "off")

    assert started[0].durability == Durability("synced", 7, 90.0)
    assert (started[0].limits.park_seconds, started[0].limits.forget_seconds) == (300.0, 172_800.0)
    assert "journal: synced; runs survive" in synced.stdout
    assert (started[1].durability, started[1].limits) == (Durability(), EngineLimits())
    assert "journal: on; runs survive the death of this process and of its worker\n" in plain.stdout
    assert (started[2].durability.journal, "journal: off; runs end with" in off.stdout) == ("off", True)


@pytest.mark.parametrize("word", ["loss:sideways", "loss:3", "loss:min:0", "loss:", "loss:Max"])
def test_a_best_that_says_neither_least_nor_most_starts_nothing(
    word: str, started: list[ServerConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    by_flag = run("--model", "tiny", "--keep-best", word)
    monkeypatch.setenv("CHOCKSTONE_KEEP_BEST", word)
    by_environment = run("--model", "tiny")
    monkeypatch.delenv("CHOCKSTONE_KEEP_BEST")
    Path("chockstone.toml").write_text(f'keep_best = "{word}"')
    by_file = run("--model", "tiny")

    for result in (by_flag, by_environment, by_file):
        assert (result.exit_code, "whether the least or the most is the best" in result.stderr) == (2, True)
    assert started == []


def test_a_metric_may_have_a_colon_where_the_mode_is_written(started: list[ServerConfig]) -> None:
    run("--model", "tiny", "--keep-best", "loss:sum:min")

    assert started[0].storage.retention.keep_best == Best("loss:sum", "min", 1)


def test_show_config_starts_nothing(started: list[ServerConfig], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHOCKSTONE_KEYS", "alice=tml-geheim1")

    result = run("--model", "tiny", "--show-config")

    assert (result.exit_code, started, result.stderr) == (0, [], "")
    assert re.search(r"^keys +alice=tml-\*\*\* +environment CHOCKSTONE_KEYS$", result.stdout, re.MULTILINE)


def test_show_config_says_which_instruction_sets_a_worker_would_use(
    started: list[ServerConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = InstructionSetChoice({"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}, "cache", {})
    monkeypatch.setattr(instruction_sets, "choose_here", lambda: chosen)

    result = run("--model", "tiny", "--show-config")

    line = r"^instruction_sets +ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 +probed earlier on this CPU$"
    assert re.search(line, result.stdout, re.MULTILINE)


def test_show_config_says_how_openmp_waits(started: list[ServerConfig], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")

    result = run("--model", "tiny", "--show-config")

    assert re.search(r"^openmp_waiting +OMP_WAIT_POLICY=PASSIVE +environment$", result.stdout, re.MULTILINE)


def test_show_config_shows_also_what_cannot_start(started: list[ServerConfig]) -> None:
    result = run("--show-config", "--host", "0.0.0.0")

    assert result.exit_code == 0
    assert re.search(r"^host +0\.0\.0\.0 +flag --host$", result.stdout, re.MULTILINE)
    assert "with these settings `serve` would not start: there is no model to serve" in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "chockstone: there is no model to serve."),
        (["--model", "Qwen/Qwen3-8B"], "chockstone: cannot serve the model 'Qwen/Qwen3-8B': there is no directory"),
        (["--model", "tiny", "--host", "0.0.0.0"], "no keys are configured"),
        (["--model", "tiny", "--port", "70000"], "flag --port: 70000 is not a whole number"),
        (["--model", "tiny", "--config", "x.toml"], "cannot read the settings file"),
        (["--model", "tiny", "--forget-after", "1m"], "forgotten after 1m of silence, before their runs are parked"),
    ],
)
def test_a_server_that_cannot_start_says_why(started: list[ServerConfig], words: list[str], message: str) -> None:
    result = run(*words)

    assert (result.exit_code, result.stdout, started) == (2, "", [])
    assert message in result.stderr


def test_every_setting_has_a_flag() -> None:
    shown = run("--help").stdout

    for name in NAMES:
        repeated = {"models": "--model", "keys": "--key", "admins": "--admin", "vllm_urls": "--vllm-url"}
        flag = repeated.get(name, f"--{name.replace('_', '-')}")
        assert re.search(rf"^  {flag} ", shown, re.MULTILINE), flag


def test_with_keys_the_banner_shows_none_of_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = ModelSetting("tiny", tmp_path)
    settings = Settings(models=(model,), host="0.0.0.0", keys={"alice": "tml-geheim1", "bob": "tml-geheim2"})

    print_banner(settings, 9, users=["alice", "bob", "carol"])

    out = capsys.readouterr().out
    assert "users: alice, bob, carol\n" in out
    assert "export TINKER_BASE_URL=http://127.0.0.1:9\nexport TINKER_API_KEY=tml-..." in out
    assert "geheim" not in out


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("localhost", "http://localhost:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("fe80::1", "http://[fe80::1]:80"),
    ],
)
def test_a_url_leads_to_the_host(host: str, expected: str) -> None:
    assert base_url(host, 80) == expected
