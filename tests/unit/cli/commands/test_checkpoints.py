from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import chockstone
from chockstone.checkpoints import Checkpointer
from chockstone.cli.app import app

PROGRAM = [sys.executable, "-m", "chockstone.cli"]
EVIL = "\x1b[31m[bold]\u202e"
COMMANDS = ["ls", "show", "verify", "export", "rm", "gc", "diff"]


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["checkpoints", *map(str, words)], catch_exceptions=False)


def run_json(*words: str | Path) -> Any:
    return json.loads(run(*words, "--json").stdout, parse_constant=pytest.fail)


def fill(root: Path, steps: int = 3) -> None:
    for index in range(steps):
        with Checkpointer(root, prefix="run-1") as checkpointer:
            weights = np.full(100, index, dtype=np.float32)
            state = {"model": {"w": weights, "b": np.zeros(3)}, "epoch": index, "lr": [0.1, 0.2], "note": EVIL}
            metrics = {"loss": 1.0 / (index + 1), "spread": float("nan")}
            checkpointer.save(
                state, step=100 * index, metrics=metrics, metadata={EVIL: [EVIL]}, files={"a/b.txt": b"x"}
            )


def flip(path: Path, *, at: int | None = None) -> None:
    content = bytearray(path.read_bytes())
    content[content.index(b"\0\0\x80?") if at is None else at] ^= 1  # a 1.0 of step 100's weights
    path.unlink()
    path.write_bytes(content)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    fill(root)
    return root


@pytest.fixture
def in_terminal() -> Iterator[Callable[..., tuple[int, str]]]:
    """Runs the program with a terminal on all three streams; returns exit code and what was shown."""
    main, other = pty.openpty()

    def run_it(*words: str | Path, typed: str = "") -> tuple[int, str]:
        environment = os.environ | {"TERM": "xterm", "COLUMNS": "80"}
        command = [*PROGRAM, "checkpoints", *map(str, words)]
        process = subprocess.Popen(command, stdin=other, stdout=other, stderr=other, env=environment)
        os.write(main, typed.encode())
        code = process.wait(timeout=60)
        return code, os.read(main, 65536).decode()

    yield run_it
    os.close(main)
    os.close(other)


def test_ls_shows_each_checkpoint_with_its_state(store: Path) -> None:
    with Checkpointer(store, prefix="run-1") as checkpointer:
        checkpointer.save({"w": np.ones(1)}, name="pinned", pinned=True, ttl_seconds=86_400 * 3.5)
    (store / "run-1/broken.tar").write_bytes((store / "run-1/pinned.tar").read_bytes()[:-4096])

    result = run("ls", store)

    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert lines[0].split() == ["NAME", "KIND", "STEP", "SIZE", "AGE", "METRICS", "STATE"]
    assert re.match(r"run-1/broken +\? +\? +[\d.]+ kB +\d+ s +damaged: the archive has \d+ bytes and not \d+", lines[1])
    assert re.match(r"run-1/step-00000100 +weights +100 +[\d.]+ kB +\d+ s +loss=0.5 spread=nan +good$", lines[3])
    assert re.search(r"good, pinned, expires in 3 days$", lines[5])
    assert re.match(r"5 checkpoints, [\d.]+ kB, 1 damaged in file://", lines[6])


def test_ls_as_json_is_strict_and_complete(store: Path) -> None:
    document = run_json("ls", store, "--prefix", "run-1")

    first = document["checkpoints"][0]
    assert [entry["name"] for entry in document["checkpoints"]] == [f"run-1/step-00000{i}00" for i in range(3)]
    assert document["total_bytes"] == sum(path.stat().st_size for path in store.rglob("*.tar"))
    assert (first["state"], first["step"], first["pinned"], first["expires_at"]) == ("good", 0, False, None)
    assert first["metrics"] == {"loss": 1.0, "spread": "nan"}
    assert first["created_at"].endswith("+00:00")


def test_an_empty_store_is_not_a_mistyped_one(store: Path, tmp_path: Path) -> None:
    empty = run("ls", store, "--prefix", "run-2")
    mistyped = run("ls", tmp_path / "stoer")

    assert (empty.exit_code, mistyped.exit_code) == (0, 3)
    assert "no checkpoints in" in empty.stdout
    assert "there is no directory" in mistyped.stderr


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


def test_verify_finds_one_flipped_bit_among_good_ones(store: Path) -> None:
    flip(store / "run-1/step-00000100.tar")

    result, document = run("verify", store), run_json("verify", store, "--prefix", "run-1")

    assert result.exit_code == 1
    assert "run-1/step-00000000: good: 1 of 1 blocks verified" in result.stdout
    assert re.search(r"run-1/step-00000100: damaged: block 0 of 1, .* is not what was written", result.stdout)
    assert "3 checkpoints: 2 good, 1 not" in result.stdout
    assert [entry["state"] for entry in document["checkpoints"]] == ["good", "damaged", "good"]
    assert run("ls", store).exit_code == 0


def test_verify_judges_only_what_is_named(store: Path) -> None:
    flip(store / "run-1/step-00000100.tar")

    assert run("verify", store, "run-1/step-00000000", "run-1/step-00000200").exit_code == 0
    assert run("verify", store / "run-1/step-00000000.tar").exit_code == 0
    assert run("verify", *sorted(store.rglob("*.tar"))).exit_code == 1


def test_verify_tells_missing_from_damaged_from_foreign(store: Path) -> None:
    (store / "foreign.tar").write_bytes(bytes(20_000))

    document = run_json("verify", store, "nowhere", "foreign")

    assert [entry["state"] for entry in document["checkpoints"]] == ["missing", "foreign"]
    assert run("verify", store, "nowhere").exit_code == 1


def test_show_of_a_damaged_body_lists_what_it_can(store: Path) -> None:
    path = store / "run-1/step-00000100.tar"
    flip(path)

    result, document = run("show", path), run_json("show", path)

    assert result.exit_code == 1
    assert "model.safetensors" in result.stdout
    assert "is damaged, and only in part listed" in result.stderr
    assert "is not what was written" in document["damage"]


def test_export_writes_the_members_into_a_new_directory(store: Path, tmp_path: Path) -> None:
    result = run("export", store, "run-1/step-00000100", tmp_path / "all")
    some = run_json("export", store / "run-1/step-00000100.tar", tmp_path / "some", "--member", "a/*")

    assert result.exit_code == 0
    assert (tmp_path / "all/a/b.txt").read_bytes() == b"x"
    assert json.loads((tmp_path / "all/state.json").read_bytes())["epoch"] == 1
    assert some["members"] == [{"name": "a/b.txt", "size_bytes": 1}]
    assert os.listdir(tmp_path / "some") == ["a"]


def test_export_refuses_what_exists_and_leaves_nothing_of_damage(store: Path, tmp_path: Path) -> None:
    flip(store / "run-1/step-00000100.tar")

    existing = run("export", store, "run-1/step-00000000", tmp_path)
    damaged = run("export", store, "run-1/step-00000100", tmp_path / "out")

    assert (existing.exit_code, damaged.exit_code) == (2, 1)
    assert "exists already" in existing.stderr
    assert os.listdir(tmp_path) == ["store"]


def test_rm_removes_what_is_there_and_reports_what_is_not(store: Path) -> None:
    first = run("rm", store, "run-1/step-00000000", "run-1/typo", "--yes")
    again = run_json("rm", store, "run-1/step-00000000", "--yes")

    assert first.exit_code == 1
    assert "removed run-1/step-00000000" in first.stdout
    assert "'run-1/typo' is not in" in first.stderr
    assert (again["removed"], again["missing"]) == ([], ["run-1/step-00000000"])
    assert len(list(store.rglob("*.tar"))) == 2


def test_rm_asks_nobody_and_removes_nothing(store: Path) -> None:
    refused, dry = run("rm", store, "run-1/step-00000000"), run("rm", store, "run-1/step-00000000", "--dry-run")

    assert (refused.exit_code, dry.exit_code) == (2, 0)
    assert "--yes" in refused.stderr
    assert "would remove run-1/step-00000000" in dry.stdout
    assert len(list(store.rglob("*.tar"))) == 3


@pytest.mark.parametrize(("answer", "left"), [("n", 3), ("y", 2)])
def test_rm_asks_at_a_terminal(
    store: Path, in_terminal: Callable[..., tuple[int, str]], answer: str, left: int
) -> None:
    code, shown = in_terminal("rm", store, "run-1/step-00000000", typed=f"{answer}\n")

    assert code == 0
    assert re.search(r"Remove 1 checkpoint, [\d.]+ kB\? \[y/N\]", shown)
    assert len(list(store.rglob("*.tar"))) == left


def test_gc_keeps_what_rules_want_and_the_newest_good_one(store: Path) -> None:
    dry = run("gc", store, "--keep-best", "loss:max", "--dry-run")
    still_there = len(list(store.rglob("*.tar")))
    document = run_json("gc", store, "--keep-best", "loss:max")

    assert still_there == 3
    assert re.search(r"would remove +run-1/step-00000100 +[\d.]+ kB +no rule keeps it", dry.stdout)
    assert [entry["name"] for entry in document["removed"]] == ["run-1/step-00000100"]
    assert {entry["name"]: entry["reasons"] for entry in document["kept"]} == {
        "run-1/step-00000000": ["best by loss"],
        "run-1/step-00000200": ["newest good one"],
    }
    assert document["freed_bytes"] == document["removed"][0]["size_bytes"]


def test_what_a_server_keeps_to_bring_runs_back_is_neither_listed_nor_collected(store: Path) -> None:
    with Checkpointer(store) as checkpointer:
        for through in range(3):
            checkpointer.save({"x": through}, name=f"s.train.0/recovery/{through}", kind="recovery").result()

    listed, collected = run_json("ls", store), run_json("gc", store, "--keep-last", "1")

    assert [entry["kind"] for entry in listed["checkpoints"]] == ["weights"] * 3
    assert {removal["name"].partition("/")[0] for removal in collected["removed"]}.isdisjoint({"s.train.0"})
    assert len(collected["removed"]) == 2
    assert len(list((store / "s.train.0" / "recovery").iterdir())) == 3


def test_gc_reads_the_newest_in_full_before_it_counts_as_good(tmp_path: Path) -> None:
    fill(tmp_path, steps=2)
    flip(tmp_path / "run-1/step-00000100.tar")

    document = run_json("gc", tmp_path, "--keep-last", "1")

    assert document["removed"] == []
    assert {entry["name"] for entry in document["kept"]} == {"run-1/step-00000000", "run-1/step-00000100"}


def test_gc_removes_damaged_ones_when_asked_but_never_the_foreign(store: Path) -> None:
    flip(store / "run-1/step-00000000.tar", at=5000)  # in the manifest
    (store / "foreign.tar").write_bytes(bytes(20_000))

    document = run_json("gc", store, "--remove-damaged")

    assert [entry["name"] for entry in document["removed"]] == ["run-1/step-00000000"]
    assert document["removed"][0]["reason"].startswith("damaged: ")
    assert (store / "foreign.tar").exists()


def test_gc_keeps_damaged_ones_when_no_good_one_is_left(tmp_path: Path) -> None:
    fill(tmp_path, steps=1)
    flip(tmp_path / "run-1/step-00000000.tar", at=5000)

    result = run("gc", tmp_path, "--remove-damaged")

    assert "no good checkpoint is left" in result.stderr
    assert len(list(tmp_path.rglob("*.tar"))) == 1


def test_gc_sweeps_partial_writes(store: Path) -> None:
    (store / ".partial/orphan.tar").write_bytes(b"half")

    document = run_json("gc", store, "--sweep-partials")

    assert [Path(partial["place"]).name for partial in document["partials"]] == ["orphan.tar"]
    assert document["freed_bytes"] == 4
    assert os.listdir(store / ".partial") == []


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--pin", "step-00000100"], "no checkpoint 'step-00000100'"),
        (["--keep-best", "los"], "no checkpoint has a metric 'los'"),
        (["--ttl", "7x"], "'7x' is not a duration"),
        (["--ttl", "0d"], "'0d' is not a duration"),
        (["--keep-last", "0"], "keep-last"),
    ],
)
def test_gc_refuses_rules_that_protect_nothing(store: Path, words: list[str], complaint: str) -> None:
    result = run("gc", store, *words)

    assert result.exit_code == 2
    assert complaint in result.stderr
    assert len(list(store.rglob("*.tar"))) == 3


def test_gc_takes_ages_and_pins(store: Path) -> None:
    time.sleep(0.1)

    document = run_json("gc", store, "--ttl", "0.1s", "--pin", "run-1/step-00000000")

    assert [entry["name"] for entry in document["removed"]] == ["run-1/step-00000100"]
    assert document["removed"][0]["reason"] == "expired"


def test_diff_says_what_changed(store: Path) -> None:
    same = run("diff", store, "run-1/step-00000100", "run-1/step-00000100")
    changed = run("diff", store, "run-1/step-00000000", "run-1/step-00000200")

    assert (same.exit_code, changed.exit_code) == (0, 1)
    assert "the same: 2 tensors, 3 values, 1 file" in same.stdout
    extent = r"100 of 100 elements, 100 of 400 bytes, largest change 2"
    assert re.search(rf"changed +tensor +model.w +numpy F32\[100\] +{extent}", changed.stdout)
    assert re.search(r"changed +value +epoch +0 -> 2", changed.stdout)


def test_diff_takes_two_files_and_speaks_json(store: Path) -> None:
    document = run_json("diff", store / "run-1/step-00000000.tar", store / "run-1/step-00000100.tar")

    assert (document["same"], document["before"]["step"], document["after"]["step"]) == (False, 0, 100)
    assert [change["path"] for change in document["changes"]] == ["model.w", "epoch"]
    assert document["changes"][0]["extent"]["max_difference"] == 1.0


def test_diff_of_a_damaged_one_says_so(store: Path) -> None:
    flip(store / "run-1/step-00000100.tar")

    result = run("diff", store, "run-1/step-00000000", "run-1/step-00000100")

    assert result.exit_code == 1
    assert "is not what was written" in result.stderr


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (["show", "{store}"], 2, "is a store and not an archive file"),
        (["show", "{store}", "run-1/nope"], 1, "is not in file://"),
        (["show", "{store}", "../x"], 2, "cannot name a checkpoint"),
        (["show", "{store}/run-1/nope.tar"], 1, "there is no archive file"),
        (["show", "{store}/run-1/step-00000000.tar", "x"], 2, "is an archive and not a store"),
        (["ls", "{store}/run-1/step-00000000.tar"], 2, "is an archive and not a store"),
        (["ls", ""], 2, "empty word"),
        (["ls", "http://host/x"], 2, "is not a store"),
        (["ls", "{store}/run-1/step-00000000.tar/below"], 3, "not a directory"),
        (["verify", "{store}", "run-1/nope", "--prefix", "x"], 2, "--prefix"),
        (["verify", "{store}", "--policy", "off"], 2, "policy"),
        (["export", "{store}", "run-1/step-00000000", "{store}/no/where"], 2, "to export into"),
        (["diff", "{store}", "run-1/step-00000000"], 2, "is a store and not an archive file"),
        (["show", "s3://only-a.tar"], 2, "names no archive"),
    ],
)
def test_mistakes_are_explained_in_a_sentence(store: Path, words: list[str], code: int, complaint: str) -> None:
    result = run(*(word.format(store=store) for word in words))

    assert result.exit_code == code
    assert complaint in result.stderr
    assert "Traceback" not in result.output


def test_an_error_is_a_document_when_json_was_asked_for(store: Path) -> None:
    document = run_json("show", store, "run-1/nope")

    assert document["error"]["kind"] == "CheckpointMissing"


def test_debug_shows_the_traceback(store: Path) -> None:
    assert "Traceback" in run("show", store, "run-1/nope", "--debug").stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches_by_example_and_names_the_exit_codes(command: str) -> None:
    result = run(command, "--help")

    assert result.exit_code == 0
    assert re.search(rf"^    chockstone checkpoints {command} \S", result.stdout, re.MULTILINE)
    assert "Exit codes: 0 fine" in result.stdout


def test_the_program_tells_its_version() -> None:
    result = subprocess.run([*PROGRAM, "--version"], capture_output=True, text=True, check=True, timeout=60)

    assert result.stdout == f"chockstone {chockstone.__version__}\n"


def test_commands_load_only_what_they_need(store: Path) -> None:
    program = (
        "import sys\n"
        "import chockstone.cli.app\n"
        "assert not {'numpy', 'torch', 'xxhash', 'rich'} & set(sys.modules)\n"
        "sys.argv = ['chockstone', 'checkpoints', *sys.argv[1:]]\n"
        "try:\n"
        "    chockstone.cli.main()\n"
        "except SystemExit as end:\n"
        "    assert not end.code, end.code\n"
        "assert 'torch' not in sys.modules\n"
    )

    for words in (["verify", store], ["show", store, "run-1/step-00000000"], ["ls", store]):
        subprocess.run([sys.executable, "-c", program, *words], check=True, timeout=60, stdout=subprocess.DEVNULL)


def test_progress_goes_to_the_terminal_and_not_into_the_output(
    store: Path, in_terminal: Callable[..., tuple[int, str]]
) -> None:
    code, shown = in_terminal("verify", store, "run-1/step-00000000")

    assert code == 0
    assert "━" in shown
    assert "run-1/step-00000000: good" in shown


@pytest.mark.parametrize("tensors", [1, 3000])
def test_a_reader_that_goes_away_is_no_error(tmp_path: Path, tensors: int) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save({"model": {f"layer.{i}": np.ones(1) for i in range(tensors)}}, name="one")
    reading, writing = os.pipe()
    os.close(reading)

    command = [*PROGRAM, "checkpoints", "show", str(tmp_path), "one"]
    process = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, timeout=60, check=False)

    os.close(writing)
    assert (process.returncode, process.stderr) == (141, b"")


def test_output_that_cannot_be_written_is_an_error(store: Path) -> None:
    with open("/dev/full", "wb") as full:
        command = [*PROGRAM, "checkpoints", "ls", str(store)]
        process = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)

    assert process.returncode == 3
    assert process.stderr == "chockstone: cannot write the output: No space left on device\n"


def test_an_interrupted_export_leaves_nothing(tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "store") as checkpointer:
        checkpointer.save({"w": np.zeros(300_000_000, dtype=np.uint8)}, name="large")
    (tmp_path / "work").mkdir()
    command = [*PROGRAM, "checkpoints", "export", str(tmp_path / "store"), "large", str(tmp_path / "work/out")]

    for _ in range(5):  # it may be done before it is interrupted
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            deadline = time.monotonic() + 60
            while not os.listdir(tmp_path / "work"):
                assert time.monotonic() < deadline
                time.sleep(0.001)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        if process.returncode != 0:
            break
        shutil.rmtree(tmp_path / "work/out")

    assert (process.returncode, out, err) == (130, b"", b"")
    assert os.listdir(tmp_path / "work") == []
