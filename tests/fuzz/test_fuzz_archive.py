from __future__ import annotations

import functools
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mutations import KINDS, Mutation, reseal

from chockstone.checkpoints import Archive, verify_archive
from chockstone.checkpoints.errors import CheckpointError
from chockstone.checkpoints.format.tree import TensorReference
from chockstone.checkpoints.reading.archive import Verify
from chockstone.checkpoints.restoring.restore import load_state
from support.archives import BytesSource, assert_same, small_state, write_archive
from support.hostile_archives import forge, tensor_file, with_tensors

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "250"))  # per test; raise it to go hunting
QUICK = settings(derandomize=EXAMPLES == 250, deadline=None, max_examples=EXAMPLES, database=None)

MUTATIONS = st.lists(
    st.builds(
        Mutation,
        kind=st.sampled_from(sorted(KINDS)),
        at=st.floats(0, 1),
        to=st.floats(0, 1),
        content=st.binary(min_size=1, max_size=40)
        | st.sampled_from([b"\0" * 512, b"\x80" + b"\xff" * 11, b"../../x\0"]),
    ),
    min_size=1,
    max_size=4,
)


@functools.cache
def sound() -> bytes:
    """A small archive, made once. No fixture: hypothesis would print it."""
    with tempfile.TemporaryDirectory() as root:
        return write_archive(Path(root), files={"config.json": b'{"r": 8}'}).read_bytes()


def mutate(archive: bytes, mutations: list[Mutation]) -> bytes:
    for mutation in mutations:
        archive = mutation.apply(archive)
    return archive


def load_or_refuse(content: bytes, *, verify: Verify = "full") -> Any:
    """The state, or None where the archive is refused. Anything but our own error comes through."""
    try:
        with Archive(BytesSource(content), verify=verify) as archive:
            state = load_state(archive)
            verify_archive(archive)
            for tensor in archive.all_tensors():
                assert archive.layout.body_offset <= tensor.offset <= archive.layout.body_end - tensor.entry.size
    except CheckpointError:
        return None
    assert not holds_reference(state), "a reference is no value"
    return state


def holds_reference(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(holds_reference, value)) or any(map(holds_reference, value.values()))
    return isinstance(value, TensorReference) or (
        isinstance(value, list | tuple | set | frozenset) and any(map(holds_reference, value))
    )


@QUICK
@given(mutations=MUTATIONS)
def test_a_mutated_archive_is_refused(mutations: list[Mutation]) -> None:
    mutated = mutate(sound(), mutations)

    state = load_or_refuse(mutated)

    assert (state is not None) == (mutated == sound())
    if state is not None:
        assert_same(state, small_state())


@QUICK
@given(mutations=MUTATIONS, verify=st.sampled_from(["off", "sampled"]))
def test_a_mutated_archive_that_is_not_verified_raises_nothing_but_our_errors(
    mutations: list[Mutation], verify: Verify
) -> None:
    load_or_refuse(mutate(sound(), mutations), verify=verify)


@QUICK
@given(mutations=MUTATIONS)
def test_a_mutated_archive_that_was_sealed_again_raises_nothing_but_our_errors(
    mutations: list[Mutation],
) -> None:
    load_or_refuse(reseal(mutate(sound(), mutations)))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**63, -(2**63), 10**400, -1, 0, 1])
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(["cpu", "float32", "0x1f", "1e999", "YQ==", "model", "w", "b", "../x"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
MANIFEST_KEYS = [
    "format",
    "version",
    "kind",
    "step",
    "created_at",
    "pinned",
    "ttl_seconds",
    "metrics",
    "metadata",
    "members",
    "digest",
    "block_bytes",
    "blocks",
]


@QUICK
@given(key=st.sampled_from(MANIFEST_KEYS), value=JSON)
def test_any_value_in_a_sealed_manifest_raises_nothing_but_our_errors(key: str, value: Any) -> None:
    load_or_refuse(forge([("state.json", b"{}")], edit=lambda document: document.update({key: value})))


def entries(extent: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """What may stand behind a key of a safetensors header, mostly of the right form."""
    offsets = st.lists(st.integers(0, 12), min_size=2, max_size=2).map(sorted) | JSON
    dtypes = st.sampled_from(["F32", "U8", "F64", "BF16", "BOOL", "F99"]) | JSON
    entry = st.fixed_dictionaries({"dtype": dtypes, "shape": st.lists(extent, max_size=4), "data_offsets": offsets})
    return entry | JSON


@QUICK
@given(
    header=st.dictionaries(
        st.sampled_from(["w", "b", "__metadata__", ""]), entries(st.integers(-1, 5) | JSON), max_size=3
    ),
    data=st.binary(max_size=12),
)
def test_any_header_of_a_sealed_safetensors_member_raises_nothing_but_our_errors(header: Any, data: bytes) -> None:
    load_or_refuse(with_tensors(tensor_file(header, data)))


HOSTILE = st.sampled_from(
    [2**63, 10**30, 10**400, float("inf"), float("nan"), -1, 0, 1, "", "inf", "x", None, [], {}, True]
)
SHAPES = st.lists(st.sampled_from([0, 1, 2, 3, 2**31, 2**62, 2**63, 10**30]) | HOSTILE, max_size=4) | st.just([1] * 70)


def tagged(tag: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries({"$": st.just(tag), **fields})


def references(**lies: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A tensor that is there, and one thing or two said about it."""
    return st.fixed_dictionaries(
        {"$": st.just("tensor"), "group": st.just("model"), "key": st.sampled_from(["w", "b", "e"])}, optional=lies
    )


def nodes(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    items = st.lists(inner, max_size=3) | HOSTILE
    pairs = st.lists(st.tuples(inner, inner).map(list), max_size=3) | HOSTILE
    return st.one_of(
        tagged("float", value=inner),
        tagged("complex", parts=st.lists(inner, min_size=2, max_size=2) | HOSTILE),
        tagged("int", hex=inner),
        tagged("bytes", base64=inner),
        tagged("torch.Size", items=items),
        tagged("torch.dtype", name=inner),
        tagged("torch.device", name=inner),
        *(tagged(kind, items=items) for kind in ("tuple", "set", "frozenset")),
        *(tagged(kind, items=pairs, metadata=inner) for kind in ("dict", "OrderedDict")),
        references(dtype=st.sampled_from(["F32", "C128", "U8", "BF16", "F8_E8M0"]) | inner, shape=SHAPES),
        references(**{"as": st.sampled_from(["torch", "numpy", "numpy.scalar"]) | inner}, shape=SHAPES),
        st.lists(inner, max_size=3),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
    )


STATES = nodes(st.recursive(HOSTILE, nodes, max_leaves=4) | JSON).map(lambda node: {"x": node}) | JSON
TENSORS = tensor_file(
    {
        "w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        "b": {"dtype": "U8", "shape": [4], "data_offsets": [8, 12]},
        "e": {"dtype": "F32", "shape": [0], "data_offsets": [12, 12]},
    },
    bytes(12),
)


@QUICK
@given(state=STATES)
@example(state={"x": {"$": "float", "value": 10**400}})
def test_any_state_in_a_sealed_archive_raises_nothing_but_our_errors(state: Any) -> None:
    load_or_refuse(forge([("state.json", json.dumps(state).encode("ascii")), ("model.safetensors", TENSORS)]))


@pytest.mark.parametrize("module", ["fuzz_archive"])
def test_the_harness_for_atheris_runs_on_its_own_seeds(tmp_path: Path, module: str) -> None:
    harness = pytest.importorskip(module)

    seeds = harness.write_seeds(tmp_path)

    assert len(seeds) >= 5
    for seed in seeds:
        harness.look(seed.read_bytes())
