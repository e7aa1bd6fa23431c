from __future__ import annotations

import pytest

from chockstone.trackers.tracker import series_name
from support.trackers import RUN_ID, facts


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("loss", "loss"),
        ("loss:sum", "loss:sum"),
        ("reward/mean", "reward/mean"),
        ("../../etc/passwd", "etc/passwd"),
        ("/root", "root"),
        ("a//b/./c", "a/b/c"),
        ("_step", "step_"),
        ("__system", "system"),
        ("step", "step_"),
        ("timestamp", "timestamp_"),
        ("<script>", "script_"),
        ("...", "value"),
        ("x" * 500, "x" * 64),
    ],
)
def test_a_series_name_is_one_that_every_tracker_takes(given: str, shown: str) -> None:
    assert series_name(given) == shown


def test_settings_are_flat_and_bounded() -> None:
    metadata = {f"key {number}": "v" * 9999 for number in range(200)} | {"k" * 999: "last"}

    settings = facts(metadata=metadata).settings()

    assert settings["base_model"] == "Qwen/Qwen3-8B"
    assert settings["rank"] == 8
    assert settings["learning_rate"] == 1e-4
    assert settings["metadata.key_0"] == "v" * 250
    assert len(settings) < 60


def test_a_learning_rate_that_is_not_known_is_no_setting() -> None:
    assert "learning_rate" not in facts(learning_rate=None).settings()


def test_two_runs_of_a_session_have_different_names() -> None:
    other = RUN_ID.replace("train:0", "train:1")

    assert facts().name == "Qwen3-8B-6f1c2d3e-0"
    assert facts(other).name == "Qwen3-8B-6f1c2d3e-1"


def test_the_name_in_the_metadata_stays_a_name_of_a_directory() -> None:
    assert facts(metadata={"name": "../../my run"}).name == "------my-run-6f1c2d3e-0"
