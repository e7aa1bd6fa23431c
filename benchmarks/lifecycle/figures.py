"""Figures: what is promised about a checkpoint's life, each with its bound, and whether this run reached it."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.lifecycle import deleting, download, listing, saving
from benchmarks.server.figures import Figure
from benchmarks.server.results import Results


def figures(results: Results) -> list[Figure]:
    """Only figures of measures that were asked for in this run, whether or not they could be made."""
    asked = [*results.measured, *results.failures]
    return [figure for measure in asked for figure in _OF_MEASURE[measure](results)]


def _listing_figures(results: Results) -> list[Figure]:
    seconds = results.median("listing", listing.FIRST, "seconds")
    memory = results.median("listing", listing.FIRST, "memory")
    return [
        Figure("listing", "first page of ten thousand checkpoints", "at most", 0.050, "ms", seconds, counted=True),
        Figure("listing", "resident memory, most against before", "at most", 1.10, "×", memory, counted=True),
    ]


def _deleting_figures(results: Results) -> list[Figure]:
    """A rate without a bound: it must only have been measured."""
    rate = results.median("deleting", deleting.BULK, "per_second")
    return [Figure("deleting", "deletions a second, 32 at a time", "at least", 0, "count", rate, counted=True)]


def _download_figures(results: Results) -> list[Figure]:
    ratio = results.ratio("download", "bytes_per_second", download.OURS, download.BARE)
    memory = results.median("download", download.OURS, "memory")
    return [
        Figure("download", "bytes/s against a bare sendfile loop", "at least", 0.70, "×", ratio, counted=True),
        Figure("download", "memory grown, of the size of the archive", "at most", 0.05, "×", memory, counted=True),
    ]


def _saving_figures(results: Results) -> list[Figure]:
    def against(kind: str) -> float | None:
        return results.ratio("saving", "seconds", saving.OURS[kind], saving.LIBRARY[kind])

    title = "save_state against the library's own durable save"
    return [
        Figure("saving", f"{title}, L-like", "at most", 1.25, "×", against(saving.LORA), counted=True),
        Figure("saving", f"{title}, F-like", "at most", 1.25, "×", against(saving.WHOLE), counted=not results.quick),
    ]


_OF_MEASURE: dict[str, Callable[[Results], list[Figure]]] = {
    "listing": _listing_figures,
    "deleting": _deleting_figures,
    "download": _download_figures,
    "saving": _saving_figures,
}
