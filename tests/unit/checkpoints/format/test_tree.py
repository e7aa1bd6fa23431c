from __future__ import annotations

import enum
import json
import math
from collections import OrderedDict, defaultdict, namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chockstone.checkpoints import Checkpointer
from chockstone.checkpoints.errors import DamagedArchive, UnstorableValue
from chockstone.checkpoints.format.tree import MAX_DEPTH, TensorReference, Tree, flatten, references, unflatten
from support.archives import assert_same

Point = namedtuple("Point", "x y")


class Colour(enum.IntEnum):
    RED = 1


class Stateful:
    def __init__(self, state: object) -> None:
        self.state = state

    def state_dict(self) -> object:
        return self.state


class Endless:
    def state_dict(self) -> object:
        return self


class Words(str):
    __slots__ = ()


def rebuild(tree: Tree) -> Any:
    """The state from the JSON that would be stored and the tensors that were referred to."""
    leaves = {(leaf.group, leaf.key): leaf.value for leaf in tree.leaves}
    skeleton = json.loads(json.dumps(tree.skeleton, allow_nan=False))
    return unflatten(skeleton, lambda reference: leaves[reference.group, reference.key])


def keys_of(tree: Tree) -> list[tuple[str, str]]:
    return [(leaf.group, leaf.key) for leaf in tree.leaves]


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        False,
        0,
        -1,
        2**63 - 1,
        -(2**63),
        2**63,
        -(2**63) - 1,
        10**1000,
        -(10**1000),
        0.0,
        -0.0,
        0.1,
        5e-324,
        1.7976931348623157e308,
        math.inf,
        -math.inf,
        math.nan,
        complex(1, -0.0),
        complex(math.nan, math.inf),
        "",
        "text",
        "\0",
        "\ud800",
        "🪨",
        "$",
        b"",
        b"\0\xff",
        bytes(range(256)),
        [],
        (),
        {},
        set(),
        frozenset(),
        [[]],
        ([],),
        {"a": {}},
        [1, [2, (3, {"a": None})]],
        {"$": 1},
        {"$": {"$": "tensor"}},
        {"$x": 1},
        {"": 1},
        {"a.b": 1, "a": {"b": 2}},
        {1: "int", "1": "text"},
        {1.5: 0},
        {None: 0},
        {True: 0},
        {b"k": 0},
        {(1, "a", (2.0, None)): 0},
        {-0.0: 0},
        {2**70: 0},
        {math.inf: 0},
        {1, 2, 3},
        {"a", 1, None, (1, 2)},
        frozenset({b"x"}),
        OrderedDict(),
        OrderedDict(b=1, a=2),
        OrderedDict([(1, "a"), ((2, 3), OrderedDict())]),
        torch.Size([]),
        torch.Size([2, 3]),
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.device("cpu"),
        torch.device("cuda", 1),
        {"__metadata__": 1},
        {"k" * 10_000: 1},
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_plain_value_comes_back_as_it_was(value: object) -> None:
    tree = flatten({"x": value})

    assert not tree.leaves
    assert_same(rebuild(tree), {"x": value})


def test_the_metadata_that_modules_keep_in_their_state_comes_back() -> None:
    state = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)).state_dict()

    found = rebuild(flatten({"model": state}))

    assert found["model"]._metadata == state._metadata  # type: ignore[attr-defined]  # nn.Module's own habit
    assert_same(found, {"model": state})


def test_each_top_level_key_has_a_file_of_tensors_of_its_own() -> None:
    tree = flatten({"model": {"a": {"b": torch.ones(1)}}, "ema": torch.ones(1), "optimizer": [[torch.ones(1)]]})

    assert keys_of(tree) == [("model", "a.b"), ("ema", "value"), ("optimizer", "0.0")]


@pytest.mark.parametrize(
    "key", ["", "a b", "../x", "/", "$x", "é", ".", "..", ".hidden", "a\0", "x" * 201, "state", "a/b"]
)
def test_keys_that_make_no_file_name_share_a_file(key: str) -> None:
    tree = flatten({key: {"w": torch.ones(1)}})

    assert keys_of(tree) == [("state", f"{key}.w")]
    assert_same(rebuild(tree), {key: {"w": torch.ones(1)}})


@pytest.mark.parametrize("value", [1, "tuple", {"w": torch.ones(1)}], ids=repr)
def test_a_dollar_may_be_a_top_level_key(value: object) -> None:
    state = {"$": value, "other": 2}

    assert_same(rebuild(flatten(state)), state)


def test_keys_that_differ_in_case_only_do_not_share_a_file_name() -> None:
    tree = flatten({"model": torch.zeros(1), "Model": torch.ones(1), "MODEL": torch.ones(1)})

    assert keys_of(tree) == [("model", "value"), ("state", "Model"), ("state", "MODEL")]


def test_a_key_that_is_the_shared_name_in_other_case_can_be_saved(tmp_path: Path) -> None:
    state = {"STATE": torch.zeros(1), "not a file name": torch.ones(1)}

    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(state, step=1).result()

        assert_same(checkpointer.load(), state)


def test_many_top_level_keys_share_one_file() -> None:
    tree = flatten({f"k{index}": torch.ones(1) for index in range(65)})

    assert {group for group, _ in keys_of(tree)} == {"state"}


def test_paths_that_spell_the_same_key_are_told_apart() -> None:
    state = {"m": {"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}, "a.b#2": torch.full((1,), 2.0)}}

    tree = flatten(state)

    assert len(set(keys_of(tree))) == 3
    assert_same(rebuild(tree), state)


def test_no_tensor_takes_the_reserved_key() -> None:
    state = {"m": {"__metadata__": torch.zeros(1), "__metadata__#1": torch.ones(1)}}

    tree = flatten(state)

    assert ("m", "__metadata__") not in keys_of(tree)
    assert_same(rebuild(tree), state)


def test_a_tensor_reached_twice_is_stored_once() -> None:
    weight = torch.nn.Parameter(torch.randn(3, 2))
    state = {"model": {"embed": weight, "head": weight.data, "view": weight.view(3, 2)}, "ema": {"embed": weight}}

    tree = flatten(state)

    assert keys_of(tree) == [("model", "embed")]
    assert list(tree.leaves[0].aliases) == ["head", "view"]
    assert len({id(value) for value in (rebuild(tree)["model"]["head"], rebuild(tree)["ema"]["embed"])}) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(lambda t: t, lambda t: t.t(), id="transposed"),
        pytest.param(lambda t: t, lambda t: t.view(torch.int32), id="other-type"),
        pytest.param(lambda t: t[0], lambda t: t[1], id="rows"),
        pytest.param(lambda t: t, lambda t: t.reshape(4, 1), id="other-shape"),
        pytest.param(lambda t: t[:0], lambda t: t[:0], id="empty"),
    ],
)
def test_views_that_differ_are_not_taken_for_one_tensor(one: Any, other: Any) -> None:
    square = torch.randn(2, 2)

    tree = flatten({"m": [one(square), other(square)]})

    assert len(tree.leaves) == 2
    assert_same(rebuild(tree), {"m": [one(square), other(square)]})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(lambda z: z, lambda z: z.conj(), id="conjugate"),
        pytest.param(lambda z: z.imag, lambda z: z.conj().imag, id="negative"),
    ],
)
def test_lazy_views_that_differ_are_not_taken_for_one_tensor(one: Any, other: Any) -> None:
    values = torch.tensor([1 + 2j, 3 - 4j])

    tree = flatten({"m": [one(values), other(values)]})

    assert len(tree.leaves) == 2


def test_numpy_arrays_and_scalars_are_told_from_tensors() -> None:
    state = {"m": [np.arange(3), np.float32(1.5), np.bool_(True), torch.arange(3), np.array(7)]}

    forms = [reference.form for reference in references(flatten(state).skeleton)]

    assert forms == ["numpy", "numpy.scalar", "numpy.scalar", "torch", "numpy"]


def test_objects_with_a_state_are_asked_for_it() -> None:
    tree = flatten({"a": Stateful({"x": [1, 2]}), "b": {"c": Stateful((3,))}})

    assert rebuild(tree) == {"a": {"x": [1, 2]}, "b": {"c": (3,)}}


def refused(value: object, path: str = "") -> str:
    """What the refusal of ``value`` says when it stands deep in an optimizer's state."""
    with pytest.raises(UnstorableValue) as caught:
        flatten({"optimizer": {"param_groups": [{"foo": value}]}})
    assert caught.value.path == f"optimizer.param_groups[0].foo{path}"
    assert isinstance(caught.value, TypeError)
    return str(caught.value)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (object(), "<builtins.object>"),
        (lambda: None, "<builtins.function>"),
        (Path, "<builtins.type>"),
        (Path("x"), "<pathlib.PosixPath>"),
        (Point(1, 2), f"<{__name__}.Point>"),
        (Colour.RED, f"<{__name__}.Colour>"),
        (Words("x"), f"<{__name__}.Words>"),
        (bytearray(b"x"), "<builtins.bytearray>"),
        (memoryview(b"x"), "<builtins.memoryview>"),
        (range(3), "<builtins.range>"),
        (iter([]), "<builtins.list_iterator>"),
        (defaultdict(list), "<collections.defaultdict>"),
        (Stateful, "<builtins.type>"),
        (slice(1), "<builtins.slice>"),
        (..., "<builtins.ellipsis>"),
        (torch.Generator(), "<torch._C.Generator>"),
        (torch.nn.UninitializedParameter(), "<torch.nn.parameter.UninitializedParameter>"),
        (torch.strided, "<torch.layout>"),
        (np.ma.masked_array([1.0], mask=[True]), "<numpy.ma.MaskedArray>"),
        (np.dtype("f4"), "<numpy.dtypes.Float32DType>"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_value_that_cannot_be_stored_is_refused_with_its_path_and_type(value: object, kind: str) -> None:
    assert refused(value).startswith(f"optimizer.param_groups[0].foo: {kind} cannot be stored")


@pytest.mark.parametrize(
    "value",
    [
        torch.ones(2).to_sparse(),
        torch.ones(2, device="meta"),
        torch.zeros(2, dtype=torch.uint8).view(torch.bits8),
        np.array([object()]),
        np.array(["text"]),
        np.array(["2026-03-01"], dtype="datetime64[D]"),
        np.zeros(1, dtype=[("a", "f4")]),
        np.zeros(1, dtype=">f4"),
        np.zeros(1, dtype=np.longdouble),
        np.str_("x"),
        np.datetime64("2026-03-01"),
    ],
    ids=lambda value: f"{value.dtype}",
)
def test_an_array_that_cannot_be_stored_is_refused_with_its_path_and_type(value: Any) -> None:
    message = refused(value)

    assert message.startswith("optimizer.param_groups[0].foo: <")
    assert str(value.dtype) in message


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_a_nested_tensor_is_refused_with_its_path() -> None:
    assert "cannot be stored" in refused(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]))


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ([1, object()], "[1]"),
        ((1, (2, object())), "[1][1]"),
        ({"a": {"b": object()}}, ".a.b"),
        ({3: object()}, "[3]"),
        ({(1, "x"): [object()]}, "[(1, 'x')][0]"),
        ({"$": object()}, ".$"),
        (OrderedDict(k=object()), ".k"),
        (Stateful({"x": object()}), ".x"),
        ({None: object()}, "[None]"),
        ({b"k": object()}, "[b'k']"),
    ],
)
def test_the_path_leads_through_every_container(value: object, path: str) -> None:
    assert refused(value, path).startswith(f"optimizer.param_groups[0].foo{path}: <builtins.object> cannot be stored")


@pytest.mark.parametrize("key", [np.int64(1), Words("x"), 1j, frozenset(), Colour.RED, torch.float32], ids=repr)
def test_a_key_that_cannot_be_stored_is_refused(key: Any) -> None:
    assert "cannot be a key" in refused({key: 1})


@pytest.mark.parametrize(
    "value",
    [{np.int64(3)}, frozenset({np.float32(1)}), {(np.int64(3), 1): 2}, {(torch.ones(1),)}, {(1, (np.bool_(True),)): 0}],
    ids=["set", "frozenset", "key", "tensor-in-set", "deep-in-key"],
)
def test_arrays_in_sets_and_keys_are_refused_or_come_back(tmp_path: Path, value: Any) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        try:
            checkpointer.save({"x": value}, step=1).result()
        except UnstorableValue:
            return

        assert "TensorReference" not in repr(checkpointer.load())


def test_a_state_that_contains_itself_is_refused() -> None:
    loop: dict[str, Any] = {}
    loop["again"] = [loop]

    with pytest.raises(UnstorableValue, match=f"nested more than {MAX_DEPTH} levels deep, or refers to itself"):
        flatten({"x": loop})


def test_an_object_that_is_its_own_state_is_refused() -> None:
    with pytest.raises(UnstorableValue, match="refers to itself"):
        flatten({"x": Endless()})


@pytest.mark.parametrize(
    "wrap", [lambda x: [x], lambda x: (x,), lambda x: {"k": x}, lambda x: {1: x}, lambda x: OrderedDict(k=x)]
)
def test_the_deepest_state_that_can_be_saved_can_be_loaded(tmp_path: Path, wrap: Any) -> None:
    state: Any = 1
    for _ in range(MAX_DEPTH):
        state = wrap(state)

    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save({"x": state}, step=1).result()

        assert_same(checkpointer.load(), {"x": state})


@pytest.mark.parametrize("state", [{1: 2}, {"a": 1, b"b": 2}, {None: 1}], ids=repr)
def test_a_state_whose_keys_are_no_strings_is_refused(state: Any) -> None:
    with pytest.raises(UnstorableValue, match="the state must be a mapping with strings as keys"):
        flatten(state)


def test_flattening_copies_no_tensor_and_keeps_no_container() -> None:
    weight, numbers = torch.ones(3), [1, 2]

    tree = flatten({"m": {"w": weight, "n": numbers}})
    numbers.append(3)

    assert tree.leaves[0].value is weight
    assert tree.skeleton["m"]["n"] == [1, 2]


def test_a_reference_names_a_type_only_where_safetensors_has_no_name_for_it() -> None:
    tree = flatten({"m": [torch.ones(2), torch.ones(2, 3, dtype=torch.complex128)]})

    plain, raw = references(tree.skeleton)

    assert plain == TensorReference("m", "0", None, None, "torch")
    assert raw == TensorReference("m", "1", "C128", (2, 3), "torch")
    assert tree.leaves[1].stored_shape == (96,)


def test_state_of_an_unknown_kind_is_damage() -> None:
    with pytest.raises(DamagedArchive, match=r"state\.json does not make sense: ValueError: unknown type 'pickle'"):
        unflatten({"x": {"$": "pickle"}}, lambda reference: reference)
