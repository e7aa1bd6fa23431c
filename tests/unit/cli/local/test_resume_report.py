from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from chockstone.checkpoints import Checkpointer, Resume
from chockstone.checkpoints.resume.attempts.candidates import Candidate, Origin
from chockstone.checkpoints.resume.attempts.places import AttemptPlaces
from chockstone.checkpoints.resume.walk.chain import Chain
from chockstone.cli.app import app
from chockstone.integrations.flyte.layouts import LEAF, shard
from support.loopback_s3 import Fault, Kind, faulty_proxy, make_bucket, s3_server, set_environment

EVIL = "\x1b[31m\u202e"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server() as url:
        make_bucket(url, "bucket")
        yield url


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root whose one attempt saved; tests write over its record, and over nothing else."""
    root = tmp_path_factory.mktemp("trained") / "run-7"
    train(root, 0, 100)
    shutil.copy(root / "attempt-00000.ckpt/resume.json", root.with_suffix(".json"))
    return root


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["resume", "explain", *map(str, words)], catch_exceptions=False)


def run_json(*words: str | Path) -> Any:
    return json.loads(run(*words, "--json").stdout, parse_constant=pytest.fail)


def train(root: str | Path, attempt: int, *steps: int, **options: Any) -> None:
    """One attempt that goes on from what there is and saves after each of these steps."""
    with Resume(root, attempt=attempt, forward="off", **options) as resume:
        resume.restore({"w": np.zeros(8)})
        for step in steps:
            resume.save({"w": np.full(8, float(step))}, step=step).result()


def save(chain: Chain, *, step: int) -> None:
    with Checkpointer(chain.store) as checkpointer:
        checkpointer.save({"w": np.zeros(8)}, name=chain.begin().name, step=step, metadata=chain.metadata).result()


def damage(archive: Path) -> None:
    content = bytearray(archive.read_bytes())
    content[5000] ^= 1  # in the manifest
    archive.unlink()
    archive.write_bytes(content)


def fact(result: Result, name: str) -> str:
    found = re.search(rf"^{name} +(.*)$", result.stdout, re.MULTILINE)
    return found[1] if found else ""


def list_files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_table_shows_each_candidate_and_what_would_be_taken(tmp_path: Path) -> None:
    root = tmp_path / "run-7"
    train(root, 0, 100)
    train(root, 1, 200, 300)
    train(root, 2)
    damage(root / "attempt-00001.ckpt/000002-0001.tar")
    before = list_files(root)

    result = run(root)

    lines = result.stdout.splitlines()
    table = lines[lines.index("") + 1 :]
    assert result.exit_code == 0
    assert table[0].split() == ["VERDICT", "ATTEMPT", "GENERATION", "STEP", "ORIGIN", "PLACE", "REASON"]
    assert re.match(r"  absent +3 +own +attempt-00003 +nothing was ever written here$", table[1])
    assert re.match(r"  partial +2 +derived +attempt-00002 +an attempt began here and committed nothing$", table[2])
    assert re.match(r"  corrupt +1 +000002-0001 +derived +attempt-00001 +.*\(read twice\)$", table[3])
    assert re.match(r"\* verified +1 +000001-0001 +200 +derived +attempt-00001$", table[4])
    assert fact(result, "outcome") == "would restore generation 000001-0001 of attempt 1, step 200"
    assert fact(result, "from") == (root / "attempt-00001").as_uri()
    assert fact(result, "steps lost") == "unknown: a newer checkpoint cannot be read"
    assert re.match(r"\d+ requests, [\d.]+ kB, [\d,]+ ms$", fact(result, "cost"))
    assert list_files(root) == before, "looking changes nothing"


def test_many_places_of_which_the_same_is_to_be_said_are_one_line(tmp_path: Path) -> None:
    root = tmp_path / "run-7"
    train(root, 0, 100)
    for attempt in range(1, 7):
        train(root, attempt)

    result, document = run(root), run_json(root)

    assert re.search(r"^  partial +6 +derived +attempt-00006 ", result.stdout, re.MULTILINE)
    assert re.search(r"^  settled +5…1 +derived +attempt-00005 … attempt-00001 \(5\) ", result.stdout, re.MULTILINE)
    assert len(document["looked"]) == 8


def test_as_json_it_is_the_whole_report(tmp_path: Path) -> None:
    train(tmp_path / "run-7", 0, 100)

    document = run_json(tmp_path / "run-7")

    assert (document["outcome"], document["attempt"], document["identity"]) == ("resolved", 1, {"chain": "run-7"})
    assert [each["verdict"] for each in document["looked"]] == ["absent", "verified"]
    assert document["choice"] == document["looked"][-1]
    assert document["steps_lost"] == 0
    assert document["settings"]["on_unreadable"] == "stop"


def test_where_nothing_was_ever_saved_it_would_be_a_fresh_start(tmp_path: Path) -> None:
    result = run(tmp_path / "run-7")

    assert result.exit_code == 0
    assert fact(result, "outcome") == "a fresh start: the place holds no checkpoint"
    assert "check the URI" in fact(result, "to do")


def test_where_nothing_can_be_used_it_says_what_to_do(tmp_path: Path) -> None:
    root = tmp_path / "run-7"
    train(root, 0, 100)
    damage(root / "attempt-00000.ckpt/000001-0001.tar")

    result = run(root)

    assert result.exit_code == 1
    assert fact(result, "outcome").startswith("exhausted: checkpoints were saved, and none of them can be used")
    assert "fresh_start=True" in fact(result, "to do")
    assert fact(result, "steps lost") == ""


def test_what_cannot_be_judged_blocks_and_says_what_to_do(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with faulty_proxy(server) as proxy:
        set_environment(monkeypatch, proxy.url)
        train("s3://bucket/denied", 0, 100)
        train("s3://bucket/denied", 1, 200)
        denied = Fault(Kind.STATUS, 403, "AccessDenied")
        proxy.inject(denied, method="GET", containing="attempt-00001.ckpt")

        result = run("s3://bucket/denied")

    assert result.exit_code == 1
    assert re.search(r"^  denied +1 +derived +attempt-00001 .*s3:ListBucket", result.stdout, re.MULTILINE)
    assert re.search(r"^  untried +0 .*attempt-00000 ", result.stdout, re.MULTILINE), (
        "nothing older may stand in for it"
    )
    assert "would restore" not in result.stdout
    assert fact(result, "outcome").startswith("blocked by s3://bucket/denied/attempt-00001, denied")
    assert "list and read" in fact(result, "to do")


def test_a_store_that_refuses_is_one_clear_line(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with faulty_proxy(server) as proxy:
        set_environment(monkeypatch, proxy.url)
        proxy.inject(Fault(Kind.STATUS, 403, "AccessDenied"), method="GET")

        result = run("s3://bucket/run-7")

    assert (result.exit_code, result.stdout) == (3, "")
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("chockstone: cannot list s3://bucket/run-7")


def test_it_works_on_s3(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment(monkeypatch, server)
    train("s3://bucket/team/run-7", 0, 100)

    result = run("s3://bucket/team/run-7/")
    of_attempt = run("s3://bucket/team/run-7/attempt-00000.ckpt")
    as_recorded = run("s3://bucket/team/run-7", "--recorded")

    assert fact(result, "below") == "s3://bucket/team/run-7/"
    assert fact(result, "outcome") == "would restore generation 000001-0001 of attempt 0, step 100"
    assert fact(of_attempt, "outcome") == fact(result, "outcome")
    assert fact(as_recorded, "outcome") == "a fresh start: the place holds no checkpoint"


def test_recorded_shows_what_the_last_attempt_found(tmp_path: Path) -> None:
    root = tmp_path / "run-7"
    train(root, 0, 100)
    train(root, 1, 200)
    (root / "attempt-00002.ckpt").mkdir()  # began, and was killed before it could say anything

    result = run(root, "--recorded")

    assert result.exit_code == 0
    assert fact(result, "place") == (root / "attempt-00001").as_uri()
    assert fact(result, "outcome") == "restored generation 000001-0001 of attempt 0, step 100"
    assert fact(result, "note") == f"{(root / 'attempt-00002').as_uri()} came later and recorded nothing"


def test_without_a_record_it_says_so(tmp_path: Path) -> None:
    result = run(tmp_path / "run-7", "--recorded")

    assert (result.exit_code, result.stdout) == (1, "")
    assert "has recorded how it resumed; leave out --recorded to search now" in result.stderr


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b'"x"', b"9" * 5000, b"[" * 100_000, b"{}", b"\xff", b" " * 300_000]
)
def test_a_record_that_is_none_is_one_clear_line(content: bytes, trained: Path) -> None:
    (trained / "attempt-00000.ckpt/resume.json").write_bytes(content)

    as_recorded, now = run(trained, "--recorded"), run(trained)

    assert (as_recorded.exit_code, as_recorded.stdout) == (1, "")
    assert len(as_recorded.stderr.splitlines()) == 1
    assert now.exit_code == 0, "a decision needs no record"


@pytest.mark.parametrize(
    "change",
    [
        {"milliseconds": "many"},
        {"requests": None},
        {"looked": {}},
        {"choice": 3},
        {"identity": []},
        {"steps_lost": True},
        {"looked": [{"uri": 5, "origin": "own", "verdict": "absent"}]},
        {"looked": [{"uri": "x", "origin": "own", "verdict": "splendid"}]},
        {"surprise": 1},
    ],
)
def test_a_record_with_strange_values_is_refused(change: dict[str, Any], trained: Path) -> None:
    record = json.loads(trained.with_suffix(".json").read_bytes()) | change
    (trained / "attempt-00000.ckpt/resume.json").write_text(json.dumps(record))

    result = run(trained, "--recorded")

    assert (result.exit_code, result.stdout) == (1, "")
    assert len(result.stderr.splitlines()) == 1


def test_what_others_wrote_cannot_steer_the_terminal(trained: Path) -> None:
    record = json.loads(trained.with_suffix(".json").read_bytes())
    record |= {"notes": [EVIL], "warnings": [EVIL], "identity": {EVIL: EVIL}}
    record["looked"][0] |= {"reason": EVIL, "origin": EVIL}
    (trained / "attempt-00000.ckpt/resume.json").write_text(json.dumps(record))

    result = run(trained, "--recorded")

    assert result.exit_code == 0
    assert not {"\x1b", "\u202e"} & set(result.stdout)


def test_of_a_place_by_itself_identity_and_lineage_come_from_its_claims(tmp_path: Path) -> None:
    identity = {"project": "vision", "execution": "f1", "node": "n0"}
    older, newer = str(tmp_path / "ab/f1-n0-0/ckpt"), str(tmp_path / "xy/f1-n0-1/ckpt")
    first = Chain(AttemptPlaces(), older, identity=identity, attempt=0)
    first.walk(lambda found: found)
    save(first, step=7)
    second = Chain(AttemptPlaces(), newer, identity=identity, attempt=1, candidates=[Candidate(older, Origin.PLATFORM)])
    second.claim()

    result = run(newer)
    shut = run(older)
    of_others = run(newer, "--identity", "project=vision", "--identity", "execution=f2")

    assert fact(result, "identity") == "execution=f1 node=n0 project=vision"
    assert fact(result, "attempt") == "1"
    assert re.search(r"^\* verified +000001-0001 +7 +lineage +ab/f1-n0-0/ckpt$", result.stdout, re.MULTILINE)
    assert fact(shut, "outcome") == "would restore generation 000001-0001 of attempt 0, step 7"
    assert fact(of_others, "outcome").startswith("a fresh start")


def test_a_name_of_ones_own_is_found_in_the_claims(tmp_path: Path) -> None:
    train(tmp_path / "run-7", 0, 100, identity="the big one")

    result = run(tmp_path / "run-7")
    of_others = run(tmp_path / "run-7", "--identity", "run-7")

    assert fact(result, "identity") == "chain=the big one"
    assert fact(result, "outcome").startswith("would restore")
    assert re.search(r"^  foreign +0 +000001-0001 +100 ", of_others.stdout, re.MULTILINE)


def test_what_is_there_of_another_name_is_not_called_nothing(tmp_path: Path) -> None:
    train(tmp_path / "run-7", 0, 100)

    result = run(tmp_path / "run-7", "--identity", "run-8")

    assert fact(result, "outcome").startswith("a fresh start: the place holds checkpoints of another run")
    assert "--identity" in fact(result, "to do")


def test_another_run_may_be_named_as_a_source(tmp_path: Path) -> None:
    train(tmp_path / "run-6", 0, 100)

    result = run(tmp_path / "run-7", "--source", tmp_path / "run-6")

    assert re.search(r"^\* verified +0 +000001-0001 +100 +user +run-6/attempt-00000$", result.stdout, re.MULTILINE)


def test_of_a_path_of_flyte_earlier_attempts_are_found_though_nothing_is_there(tmp_path: Path) -> None:
    uids = [f"feda4e266c748463a97d-n0-{attempt}" for attempt in range(3)]
    first, _, third = (tmp_path / shard(uid) / uid / LEAF for uid in uids)
    save(Chain(AttemptPlaces(), str(first), identity={"project": "vision"}, attempt=0), step=7)

    for written in (f"{third}", f"{third}/", f"{third}.ckpt"):
        report = run_json(written)
        assert (report["attempt"], report["outcome"]) == (2, "resolved")
        assert (report["choice"]["attempt"], report["choice"]["step"], report["choice"]["origin"]) == (0, 7, "derived")
        assert report["identity"] == {"project": "vision"}


def test_files_of_flytes_own_checkpoint_are_seen(tmp_path: Path) -> None:
    dest = tmp_path / "ab/f1-n0-0/ckpt"
    dest.mkdir(parents=True)
    (dest / "model.pt").write_bytes(b"x")
    single = tmp_path / "payload"
    single.write_bytes(b"x")

    of_tree, of_object = run(dest), run(single)

    for result in (of_tree, of_object):
        assert result.exit_code == 0
        assert fact(result, "outcome") == "would restore the files that Flyte's own checkpoint wrote"
        assert "Resume in your own loop does not" in result.output
        assert "unverified" in fact(result, "warning")
