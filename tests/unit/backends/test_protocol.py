from __future__ import annotations

import inspect

import pytest

from chockstone.backends.protocol import GapMeter, Worker
from chockstone.backends.ray.backend import RayBackend
from chockstone.backends.supervision.local import LocalBackend
from chockstone.backends.supervision.vllm_backend import VllmBackend
from support.engine.fake_backend import FakeBackend

METHODS = {name: method for name, method in vars(Worker).items() if inspect.iscoroutinefunction(method)}


@pytest.mark.parametrize("backend", [LocalBackend, RayBackend, VllmBackend, FakeBackend])
@pytest.mark.parametrize("name", METHODS)
def test_every_backend_has_the_methods_of_a_worker(backend: type, name: str) -> None:
    expected, found = (inspect.signature(each) for each in (METHODS[name], getattr(backend, name)))

    assert list(found.parameters) == list(expected.parameters)
    assert found.return_annotation == expected.return_annotation


@pytest.mark.parametrize("name", ["measure_gaps", "exceeding_gaps"])
def test_the_vllm_backend_is_a_gap_meter(name: str) -> None:
    expected, found = (inspect.signature(getattr(each, name)) for each in (GapMeter, VllmBackend))

    assert (list(found.parameters), found.return_annotation) == (list(expected.parameters), expected.return_annotation)
