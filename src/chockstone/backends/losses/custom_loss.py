"""Custom losses: graphs that clients upload, rebuilt from this server's own list of operations.

A graph is data: nodes in order, each of which calls an allowed function on earlier nodes and constants. It runs once
per datum, on the log-probabilities and inputs of that datum, and returns a scalar loss with scalar metrics. A meter
limits the memory and time that the loss and its gradient may take.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final, Self

import torch

from chockstone.backends.losses.graph_operations import Function, check_keywords, function, method
from chockstone.backends.losses.loss_meter import OVERHEAD, LossMeter, find_tensors
from chockstone.wire.failures import BadRequest

MAX_NODES: Final = 1024
MAX_INPUTS: Final = 16
MAX_VALUES: Final = 20_000  # in all arguments of a graph together
MAX_DEPTH: Final = 8  # of a nested argument

_DEVICE = re.compile(r"(cpu|cuda|mps|xpu|hpu|npu)(:[0-9]{1,3})?\Z")
_INPUT_NAME = re.compile(r"[a-z_][a-z0-9_]{0,63}\Z")
_METRIC_NAME = re.compile(r"custom/[a-z0-9_./-]{1,64}:(sum|mean)\Z")
_FLOATS: Final = {"inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}
_DTYPES: Final = {
    "bool": torch.bool,
    "uint8": torch.uint8,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}


_SERVER_ERRORS: Final = (torch.OutOfMemoryError, torch.AcceleratorError)
_USER_ERRORS: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)


class _Values(dict[str, Any]):
    """The value of each node."""

    device: torch.device


Argument = Callable[[_Values], Any]


@dataclass(frozen=True, slots=True)
class _Node:
    name: str
    target: str
    operation: Function
    args: tuple[Argument, ...]
    kwargs: Mapping[str, Argument]


@dataclass(frozen=True, slots=True, eq=False)
class Evaluated:
    """The value of a loss for one datum."""

    loss: torch.Tensor  # scalar
    metrics: Mapping[str, torch.Tensor]  # scalars
    gradient: torch.Tensor  # with respect to the log-probabilities


@dataclass(frozen=True, slots=True)
class CustomLoss:
    """A graph that was checked as far as possible without data."""

    ranks: Mapping[str, int]  # of the inputs, in order; "logprobs" is first
    placeholders: Mapping[str, str]  # nodes that stand for inputs
    nodes: tuple[_Node, ...]
    loss: str  # the node that is returned
    metrics: Mapping[str, str]

    @property
    def whole_datum(self) -> bool:
        return True

    @classmethod
    def parse(cls, graph: Any, inputs: Any) -> Self:  # Any: JSON from the client
        ranks = _parse_inputs(inputs)
        if not isinstance(graph, dict) or graph.get("format") != 1 or not isinstance(graph.get("nodes"), list):
            raise BadRequest("a custom loss is a graph of format 1 with a list of nodes.")
        if len(graph["nodes"]) > MAX_NODES:
            raise BadRequest(f"the custom loss has {len(graph['nodes'])} nodes; at most {MAX_NODES} are allowed.")
        parser = _Parser(ranks, graph["nodes"])
        return cls(ranks, parser.placeholders, tuple(parser.nodes), parser.loss, parser.metrics)

    def differentiate(
        self, logprobs: torch.Tensor, inputs: Mapping[str, torch.Tensor], meter: LossMeter | None
    ) -> Evaluated:
        """Raises BadRequest if the loss fails, cannot be differentiated, is not finite or costs too much."""
        leaf = logprobs.detach().requires_grad_()
        with torch.enable_grad(), meter or nullcontext():
            values = self._run(leaf, inputs, meter)
            loss, metrics = self._returned(values)
            if meter is not None:
                meter.is_backward = True
            gradient = _gradient(loss, leaf, values)
        if not bool(torch.isfinite(loss.detach())):
            raise BadRequest(f"the custom loss is {float(loss.detach())}; it must be finite.")
        return Evaluated(loss.detach(), {name: value.detach() for name, value in metrics.items()}, gradient)

    def __call__(
        self, logprobs: torch.Tensor, inputs: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Evaluate without a meter. ``logprobs`` are [N, K], or [N, 1] if rank 1 was declared."""
        return self._returned(self._run(logprobs, inputs, None))

    def _run(self, logprobs: torch.Tensor, inputs: Mapping[str, torch.Tensor], meter: LossMeter | None) -> _Values:
        given = {**inputs, "logprobs": logprobs.squeeze(1) if self.ranks["logprobs"] == 1 else logprobs}
        values = _Values({node: given[name] for node, name in self.placeholders.items()})
        values.device = logprobs.device
        with torch.device(logprobs.device):
            for node in self.nodes:
                args = [argument(values) for argument in node.args]
                kwargs = {key: argument(values) for key, argument in node.kwargs.items()}
                try:
                    if meter is not None:
                        meter.add_work(OVERHEAD)
                    values[node.name] = node.operation(*args, **kwargs)
                    _check_device(values[node.name], values.device)
                except BadRequest as error:
                    raise BadRequest(f"custom loss, node {node.name!r} ({node.target}): {error}") from error
                except _SERVER_ERRORS:
                    raise
                except _USER_ERRORS as error:
                    raise BadRequest(
                        f"custom loss, node {node.name!r} ({node.target}): {type(error).__name__}: {str(error)[:300]}"
                    ) from error
        return values

    def _returned(self, values: _Values) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        loss = _scalar("its loss", values[self.loss])
        if not loss.is_floating_point():
            raise BadRequest(f"the custom loss returned a loss of {loss.dtype}; it must be floating point.")
        return loss, {name: _scalar(name, values[node]) for name, node in self.metrics.items()}


def _gradient(loss: torch.Tensor, leaf: torch.Tensor, values: _Values) -> torch.Tensor:
    if not loss.requires_grad:  # the loss may not depend on the log-probabilities
        return torch.zeros_like(leaf)
    try:
        found: torch.Tensor | None = torch.autograd.grad(loss, leaf, allow_unused=True)[0]
    except BadRequest as error:
        raise BadRequest(f"the gradient of the custom loss: {error}") from error
    except _SERVER_ERRORS:
        raise
    except RuntimeError as error:
        without = [repr(name) for name, value in values.items() if any(map(_has_no_gradient, find_tensors(value)))]
        where = f", nodes {', '.join(without[:5])}" if without else ""
        raise BadRequest(
            f"the custom loss has no gradient{where}: {str(error)[:300]}. Detach it where none is needed."
        ) from error
    return torch.zeros_like(leaf) if found is None else found


def _has_no_gradient(tensor: torch.Tensor) -> bool:
    return tensor.grad_fn is not None and "NotImplemented" in tensor.grad_fn.name()


def _check_device(value: Any, device: torch.device) -> None:  # Any: the result of an operation
    for tensor in find_tensors(value):
        if tensor.device != device:
            raise BadRequest(f"it makes a tensor on {str(tensor.device)!r}; leave the device out.")


def _scalar(what: str, value: object) -> torch.Tensor:
    if not isinstance(value, torch.Tensor) or value.ndim:
        shape = list(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
        raise BadRequest(f"the custom loss returned {shape} for {what}; it must be a scalar tensor.")
    return value


def _parse_inputs(inputs: Any) -> dict[str, int]:  # Any: JSON
    if not isinstance(inputs, list) or not 1 <= len(inputs) <= MAX_INPUTS:
        raise BadRequest(f"a custom loss takes 1 to {MAX_INPUTS} inputs, logprobs first.")
    ranks: dict[str, int] = {}
    for given in inputs:
        name, rank = (given.get("name"), given.get("rank")) if isinstance(given, dict) else (None, None)
        if not isinstance(name, str) or not _INPUT_NAME.match(name) or name in ranks:
            raise BadRequest(f"the custom loss has an input named {name!r:.80}; names are lowercase and unique.")
        if type(rank) is not int or rank not in (0, 1, 2):
            raise BadRequest(f"the input {name!r} of the custom loss has rank {rank!r:.80}; it must be 0, 1 or 2.")
        ranks[name] = rank
    if next(iter(ranks)) != "logprobs" or ranks["logprobs"] == 0:
        raise BadRequest("the first input of a custom loss must be 'logprobs', of rank 1 or 2.")
    return ranks


class _Parser:
    """Parses the nodes of a graph in order. A node may refer to earlier nodes only."""

    def __init__(self, ranks: Mapping[str, int], nodes: list[Any]) -> None:
        self.placeholders: dict[str, str] = {}
        self.nodes: list[_Node] = []
        self._inputs = list(ranks)
        self._known: set[str] = set()
        self._values_left = MAX_VALUES
        for position, node in enumerate(nodes):
            self._check(node, position, is_last=position == len(nodes) - 1)
            if node["op"] == "placeholder":
                self._placeholder(node["name"], node["target"])
            elif node["op"] != "output":
                self.nodes.append(self._call(node))
            self._known.add(node["name"])
        if not nodes or len(self.placeholders) != len(self._inputs):
            raise BadRequest(f"the custom loss must have a placeholder for each input: {', '.join(self._inputs)}.")
        self.loss, self.metrics = self._output(nodes[-1].get("args"))

    def _check(self, node: Any, position: int, *, is_last: bool) -> None:
        if not isinstance(node, dict) or not all(isinstance(node.get(key), str) for key in ("op", "name", "target")):
            raise BadRequest(f"node {position} of the custom loss needs an op, a name and a target.")
        if node["name"] in self._known:
            raise BadRequest(f"the custom loss has two nodes named {node['name']!r:.80}.")
        if (node["op"] == "output") != is_last:
            raise BadRequest("the last node of a custom loss, and no other, must be its output.")

    def _placeholder(self, name: str, target: str) -> None:
        position = len(self.placeholders)
        if position >= len(self._inputs) or target != self._inputs[position]:
            raise BadRequest(
                f"the custom loss reads {target!r:.80} as its input {position + 1}; declared are "
                f"{', '.join(self._inputs)}, in this order."
            )
        self.placeholders[name] = target

    def _call(self, node: Mapping[str, Any]) -> _Node:
        find = {"call_function": function, "call_method": method}.get(node["op"])
        if find is None:
            raise BadRequest(f"node {node['name']!r:.80} is a {node['op']!r:.80}, which a custom loss cannot contain.")
        args, kwargs = node.get("args", []), node.get("kwargs", {})
        if not isinstance(args, list) or not isinstance(kwargs, dict):
            raise BadRequest(f"node {node['name']!r:.80} needs a list of args and an object of kwargs.")
        check_keywords(list(kwargs))
        moves = node["op"] == "call_method" and node["target"] == "to"
        args = [{"device": value} if moves and isinstance(value, str) else value for value in args]
        if isinstance(kwargs.get("device"), str):
            kwargs = {**kwargs, "device": {"device": kwargs["device"]}}
        return _Node(
            name=node["name"],
            target=node["target"],
            operation=find(node["target"]),
            args=tuple(self._argument(value, 0) for value in args),
            kwargs={key: self._argument(value, 0) for key, value in kwargs.items()},
        )

    def _output(self, args: Any) -> tuple[str, dict[str, str]]:
        returned = args[0] if isinstance(args, list) and len(args) == 1 else None
        returned = returned.get("tuple") if isinstance(returned, dict) else returned
        if not isinstance(returned, list) or len(returned) != 2:
            raise BadRequest("a custom loss returns two things: its loss and a dict of metrics.")
        metrics = returned[1].get("dict") if isinstance(returned[1], dict) else None
        if not isinstance(metrics, dict) or not all(_METRIC_NAME.match(name) for name in metrics):
            raise BadRequest(
                "a custom loss's metrics are a dict with names like 'custom/kl:mean' or 'custom/count:sum'."
            )
        return self._reference(returned[0]), {name: self._reference(value) for name, value in metrics.items()}

    def _reference(self, value: Any) -> str:
        name = value.get("ref") if isinstance(value, dict) and len(value) == 1 else None
        if not isinstance(name, str) or name not in self._known:
            raise BadRequest(f"the custom loss refers to {name!r:.80}, which is not an earlier node.")
        return name

    def _argument(self, value: Any, depth: int) -> Argument:
        self._values_left -= 1
        if self._values_left < 0 or depth > MAX_DEPTH:
            raise BadRequest("the custom loss has arguments that are too many or too deep.")
        if isinstance(value, list):
            items = [self._argument(item, depth + 1) for item in value]
            return lambda values: [item(values) for item in items]
        if isinstance(value, dict) and len(value) == 1:
            ((kind, content),) = value.items()
            return self._tagged(kind, content, depth)
        is_short = (isinstance(value, str) and len(value) <= 100) or (isinstance(value, int) and abs(value) < 2**63)
        if value is None or isinstance(value, float) or is_short:
            return lambda _: value
        raise BadRequest(f"{value!r:.80} is not an argument that a custom loss can have.")

    def _tagged(self, kind: str, content: Any, depth: int) -> Argument:
        if kind == "ref":
            name = self._reference({"ref": content})
            return lambda values: values[name]
        if kind in ("tuple", "slice") and isinstance(content, list) and (kind == "tuple" or len(content) == 3):
            items = [self._argument(item, depth + 1) for item in content]
            make = tuple if kind == "tuple" else lambda parts: slice(*parts)
            return lambda values: make([item(values) for item in items])
        if kind == "dict" and isinstance(content, dict):
            pairs = {key: self._argument(item, depth + 1) for key, item in content.items()}
            return lambda values: {key: item(values) for key, item in pairs.items()}
        if kind == "device" and isinstance(content, str):
            if not _DEVICE.match(content):
                raise BadRequest(f"a custom loss cannot use the device {content!r:.80}; leave the device out.")
            return lambda values: values.device  # of the model, wherever the client traced the loss
        constant = _constant(kind, content)
        return lambda _: constant


def _constant(kind: str, content: Any) -> Any:
    constants: Mapping[str, Mapping[Any, Any]] = {
        "ellipsis": {True: ...},
        "float": _FLOATS,
        "dtype": _DTYPES,
        "layout": {"strided": torch.strided},
        "memory_format": {
            "contiguous_format": torch.contiguous_format,
            "preserve_format": torch.preserve_format,
        },
    }
    if not isinstance(content, str | bool) or content not in constants.get(kind, {}):
        raise BadRequest(f"{ {kind: content}!r:.80} is not an argument that a custom loss can have.")
    return constants[kind][content]
