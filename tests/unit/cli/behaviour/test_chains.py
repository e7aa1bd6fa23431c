"""``checkpoints rm`` and ``gc`` on the attempts of a chain: what a resume needs stays."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from chockstone.checkpoints import Checkpointer, Resume, open_store
from chockstone.checkpoints.resume.attempts import places
from chockstone.checkpoints.resume.attempts.candidates import Candidate, Origin
from chockstone.checkpoints.resume.attempts.places import AttemptPlaces
from chockstone.checkpoints.resume.walk.chain import Chain
from chockstone.checkpoints.retention.policy import Retention
from chockstone.checkpoints.stores import object_store as object_stores
from chockstone.checkpoints.stores.object_store import connect
from chockstone.cli.app import app
from support.loopback_s3 import make_bucket, s3_server, set_environment

FIRST = "attempt-00000.ckpt/000001-0001"
SECOND = "attempt-00000.ckpt/000002-0001"
FORWARDED = "attempt-00001.ckpt/000001-0001"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server() as url:
        make_bucket(url, "bucket")
        yield url


@pytest.fixture(params=["file", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "file":
        return str(tmp_path / "run")
    set_environment(monkeypatch, request.getfixturevalue("server"))
    for room in (places, object_stores):
        monkeypatch.setattr(room, "connect", _connect)
    return f"s3://bucket/{tmp_path.name}/run"


_connect = cache(connect)  # a client takes longer to make than everything a test does with it


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["checkpoints", *map(str, words)], catch_exceptions=False)


def run_json(*words: str | Path) -> Any:
    return json.loads(run(*words, "--json").stdout, parse_constant=pytest.fail)


def train(root: str | Path, attempt: int, *steps: int, **options: Any) -> int | None:
    """One attempt; returns the step that it restored."""
    with Resume(root, attempt=attempt, **options) as resume:
        resume.restore({"w": np.zeros(8)})
        for step in steps:
            resume.save({"w": np.full(8, float(step))}, step=step).result()
        return resume.step


def names(store: str | Path) -> list[str]:
    return [entry.name for entry in open_store(str(store)).entries()]


def superseded_save(root: str, *, good: bool) -> None:
    """Attempt 0 saves step 100 if ``good``; attempt 1 fences it; then attempt 0 commits step 200 all the same."""
    chain = Chain(AttemptPlaces(), f"{root}/attempt-00000", identity={"chain": "run"}, attempt=0)
    chain.resolve()
    if good:
        save(chain, step=100)
    late = Chain(
        AttemptPlaces(),
        f"{root}/attempt-00001",
        identity={"chain": "run"},
        attempt=1,
        candidates=[Candidate(f"{root}/attempt-00000", Origin.DERIVED, 0)],
    )
    late.resolve()
    generation, metadata = chain.begin().name, chain.metadata
    with Checkpointer(chain.place.store) as zombie:  # not through the fence, as one that slips past it
        zombie.save({"w": np.full(8, 200.0)}, name=generation, step=200, metadata=metadata).result()


def save(chain: Chain, *, step: int) -> None:
    with Checkpointer(chain.store) as checkpointer:
        state = {"w": np.full(8, float(step))}
        checkpointer.save(state, name=chain.begin().name, step=step, metadata=chain.metadata).result()


def test_rm_refuses_what_a_later_attempt_refers_to(root: str) -> None:
    train(root, 0, 100)
    train(root, 1)

    for words in ([root, FIRST], [f"{root}/attempt-00000.ckpt", "000001-0001"]):
        for option in ("--dry-run", "--yes"):
            result = run("rm", *words, option)
            assert result.exit_code == 1
            assert "attempt-00001" in result.stderr
            assert "rm " in result.stderr  # what to do
            assert "removed" not in result.stdout

    assert run_json("rm", root, FIRST, "--yes")["refused"][0]["name"] == FIRST
    assert train(root, 2) == 100


def test_rm_removes_a_checkpoint_together_with_the_reference_to_it(root: str) -> None:
    train(root, 0, 100)
    train(root, 1)

    result = run("rm", root, FIRST, FORWARDED, "--yes")

    assert result.exit_code == 0
    assert result.stdout.index(FORWARDED) < result.stdout.index(FIRST)  # the reference first
    assert names(root) == []


def test_rm_knows_references_of_attempts_after_the_next(root: str) -> None:
    train(root, 0, 100)
    train(root, 1)
    train(root, 2)
    assert run("rm", root, FORWARDED, "--yes").exit_code == 0

    refused = run("rm", f"{root}/attempt-00000.ckpt", "000001-0001", "--yes")

    assert refused.exit_code == 1
    assert "attempt-00002" in refused.stderr


def test_rm_knows_a_reference_of_another_run(root: str) -> None:
    train(root, 0, 100)
    other = root.removesuffix("/run") + "/other"
    train(other, 0, sources=root)

    refused = run("rm", root, FIRST, "--yes")

    assert refused.exit_code == 1
    assert "other/attempt-00000" in refused.stderr


def test_gc_of_one_attempt_keeps_what_a_later_one_refers_to(tmp_path: Path) -> None:
    root = tmp_path / "run"
    train(root, 0, 100, 200, 300, retention=Retention())
    folder = root / "attempt-00000.ckpt"
    shutil.copytree(folder, tmp_path / "whole")
    for name in ("000002-0001.tar", "000003-0001.tar"):
        (folder / name).write_bytes(b"unreadable for a while")
    train(root, 1)
    for name in ("000002-0001.tar", "000003-0001.tar"):
        shutil.copy(tmp_path / "whole" / name, folder / name)

    for options in (["--dry-run"], []):
        plan = run_json("gc", folder, "--keep-last", "1", *options)
        reasons = {each["name"]: each["reasons"] for each in plan["kept"]}
        assert "attempt-00001" in reasons["000001-0001"][0]
        assert [each["name"] for each in plan["removed"]] == ["000002-0001"]

    assert train(root, 2) == 100


@pytest.mark.parametrize("where", ["", "/attempt-00000.ckpt"])
def test_gc_never_keeps_a_superseded_save_in_the_place_of_a_good_one(root: str, where: str) -> None:
    superseded_save(root, good=True)
    before = names(root)

    planned = run_json("gc", root + where, "--keep-last", "1", "--dry-run")
    assert names(root) == before
    done = run_json("gc", root + where, "--keep-last", "1")

    gone = ((where == "" and "attempt-00000.ckpt/") or "") + "000002-0001"
    assert [each["name"] for each in done["removed"]] == [each["name"] for each in planned["removed"]] == [gone]
    assert done["removed"][0]["reason"] == "superseded"
    assert train(root, 2) == 100


def test_gc_keeps_a_superseded_save_that_is_all_there_is(root: str) -> None:
    superseded_save(root, good=False)

    done = run_json("gc", root, "--keep-last", "1")

    assert done["removed"] == []
    assert "superseded" in done["kept"][0]["reasons"][0]
    assert train(root, 2) == 200


def test_gc_goes_by_the_number_of_a_save_and_not_by_its_clock(tmp_path: Path) -> None:
    root = tmp_path / "run"
    train(root, 0, 100)
    folder = root / "attempt-00000.ckpt"
    shutil.copy(folder / "000001-0001.tar", folder / "000003-0001.tar")  # made before the second, numbered after it
    with Checkpointer(str(folder)) as checkpointer:
        metadata = {"chain": {"identity": {"chain": "run"}, "attempt": 0}}
        checkpointer.save({"w": np.zeros(8)}, name="000002-0001", step=150, metadata=metadata).result()

    run("gc", root, "--keep-last", "1")

    assert names(root) == ["attempt-00000.ckpt/000003-0001"]


def test_gc_removes_a_reference_once_its_attempt_has_saved_enough(root: str) -> None:
    train(root, 0, 100)
    train(root, 1, 200)

    run("gc", root, "--keep-last", "1")

    assert names(root) == [FIRST, "attempt-00001.ckpt/000002-0001"]  # rules apply to each attempt


def test_references_are_known_where_the_disk_is_mounted_elsewhere(tmp_path: Path) -> None:
    train(tmp_path / "inside/run", 0, 100)
    train(tmp_path / "inside/run", 1)
    os.rename(tmp_path / "inside", tmp_path / "outside")

    refused = run("rm", tmp_path / "outside/run/attempt-00000.ckpt", "000001-0001", "--yes")

    assert refused.exit_code == 1
    assert "outside/run/attempt-00001" in refused.stderr


def test_a_fence_leads_to_references_that_stand_nowhere_near(tmp_path: Path) -> None:
    first, second = f"{tmp_path}/a/one/_flytecheckpoints", f"{tmp_path}/b/two/_flytecheckpoints"
    save(Chain(AttemptPlaces(), first, identity={"run": "r"}, attempt=0), step=100)
    late = Chain(
        AttemptPlaces(), second, identity={"run": "r"}, attempt=1, candidates=[Candidate(first, Origin.PLATFORM, 0)]
    )
    late.walk(lambda found: found)
    from chockstone.checkpoints.resume.forward import Forward

    forward = Forward.begin(late, "reference")
    assert forward is not None
    forward.wait()

    refused = run("rm", f"{first}.ckpt", "000001-0001", "--yes")

    assert refused.exit_code == 1
    assert "b/two" in refused.stderr
