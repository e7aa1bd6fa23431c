"""What workers take, and what is missing."""

from __future__ import annotations

import pytest

from chockstone.backends.ray.resources import bundle_of, describe_shortage, how_many_fit


@pytest.mark.parametrize(
    ("device", "total", "expected"),
    [
        ("auto", {"CPU": 8}, {"CPU": 2}),
        ("auto", {"CPU": 8, "GPU": 1}, {"CPU": 2, "GPU": 1}),
        ("cpu", {"CPU": 8, "GPU": 1}, {"CPU": 2}),
        ("cuda", {"CPU": 8}, {"CPU": 2, "GPU": 1}),
    ],
)
def test_a_worker_takes_its_threads_and_a_gpu_where_there_are_any(
    device: str, total: dict[str, float], expected: dict[str, float]
) -> None:
    assert bundle_of(cpus=2, device=device, total=total) == expected


@pytest.mark.parametrize(
    ("free", "expected"), [({"CPU": 7, "GPU": 2}, 2), ({"CPU": 3, "GPU": 2}, 1), ({"CPU": 8}, 0), ({}, 0)]
)
def test_what_is_scarcest_says_how_many_fit(free: dict[str, float], expected: int) -> None:
    assert how_many_fit({"CPU": 2, "GPU": 1}, free) == expected


def test_a_shortage_says_what_is_missing_and_what_to_do() -> None:
    told = describe_shortage(4, 4, {"CPU": 2.0, "GPU": 1.0}, total={"CPU": 16, "GPU": 2}, free={"CPU": 12}, seconds=60)

    assert told == (
        "the Ray cluster had no place for 4 workers of 2 CPUs and 1 GPU each within 60 seconds: 8 CPUs needed, 16 in "
        "the cluster, 12 of them free, 4 GPUs needed, 2 in the cluster, 0 of them free. Add nodes or lower --workers, "
        "lower --threads, or do without GPUs with --device cpu."
    )


def test_a_shortage_of_the_fewest_names_them() -> None:
    told = describe_shortage(4, 2, {"CPU": 1.0}, total={"CPU": 1}, free={"CPU": 1}, seconds=5)

    assert "no place for 4 workers, nor for 2 of 1 CPU each" in told
    assert "2 CPUs needed, 1 in the cluster, 1 of them free" in told
