from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from chockstone.backends.quantisation.stored import STATE, StoredError, read_4bit, read_8bit, stored_precision
from chockstone.sampling.quantised.weight import quantise
from support.backends.bitsandbytes_files import encode_json, stored_4bit, stored_8bit

SHAPE = (6, 128)


def weight() -> torch.Tensor:
    return torch.empty(SHAPE).normal_(0, 0.1, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (None, None),
        ({"quant_method": "mxfp4"}, None),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "8bit"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "4bit"),
    ],
)
def test_the_configuration_says_how_files_are_quantised(config: Any, expected: str | None) -> None:
    assert stored_precision(config) == expected


@pytest.mark.parametrize(("kind", "storage"), [("fp4", "uint8"), ("nf4", "bfloat16")])
def test_other_4bit_files_are_refused(kind: str, storage: str) -> None:
    config = {"quant_method": "bitsandbytes", "bnb_4bit_quant_type": kind, "bnb_4bit_quant_storage": storage}

    with pytest.raises(StoredError, match="only NF4, stored as uint8"):
        stored_precision(config)


def test_nf4_files_are_read() -> None:
    expected = quantise(weight(), "4bit", dtype=torch.float32)

    read = read_4bit(stored_4bit(expected), SHAPE, torch.float32)

    assert torch.equal(read.dequantised(), expected.dequantised())


def test_scales_may_be_quantised_themselves() -> None:
    made = quantise(weight(), "4bit", dtype=torch.float32)
    tensors = stored_4bit(made, nested_blocksize=4)

    read = read_4bit(tensors, SHAPE, torch.float32)

    values = torch.linspace(-1, 1, 256)
    expected = values[tensors["weight.absmax"].long()] * tensors["weight.nested_absmax"].repeat_interleave(4)[:12] + 0.5
    assert torch.equal(read.scales.view(-1), expected) and torch.equal(read.codes, made.codes)


def test_8bit_files_are_read() -> None:
    expected = quantise(weight(), "8bit", dtype=torch.float32)

    read = read_8bit(stored_8bit(expected), SHAPE, torch.float32)

    torch.testing.assert_close(read.dequantised(), expected.dequantised(), rtol=1e-6, atol=0)


def _change_facts(**changes: object) -> Callable[[dict[str, torch.Tensor]], None]:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        facts = json.loads(bytes(tensors[STATE].numpy())) | changes
        tensors[STATE] = encode_json(facts)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop(STATE), "it has no"),
        (lambda tensors: tensors.update({STATE: torch.tensor([123, 123], dtype=torch.uint8)}), "is not JSON"),
        (lambda tensors: tensors.update({STATE: encode_json([1])}), "not a JSON object"),
        (_change_facts(shape=[6, 64]), "expected .6, 128. and groups of 64"),
        (_change_facts(shape=128), "expected .6, 128. and groups of 64"),
        (_change_facts(blocksize=128), "groups of 64"),
        (_change_facts(nested_blocksize=-1), "not described by a whole number"),
        (_change_facts(nested_blocksize=4, nested_offset=0.5), "expected 12 elements of torch.uint8"),
        (lambda tensors: tensors.pop("weight.absmax"), "'weight.absmax' is missing"),
        (lambda tensors: tensors.update({"weight": tensors["weight"][:-1]}), "expected 384 elements of torch.uint8"),
        (lambda tensors: tensors.update({"weight.quant_map": torch.zeros(16)}), "not that of NF4"),
    ],
)
def test_damaged_nf4_files_are_refused(change: Callable[[dict[str, Any]], object], message: str) -> None:
    tensors = stored_4bit(quantise(weight(), "4bit", dtype=torch.float32))
    change(tensors)

    with pytest.raises(StoredError, match=message):
        read_4bit(tensors, SHAPE, torch.float32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight_format": torch.tensor(2, dtype=torch.uint8)}, "order 2 of a GPU"),
        ({"SCB": torch.zeros(5)}, "expected 6 elements of torch.float32"),
        ({"weight": torch.zeros(6, 128)}, "expected 768 elements of torch.int8"),
    ],
)
def test_damaged_8bit_files_are_refused(change: dict[str, torch.Tensor], message: str) -> None:
    tensors = stored_8bit(quantise(weight(), "8bit", dtype=torch.float32)) | change

    with pytest.raises(StoredError, match=message):
        read_8bit(tensors, SHAPE, torch.float32)
