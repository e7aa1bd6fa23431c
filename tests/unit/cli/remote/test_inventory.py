from __future__ import annotations

import re

import pytest

from support.cli.loopback import Loopback
from support.cli.remote_commands import fill, paths_listed


def test_ls_shows_all_of_mine_or_of_a_run_or_kind(asked: Loopback) -> None:
    first, [one, two] = fill(asked, "one", "two", user_metadata={"loss": "1.5"})
    _, [three] = fill(asked, "three", kind="sampler_weights")

    everything = asked.run("checkpoints", "ls")

    assert everything.exit_code == 0
    lines = everything.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["PATH", three, two, one, "3"]
    assert re.search(r" kB +\d+ s +loss=1.5 +ok$", lines[2])
    for words in (["--run", first], [f"tinker://{first}"]):
        document = asked.json("checkpoints", "ls", *words)
        assert {entry["tinker_path"] for entry in document["checkpoints"]} == {one, two}
        assert document["total_bytes"] == sum(entry["size_bytes"] for entry in document["checkpoints"])
    assert asked.json("checkpoints", "ls", "--kind", "sampler_weights")["checkpoints"][0]["tinker_path"] == three


def test_ls_pages_through_all(asked: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chockstone.cli.remote.client.PAGE", 2)
    _, paths = fill(asked, *"abcde")

    assert paths_listed(asked) == set(paths)


def test_show_tells_the_facts_and_what_latest_means(asked: Loopback) -> None:
    run_id, [one, two] = fill(asked, "one", "two", user_metadata={"loss": "1.5"})

    shown = asked.run("checkpoints", "show", one).stdout
    latest = asked.json("checkpoints", "show", f"tinker://{run_id}/weights/latest")

    assert re.search(r"^metadata +loss=1.5$", shown, re.MULTILINE)
    assert re.search(r"^expires +never$", shown, re.MULTILINE)
    assert re.search(r"^trained +LoRA of rank 4", shown, re.MULTILINE)
    assert latest["tinker_path"] == two
    missing = asked.run("checkpoints", "show", f"tinker://{run_id}/weights/three")
    assert (missing.exit_code, "weights/three" in missing.stderr) == (1, True)
