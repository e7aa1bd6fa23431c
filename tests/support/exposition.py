"""Prometheus' text format, as a dictionary."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families


def series_of(text: bytes | str) -> dict[str, float]:
    """The value of each series, named as in PromQL, with its labels in alphabetical order."""
    decoded = text.decode() if isinstance(text, bytes) else text
    found = {}
    for family in text_string_to_metric_families(decoded):
        for sample in family.samples:
            labels = ", ".join(f'{label}="{value}"' for label, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found
