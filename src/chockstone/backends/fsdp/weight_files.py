"""Weight files: reads one process's rows of all weights of a model.

A tensor that is a weight as it is, is read by rows. Weights that transformers joins from several tensors are read
whole, one conversion at a time, and each process keeps its rows. A process quantises its own rows of a weight that the
model keeps quantised.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping

import torch

from chockstone.backends.export.base_files import BaseFiles
from chockstone.backends.export.weight_sources import WeightSource
from chockstone.backends.fsdp.model_shards import ModelShards
from chockstone.sampling.quantised.linear import QuantisedLinear
from chockstone.sampling.quantised.weight import quantise
from chockstone.wire.failures import ServerFailure


def read_sources(
    shards: ModelShards, files: BaseFiles, sources: Mapping[str, WeightSource], ties: Mapping[str, str]
) -> None:
    """Fill this process's rows of all weights, and the buffers that the files have.

    ``ties`` has the names of tied weights, each with the name under which ``shards`` has the weight. Raises
    ServerFailure if a weight is missing or of another shape.
    """
    buffers = dict(shards.model.named_buffers())
    missing = set(shards.shares)
    quantised = {
        f"{name}.weight": module for name, module in shards.model.named_modules() if isinstance(module, QuantisedLinear)
    }
    for first, source in sources.items():
        if (layer := quantised.get(first)) is not None:
            missing -= _read_quantised(shards, files, first, source, layer)
            continue
        for name, rows in _values(shards, files, first, source, ties):
            known = ties.get(name, name)
            if known in missing:
                missing.remove(known)
                shards.local(known).copy_(rows)
            elif known not in shards.shares and name in buffers:
                buffers[name].copy_(rows)
    if missing:
        raise _unfit(min(missing))


def _read_quantised(
    shards: ModelShards, files: BaseFiles, name: str, source: WeightSource, layer: QuantisedLinear
) -> set[str]:
    """Fill this process's rows of a quantised weight. Returns the names of its two parameters."""
    codes, scales = (f"{name.removesuffix('weight')}{part}" for part in ("codes", "scales"))
    key, share = source.keys[0][1], shards.shares[codes]
    if source.converter is not None or files.shapes[key].extents != (layer.out_features, layer.in_features):
        raise _unfit(name)
    if share.start < share.stop:
        rows = files.rows(key, share.rows).to(layer.codes.device)
        weight = quantise(rows, layer.precision, dtype=layer.number_type)
        shards.local(codes).copy_(weight.codes)
        shards.local(scales).copy_(weight.scales)
    return {codes, scales}


def _values(
    shards: ModelShards, files: BaseFiles, first: str, source: WeightSource, ties: Mapping[str, str]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Weights of the source by name, of each this process's rows."""
    if source.converter is None:
        key = source.keys[0][1]
        share = shards.shares.get(ties.get(first, first))
        if share is None:
            yield first, files.whole(key)
        elif files.shapes[key].extents != share.shape:
            raise _unfit(first)
        elif share.start < share.stop:
            yield first, files.rows(key, share.rows)
        else:
            yield first, torch.empty(share.local_shape)
        return
    converter = copy.deepcopy(source.converter)
    for pattern, key in source.keys:
        converter.add_tensor(first, key, pattern, lambda key=key: files.whole(key))
    for name, value in converter.convert(first, model=shards.model, config=shards.model.config).items():
        whole = value[0] if isinstance(value, list) else value
        share = shards.shares.get(ties.get(name, name))
        if share is not None and tuple(whole.shape) != share.shape:
            raise _unfit(name)
        yield name, whole if share is None else whole[share.rows]


def check_ties(sources: Mapping[str, WeightSource], files: BaseFiles, ties: Mapping[str, str]) -> None:
    """Raises ServerFailure if the files have different values for weights that the model ties."""
    for alias, name in ties.items():
        pair = [sources[each].keys[0][1] for each in (alias, name) if each in sources]
        if len(pair) == 2 and files.shapes[pair[0]] == files.shapes[pair[1]]:  # both
            pieces = zip(files.pieces(pair[0]), files.pieces(pair[1]), strict=True)
            if not all(torch.equal(one, other) for one, other in pieces):
                raise ServerFailure(
                    f"its config.json ties {alias!r} to {name!r}, but the files have different values for them; "
                    'set "tie_word_embeddings": false in config.json'
                )


def _unfit(name: str) -> ServerFailure:
    return ServerFailure(
        f"its files do not have the weights that its config.json describes; {name!r} is missing or of another shape"
    )
