from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chockstone.checkpoints.stores.store import check_name
from chockstone.engine.storage.archive_names import archive_name, ephemeral_name, ephemeral_session, stored_name
from chockstone.wire.paths import Kind, TinkerPath

SESSIONS = st.uuids().map(str)
CHARACTERS = "abzABZ019._-x"
# Short ones, so that they resemble each other; and ones that are as long as a name may be.
NAMES = st.one_of(
    st.text(CHARACTERS, min_size=1, max_size=6),
    st.builds(lambda name, length: name.ljust(length, "y"), st.text(CHARACTERS, max_size=2), st.integers(199, 255)),
    st.sampled_from([".a", "...", "..a", "x-", "x-a", "-", "_"]),
).filter(lambda name: name not in (".", ".."))
RUNS = st.builds("{}:train:{}".format, SESSIONS, st.integers(0, 2**31 - 1))
SEQ_IDS = st.integers(1, 2**31 - 1)
SAVES = st.tuples(RUNS, st.sampled_from(Kind), NAMES, st.one_of(st.integers(1, 12), SEQ_IDS))


@given(SAVES)
def test_every_legal_checkpoint_has_a_name_that_stores_take(save: tuple[str, Kind, str, int]) -> None:
    run_id, kind, name, seq_id = save
    TinkerPath.of(run_id, kind, name)

    check_name(archive_name(run_id, kind, name, seq_id))
    check_name(archive_name(run_id, kind, name, None))


@given(st.lists(SAVES, unique=True, max_size=5))
def test_different_saves_have_different_names(saves: list[tuple[str, Kind, str, int]]) -> None:
    names = [archive_name(*save) for save in saves]

    assert len(set(names)) == len(saves)


@given(st.sampled_from(Kind), st.lists(st.tuples(NAMES, st.integers(1, 200)), unique=True, max_size=12))
def test_saves_of_one_run_never_share_a_name(kind: Kind, saves: list[tuple[str, int]]) -> None:
    names = [archive_name("s:train:0", kind, *save) for save in saves]

    assert len(set(names)) == len(saves)


def test_a_name_that_looks_hashed_is_not_taken_for_one() -> None:
    hidden = archive_name("s:train:0", "weights", ".hidden", 1)
    stored = hidden.rsplit("/", 1)[1].rpartition(".")[0]

    assert stored_name(stored) != stored


def test_a_name_is_never_given_twice() -> None:
    """A run made anew counts from the start again, and what it saved before may be in the trash."""
    names = {archive_name("s:train:0", "weights", "final", seq_id) for seq_id in (None, 1) for _ in range(100)}

    assert len(names) == 200


@given(SESSIONS, st.integers(0, 2**31 - 1))
def test_unnamed_weights_have_a_place_of_their_own(session_id: str, seq_id: int) -> None:
    unnamed = ephemeral_name(f"{session_id}:sample:{seq_id}")

    check_name(unnamed)
    assert unnamed.split("/")[0] != archive_name(f"{session_id}:train:{seq_id}", "weights", "a", 1).split("/")[0]


@given(SAVES, SESSIONS, st.integers(0, 2**31 - 1))
def test_only_unnamed_weights_are_taken_for_such(
    save: tuple[str, Kind, str, int], session_id: str, seq_id: int
) -> None:
    run_id, kind, name, save_seq_id = save

    assert ephemeral_session(ephemeral_name(f"{session_id}:sample:{seq_id}")) == session_id
    for odd in (name, "ephemeral", "a.sample.0"):
        assert ephemeral_session(archive_name(run_id, kind, odd, save_seq_id)) is None
    assert ephemeral_session(f"mine/{session_id}.sample.0/ephemeral") is None
    assert ephemeral_session(f"{session_id}.sample.x/ephemeral") is None
