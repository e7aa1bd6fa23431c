from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from chockstone.checkpoints import Checkpointer
from support.cli.store_commands import EVIL, flip, run, run_json


def test_show_lists_facts_members_tensors_and_values(store: Path) -> None:
    result = run("show", store, "run-1/step-00000200")

    out = result.stdout
    assert result.exit_code == 0
    assert re.search(r"^step +200$", out, re.MULTILINE)
    assert re.search(r"^ +4096 +4.1 kB +manifest.json$", out, re.MULTILINE)
    assert re.search(r"^ +\d+ +400 B +F32 +\[100\] +w$", out, re.MULTILINE)
    assert re.search(r"^ +\d+ +140 B +COMMIT$", out, re.MULTILINE)
    assert re.search(r"^  epoch +2$", out, re.MULTILINE)
    assert re.search(r"^  lr +\[0.1, 0.2\]$", out, re.MULTILINE)


def test_show_takes_an_archive_file_as_its_only_word(store: Path) -> None:
    path = store / "run-1/step-00000200.tar"

    by_path, by_url = run_json("show", path), run_json("show", path.as_uri())

    assert by_path["step"] == by_url["step"] == 200
    tensors = {(tensor["member"], tensor["key"]): tensor for tensor in by_path["tensors"]}
    weights = tensors["model.safetensors", "w"]
    assert (weights["dtype"], weights["shape"], weights["size_bytes"]) == ("F32", [100], 400)
    assert path.read_bytes()[weights["offset"] :][:400] == np.full(100, 2, dtype=np.float32).tobytes()
    assert by_path["state"]["epoch"] == 2


def test_long_values_are_cut_unless_all_are_asked_for(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        state = {"config": {"text": "x" * 500, "many": {f"k{i}": i for i in range(30)}}}
        checkpointer.save(state, name="one")

    short, whole = run("show", tmp_path, "one").stdout, run("show", tmp_path, "one", "--values").stdout

    assert "x" * 500 not in short
    assert "… 20 more; --values shows all" in short
    assert "x" * 500 in whole
    assert re.search(r"k29 +29", whole)


def test_text_from_archives_cannot_reach_the_terminal(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        state = {EVIL: {EVIL: np.ones(1), "value": EVIL}, "\ud800": "\ud800", "[red]": "[/red]"}
        checkpointer.save(state, name="one", metrics={EVIL: 1.0}, metadata={"key": EVIL})
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save({}, name="two", metrics={"m": 1.0})

    for words in (
        ["ls"],
        ["show", "one", "--values"],
        ["diff", "one", "two"],
        ["gc", "--keep-best", "no", "--dry-run"],
    ):
        result = run(words[0], tmp_path, *words[1:])
        assert result.output.replace("\n", "").replace("…", "").isprintable(), words

    assert "[/red]" in run("show", tmp_path, "one").stdout
    assert r"\x1b[31m[bold]\u202e" in run("show", tmp_path, "one").stdout


def test_show_of_a_damaged_body_lists_what_it_can(store: Path) -> None:
    path = store / "run-1/step-00000100.tar"
    flip(path)

    result, document = run("show", path), run_json("show", path)

    assert result.exit_code == 1
    assert "model.safetensors" in result.stdout
    assert "is damaged, and listed only in part" in result.stderr
    assert "is not what was written" in document["damage"]
