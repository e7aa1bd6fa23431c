from __future__ import annotations

import re

import pytest

from chockstone.telemetry.declarations import DECLARATIONS, DISK_FREE, SAMPLER_STEPS, MetricDeclaration

UNITS = ("_seconds", "_bytes", "_total")


@pytest.mark.parametrize("declared", DECLARATIONS.values(), ids=lambda each: each.name)
def test_a_metric_is_named_as_prometheus_wants_it(declared: MetricDeclaration) -> None:
    assert re.fullmatch(r"chockstone_[a-z][a-z0-9_]*", declared.name)
    assert declared.name.endswith("_total") == (declared.kind == "counter")
    assert declared.help.endswith(".")
    if declared.kind == "histogram":
        assert declared.name.endswith(("_seconds", "_nats"))
        assert list(declared.buckets) == sorted(declared.buckets)


def test_no_metric_has_a_label_that_grows_with_use() -> None:
    labels = {label for declared in DECLARATIONS.values() for label in declared.labels}
    of_any_value = {
        label for declared in DECLARATIONS.values() for label, values in declared.labels.items() if not values
    }

    assert labels.isdisjoint({"user", "owner", "run", "run_id", "session", "checkpoint", "path", "base_model", "model"})
    assert of_any_value == {
        "method",
        "route",
        "status",
        "gpu",
        "replica",
        "version",
    }  # each bounded where it is recorded


def test_a_family_has_the_values_of_its_labels() -> None:
    free = DISK_FREE.family((("store",), 5.0), (("data",), 7.0))
    steps = SAMPLER_STEPS.family(((), 3.0))

    assert [(sample.name, sample.labels, sample.value) for sample in free.samples] == [
        ("chockstone_disk_free_bytes", {"place": "store"}, 5.0),
        ("chockstone_disk_free_bytes", {"place": "data"}, 7.0),
    ]
    assert [(sample.name, sample.value) for sample in steps.samples] == [("chockstone_sampler_decode_steps_total", 3.0)]
