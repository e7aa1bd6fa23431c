"""Beats: how late the server's event loop was between two readings of its ``/metrics``."""

from __future__ import annotations

import math
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.live.server import connect

NAME = "chockstone_loop_stall_seconds"
LONGEST = "chockstone_loop_stall_max_seconds"


@dataclass(frozen=True, slots=True)
class Beats:
    within: dict[float, float]  # bound of lateness in seconds -> beats at most so late
    latest: float  # the largest lateness since the server started

    def since(self, before: Beats) -> Beats:
        return Beats({bound: beats - before.within[bound] for bound, beats in self.within.items()}, self.latest)

    @property
    def count(self) -> float:
        return self.within[math.inf]

    def quantile(self, fraction: float) -> float:
        """An upper limit: the bound of the bucket that holds this fraction, or the latest beat where that is less."""
        if not self.count:
            raise RuntimeError(f"{NAME} counted no beat in a window: the event loop is not watched")
        bound = min(bound for bound, beats in self.within.items() if beats >= fraction * self.count)
        return min(bound, self.latest)

    @property
    def longest(self) -> float:
        return self.quantile(1.0)


def read_beats(url: str) -> Beats:
    connection = connect(url)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    within = {float(each.labels["le"]): each.value for each in samples if each.name == f"{NAME}_bucket"}
    [latest] = [each.value for each in samples if each.name == LONGEST]
    return Beats(within, latest)
