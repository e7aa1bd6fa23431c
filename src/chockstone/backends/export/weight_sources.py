"""Weight sources: which tensors of a model's files become which weights in memory.

transformers may name a weight differently in memory than in the files, and may join several tensors into one weight,
such as the experts of a layer.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key


@dataclass(slots=True)
class WeightSource:
    """The tensors that a weight is made of. ``converter`` None: it is the one tensor, as the file has it."""

    keys: list[tuple[str, str]] = field(default_factory=list)  # patterns of the converter, and keys of the files
    converter: Any = None  # Any: a WeightConverter of transformers, which has no types


def find_sources(model: PreTrainedModel, file_keys: Iterable[str]) -> dict[str, WeightSource]:
    """By the name of the weight, or of the first weight of a conversion that makes several.

    ``model`` is on the meta device and not sharded. Names and conversions are those that from_pretrained applies.
    """
    names = dict(model.state_dict())
    transforms: Any = get_model_conversion_mapping(model)
    renamings = [each for each in transforms if isinstance(each, WeightRenaming)]
    converters = [each for each in transforms if isinstance(each, WeightConverter)]
    by_pattern = {pattern: each for each in converters for pattern in each.source_patterns}
    sources: dict[str, WeightSource] = {}
    for key in sorted(file_keys, key=dot_natural_key):
        prefix = model.base_model_prefix
        name, pattern = rename_source_key(key, renamings, converters, prefix, names)
        if name not in names and key in names:  # the file has the name in memory already
            name, pattern = rename_source_key(key, [], [], prefix, names)
        if name not in names:
            continue  # transformers does not read it either
        source = sources.setdefault(name, WeightSource())
        if pattern is not None and source.converter is None:
            source.converter = copy.deepcopy(by_pattern[pattern])
        source.keys.append((pattern or key, key))
    return sources


def find_ties(model: nn.Module) -> dict[str, str]:
    """The names of tied weights, each with the name under which ``named_parameters`` has the weight."""
    first = {id(weight): name for name, weight in model.named_parameters()}
    every = model.named_parameters(remove_duplicate=False)
    return {name: first[id(weight)] for name, weight in every if first[id(weight)] != name}
