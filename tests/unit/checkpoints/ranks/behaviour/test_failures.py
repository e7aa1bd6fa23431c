"""One rank cannot, and none does: no archive, an error that says why on all of them, and the next save goes well."""

from __future__ import annotations

from pathlib import Path

import pytest

import support.checkpoints.ranked_jobs as jobs
from chockstone.checkpoints import Archive, Checkpointer, verify_archive
from support.rank_pool import RankPool


def names(place: Path) -> list[str]:
    return sorted(path.name for path in place.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("value", "numbers.lock"),
        ("key", "model.extra"),
        ("shape", "model.same F32[2, 2]"),
        ("name", "'step-00000002', 'step-00000012'"),
        ("step", "'step-00000002' after different steps: 2, 12"),
        ("hole", "flat.moments: some of its elements no rank has"),
        ("overlap", "flat.moments: two ranks have the same elements"),
        ("both", "flat.moments"),
        ("partial", "redistribute"),
    ],
)
def test_a_save_that_one_rank_cannot_make_fails_on_all(ranks: RankPool, tmp_path: Path, what: str, says: str) -> None:
    said = ranks.run(2, jobs.save_badly, tmp_path, what)

    assert [[ends[0], ends[2]] for ends in said] == [["well", "well"]] * 2
    assert all(says in ends[1] for ends in said)
    assert names(tmp_path) == ["step-00000001.tar", "step-00000003.tar"]


def test_a_save_that_one_rank_abandons_is_abandoned(ranks: RankPool, tmp_path: Path) -> None:
    said = ranks.run(2, jobs.save_badly, tmp_path, "abandon")

    if names(tmp_path) == ["step-00000001.tar", "step-00000003.tar"]:  # unless the commit was quicker
        assert all("SaveAbandoned" in ends[1] for ends in said)
    assert all(ends[2] == "well" for ends in said)


def test_a_rank_that_is_killed_is_named_and_nothing_is_committed(ranks: RankPool, tmp_path: Path) -> None:
    outcomes = ranks.outcomes(3, jobs.save_and_die, tmp_path)

    assert outcomes[1] == (False, "died")
    for is_good, said in (outcomes[0], outcomes[2]):
        assert is_good, said
        assert said.startswith("SaveFailed") and "rank 1: its connection is closed" in said
    assert names(tmp_path) == ["step-00000001.tar"]


def test_a_rank_that_says_nothing_is_named_in_time(ranks: RankPool, tmp_path: Path) -> None:
    said = ranks.run(3, jobs.save_late, tmp_path)

    for text, seconds in (said[0], said[2]):
        assert "rank 1: it said nothing for 1 s" in text
        assert seconds < 30.0
    assert names(tmp_path) == ["step-00000001.tar"]


def test_ranks_that_never_save_are_named(ranks: RankPool, tmp_path: Path) -> None:
    said = ranks.run(3, jobs.save_alone, tmp_path)

    assert "rank 1: it did not come in 0.5 s; rank 2: it did not come in 0.5 s" in said[0]
    assert 'ranks="off"' in said[0]


def test_saves_in_a_row_have_the_values_of_their_moment(ranks: RankPool, tmp_path: Path) -> None:
    [sums, _] = ranks.run(2, jobs.save_in_a_row, tmp_path)

    with Checkpointer(tmp_path) as checkpointer:
        found = [float(checkpointer.load(name=f"step-{step:08d}")["weights"].sum()) for step in range(1, 6)]
    assert found == sums


def test_a_process_can_save_for_itself(ranks: RankPool, tmp_path: Path) -> None:
    said = ranks.run(2, jobs.save_for_itself, tmp_path)

    assert [text for text, _ in said] == ["[0, 0, 0]", "[1, 1, 1]"]
    assert all("UnstorableValue: part.value: this process has only a part" in refusal for _, refusal in said)


@pytest.mark.parametrize("what", ["shape", "partial"])
def test_a_target_that_does_not_fit_changes_nothing_on_any_rank(ranks: RankPool, tmp_path: Path, what: str) -> None:
    ranks.run(2, jobs.save, tmp_path)

    said = ranks.run(2, jobs.restore_badly, tmp_path, what)

    assert all(text.startswith("RestoreMismatch") and text.endswith("untouched=True") for text in said)
    assert all("model.same" in text for text in said)


def test_whoever_loses_a_rank_while_it_reads_is_told_not_to_go_on(ranks: RankPool, tmp_path: Path) -> None:
    (_, said), died = ranks.outcomes(2, jobs.restore_and_die, tmp_path)

    assert died == (False, "died")
    assert "rank 1: its connection is closed" in said
    assert said.endswith("The target is half restored; do not use it.")


def test_ranks_that_went_back_past_damage_save_the_same_step_again(ranks: RankPool, tmp_path: Path) -> None:
    ranks.run(2, jobs.save, tmp_path)
    ranks.run(2, jobs.save_newer, tmp_path)
    newest = tmp_path / "step-00000002.tar"
    content = bytearray(newest.read_bytes())
    content[-2 * 1024**2] ^= 1
    newest.write_bytes(content)

    said = ranks.run(2, jobs.restore_and_save_newer, tmp_path)

    assert said == ["restored=step-00000001 saved=step-00000002"] * 2
    assert (tmp_path / "step-00000002.damaged-1.tar").read_bytes() == content
    with Archive.open(newest) as archive:
        verify_archive(archive)


def test_damage_that_one_rank_meets_sends_all_to_the_one_before(ranks: RankPool, tmp_path: Path) -> None:
    ranks.run(2, jobs.save, tmp_path)
    ranks.run(2, jobs.save_newer, tmp_path)
    newest = tmp_path / "step-00000002.tar"
    content = bytearray(newest.read_bytes())
    content[-2 * 1024**2] ^= 1
    newest.write_bytes(content)

    said = ranks.run(2, jobs.restore_badly, tmp_path, "damage")

    assert said == ["step-00000001 skipped=['step-00000002'] good=True"] * 2
