from __future__ import annotations

import pickle

from chockstone.checkpoints import errors
from chockstone.checkpoints.errors import CheckpointError, DamagedArchive, SealMismatch, UnstorableValue


def kinds() -> list[type[CheckpointError]]:
    found = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, CheckpointError)]
    return [kind for kind in found if kind.__module__ == errors.__name__]


def test_the_tree_in_the_docstring_names_every_error_below_its_parent() -> None:
    parents: dict[str, str] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        name = line.lstrip("│├└─ ").split(" ")[0]
        if not name.isidentifier() or not hasattr(errors, name):
            continue
        depth = (len(line) - len(line.lstrip("│├└─ "))) // 4
        above[depth:] = [name]
        parents[name] = above[depth - 1] if depth else "Exception"

    assert set(parents) == {kind.__name__ for kind in kinds()}
    assert all(parents[kind.__name__] in {base.__name__ for base in kind.__bases__} for kind in kinds())


def test_damage_says_where_it_is_when_that_is_known() -> None:
    assert str(DamagedArchive("a bad header", where=4096)) == "a bad header (at byte 4096)"
    assert DamagedArchive("a bad header").where is None


def test_errors_carry_what_a_handler_needs() -> None:
    assert UnstorableValue("model.lock", "cannot be stored").path == "model.lock"
    mismatch = SealMismatch(expected="a" * 64, found="b" * 64)
    assert (mismatch.expected, mismatch.found) == ("a" * 64, "b" * 64)


def test_every_error_survives_the_way_to_another_process() -> None:
    made = [UnstorableValue("model.lock", "cannot be stored"), SealMismatch(expected="a" * 64, found="b" * 64)]
    made += [errors.AdmissionRefused("too large", needed_bytes=7), errors.RestoreMismatch("differs", missing=("a",))]
    made += [kind("text") for kind in kinds() if kind not in {type(error) for error in made}]

    for error in made:
        sent = pickle.loads(pickle.dumps(error))
        assert type(sent) is type(error)
        assert str(sent) == str(error)
        assert vars(sent) == vars(error)
