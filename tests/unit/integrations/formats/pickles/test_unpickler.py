"""Pickles are data: what they name is not called, and what they claim is not allocated."""

from __future__ import annotations

import pickle
import struct
from collections import Counter, OrderedDict
from typing import Any

import pytest

from chockstone.integrations.formats.pickles.unpickler import Builder, ForeignNames, PlainUnpickler, StandIn


def load(content: bytes, **names: Any) -> Any:
    return PlainUnpickler(content, names).load()


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_containers_and_plain_values_come_back(protocol: int) -> None:
    value = {"a": [1, -7, 2**70, 2.5, True, None, "größer"], "b": (1, (2,)), ("k", 1): [], 3: {"deep": [[]]}}

    assert load(pickle.dumps(value, protocol)) == value


def test_sets_and_bytes_of_newer_protocols_come_back() -> None:
    value = [{1, 2}, frozenset({"a"}), b"bytes", ["shared"]]

    assert load(pickle.dumps(value, 4)) == value


def test_all_foreign_names_are_collected_and_none_is_called() -> None:
    class Evil:
        def __init__(self, name: str, *arguments: object) -> None:
            self.name, self.arguments = name, arguments

        def __reduce__(self) -> Any:
            import os
            import shutil

            return {"system": os.system, "rmtree": shutil.rmtree}[self.name], self.arguments

    content = pickle.dumps([Evil("system", "false"), {"x": Evil("rmtree", "/nowhere")}], 2)

    with pytest.raises(ForeignNames) as refused:
        load(content)

    assert [name.rpartition(".")[2] for name in refused.value.names] == ["system", "rmtree"]


def test_state_of_a_foreign_object_is_ignored() -> None:
    content = b"\x80\x02cos\nEnv\n)\x81}q\x00(X\x01\x00\x00\x00aK\x01ub]q\x01(K\x01K\x02eb."

    with pytest.raises(ForeignNames, match="os.Env"):
        load(content)


HOSTILE = {
    "bytes of a terabyte": b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b".",
    "text of a terabyte": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b".",
    "a place in the memo at four billion": b"\x80\x02]r\xff\xff\xff\xff0j\xfe\xff\xff\xff.",
    "a memo that was never filled": b"\x80\x02h\x07.",
    "sets an item of a list": b"\x80\x02](K\x00K\x01u.",
    "appends to a dict": b"\x80\x02}K\x01a.",
    "sets attributes of a list": b"\x80\x02]}b.",
    "calls a number": b"\x80\x02K\x01)R.",
    "a list as a key": b"\x80\x02}]K\x01s.",
    "an odd number of items": b"\x80\x02}(K\x01K\x02K\x03u.",
    "an extension": b"\x80\x02\x82\x01.",
    "text of protocol 0": b"I7\n.",
    "nothing": b"",
    "ends early": b"\x80\x02](K\x01",
    "an empty stack": b"\x80\x020.",
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_pickle_raises_and_takes_no_memory(case: str) -> None:
    errors = (pickle.UnpicklingError, EOFError, KeyError, IndexError, ValueError, TypeError)
    with pytest.raises(errors):
        load(HOSTILE[case])


def test_a_key_that_would_take_forever_to_hash_is_refused() -> None:
    nested = b")q\x00" + b"".join(b"h" + bytes([n]) + b"\x86q" + bytes([n + 1]) for n in range(60))  # twice in each

    for content in (b"\x80\x02}" + nested + b"K\x01s.", b"\x80\x04\x8f(" + nested + b"\x90."):
        with pytest.raises(pickle.UnpicklingError, match="it has a key"):
            load(content)


def test_a_message_about_an_endless_value_is_short() -> None:
    content = b"\x80\x02]q\x00" + b"".join(
        b"](h" + bytes([n]) + b"h" + bytes([n]) + b"eq" + bytes([n + 1]) for n in range(60)
    )

    with pytest.raises(pickle.UnpicklingError) as refused:
        load(content + b")R.")

    assert len(str(refused.value)) < 300


def test_values_are_counted() -> None:
    with pytest.raises(pickle.UnpicklingError, match="more values"):
        load(b"\x80\x02" + b"]" * 6_000_000 + b".")


def test_arguments_count_each_time_that_they_are_given() -> None:
    """Half a megabyte of text, given a thousand times to something that copies it."""
    text = b"X" + struct.pack("<I", 500_000) + b"a" * 500_000 + b"q\x00"
    calls = b"cm\nmake\nh\x00\x85R0" * 1000

    with pytest.raises(pickle.UnpicklingError, match="more values"):
        load(b"\x80\x02" + text + b"0" + calls + b"N.", **{"m.make": Builder(lambda text: text.encode())})


def test_names_of_python_2_are_those_of_python_3() -> None:
    assert load(b"\x80\x02c__builtin__\nset\n.", **{"builtins.set": 5}) == 5


def test_stand_ins_keep_their_state_and_ordered_dicts_their_versions() -> None:
    ordered = OrderedDict(a=1)
    ordered._metadata = {"v": 1}  # type: ignore[attr-defined]  # as nn.Module does
    names = {"collections.OrderedDict": Builder(OrderedDict), "collections.Counter": Builder(Counter)}

    loaded = load(pickle.dumps([ordered, Counter("aab")], 2), **names)
    kept = load(b"\x80\x02cm\nK\n)\x81K\x05b.", **{"m.K": Builder(StandIn)})

    assert loaded == [ordered, Counter("aab")]
    assert loaded[0]._metadata == {"v": 1}
    assert kept.state == 5
