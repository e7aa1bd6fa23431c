"""Families of models: load, train, sample, save, restore and export a tiny random model of each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from benchmarks.families.stages import run_stages
from benchmarks.families.sweep import sweep
from benchmarks.families.tiny_model import families

TABLE = Path(__file__).parents[4] / "docs" / "reference" / "architectures.md"


@pytest.mark.parametrize("family", ["gpt2", "gemma3_text", "granite", "phi", "olmo"])
def test_a_family_passes_every_stage(tmp_path: Path, family: str) -> None:
    """Layers that store their weight transposed; windows; scaled logits; a parallel block; norms without weights."""
    found = run_stages(family, tmp_path)

    assert {stage: outcome for stage, outcome in found["stages"].items() if outcome != "ok"} == {}


@pytest.mark.soak
def test_every_family_of_the_table_passes_every_stage_and_two_ranks_follow_one() -> None:
    text = TABLE.read_text().partition("## What does not")[0]
    promised = dict(re.findall(r"^\| `([\w.-]+)` \| \w+ \| [\w ]+ \| \w+ \| (.*) \|$", text, re.MULTILINE))

    rows = {row.family: row for row in sweep([name for name in families() if name in promised])}

    assert len(rows) >= 25
    assert not {name: row.stages for name, row in rows.items() if not row.is_good}
    assert {name for name, row in rows.items() if row.stages["two ranks"] == "ok"} >= {
        name for name, ranks in promised.items() if ranks == "ok"
    }
