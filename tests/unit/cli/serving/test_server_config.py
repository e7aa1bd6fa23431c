from __future__ import annotations

from chockstone.api.config import ServerConfig
from chockstone.checkpoints import Best, Retention
from chockstone.engine.config import Durability, EngineLimits, StorageRules
from support.cli.serving import serve


def test_rules_for_storage_reach_the_server(started: list[ServerConfig]) -> None:
    words = ["--keep-last", "3", "--keep-every", "100", "--keep-best", "loss:min:2", "--checkpoint-ttl", "7d"]
    words += ["--user-quota", "50GiB", "--run-quota", "500MB", "--disk-reserve", "0", "--trash", "1h"]
    words += ["--sweep-interval", "5s", "--scrub-rate", "off", "--scrub-interval", "1d"]
    words += ["--admin", "ann", "--admin", "bob", "--public-url", "https://models.example.com"]
    words += ["--key", "ann=tml-ann-00000001"]

    result = serve("--model", "tiny", *words)

    config = started[0]
    retention = Retention(keep_last=3, keep_every=100, keep_best=Best("loss", "min", 2), ttl_seconds=604_800.0)
    assert config.storage == StorageRules(retention, 50 * 2**30, 500_000_000, 0, 3600.0, 5.0, 0, 86_400.0)
    assert (config.admins, config.public_url) == ({"ann", "bob"}, "https://models.example.com")
    kept = "the newest 3, steps divisible by 100, the best by loss:min:2"
    assert f"checkpoints: the server keeps {kept} of each run and kind" in result.stdout
    assert "checkpoints: deleted 7d after they were saved" in result.stdout
    assert "checkpoints: at most 50GiB per user, 500MB per run" in result.stdout
    assert "trash: deleted checkpoints can be undeleted for 1h" in result.stdout
    assert "export TINKER_BASE_URL=https://models.example.com\n" in result.stdout


def test_without_rules_the_server_has_its_own_and_the_banner_says_nothing(started: list[ServerConfig]) -> None:
    result = serve("--model", "tiny")

    assert started[0].storage == StorageRules()
    assert "trash" not in result.stdout
    assert "checkpoints:" not in result.stdout


def test_what_runs_survive_reaches_the_server_and_stands_in_the_banner(started: list[ServerConfig]) -> None:
    words = ["--recovery-steps", "7", "--recovery-replay", "90s", "--park-after", "5m", "--session-timeout", "2d"]

    synced = serve("--model", "tiny", "--journal", "synced", *words)
    plain, off = serve("--model", "tiny"), serve("--model", "tiny", "--journal", "off", "--spare-worker", "off")

    assert started[0].durability == Durability("synced", 7, 90.0)
    assert (started[0].limits.park_seconds, started[0].limits.forget_seconds) == (300.0, 172_800.0)
    assert "journal: synced; runs survive" in synced.stdout
    assert (started[1].durability, started[1].limits) == (Durability(), EngineLimits())
    assert started[1].spare_seconds == 10.0
    assert "journal: on; runs survive a crash of this process or its worker\n" in plain.stdout
    assert (started[2].durability.journal, "journal: off; runs are lost when" in off.stdout) == ("off", True)
    assert started[2].spare_seconds is None


def test_a_metric_may_have_a_colon_where_the_mode_is_written(started: list[ServerConfig]) -> None:
    serve("--model", "tiny", "--keep-best", "loss:sum:min")

    assert started[0].storage.retention.keep_best == Best("loss:sum", "min", 1)
