"""The dashboard and the alert rules ask for metrics that the server exports, with the labels and types that it has."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Final

import pytest
import yaml

from chockstone.telemetry.declarations import DECLARATIONS, MetricDeclaration
from metrics.queries import (
    DASHBOARD,
    DEPLOY,
    RULES,
    DeployedQuery,
    dashboard,
    dashboard_queries,
    panels,
    rule_queries,
    rules,
    variable_queries,
)
from support.programs import find_program
from support.promql import OF_COUNTERS, OF_GAUGES, Matcher, Selector, parse

OF_PROMETHEUS: Final = {"up"}  # which Prometheus adds to each target
ON_EVERY_METRIC: Final = {"job", "instance"}
HISTOGRAM: Final = ("_bucket", "_sum", "_count")
ALERT_TESTS: Final = Path(__file__).with_name("alerts_test.yml")
QUERIES: Final = [*dashboard_queries(), *variable_queries(), *rule_queries()]


def declaration_of(metric: str) -> MetricDeclaration | None:
    """None: the server exports no series of this name."""
    found = DECLARATIONS.get(metric)
    if found is not None:
        return None if found.kind == "histogram" else found
    for suffix in HISTOGRAM:
        base = DECLARATIONS.get(metric.removesuffix(suffix))
        if metric.endswith(suffix) and base is not None and base.kind == "histogram":
            return base
    return None


def labels_of(selector: Selector) -> set[str]:
    declared = declaration_of(selector.metric)
    own = set() if declared is None else set(declared.labels)
    return own | ON_EVERY_METRIC | ({"le"} if selector.metric.endswith("_bucket") else set())


def matches_something(matcher: Matcher, values: tuple[str, ...]) -> bool:
    if matcher.operator in ("=", "!="):
        return matcher.value in values
    return any(re.fullmatch(matcher.value, value) for value in values)


def problems_of(query: DeployedQuery) -> list[str]:
    parsed, found = parse(query.text), []
    known = {label for selector in parsed.selectors for label in labels_of(selector)}
    found += [f"label {label!r}" for label in parsed.grouped_by - known]
    for selector in parsed.selectors:
        declared, metric = declaration_of(selector.metric), selector.metric
        if declared is None:
            found += [] if metric in OF_PROMETHEUS else [f"metric {metric!r}"]
            continue
        for matcher in selector.matchers:
            values = declared.labels.get(matcher.label, ())
            if matcher.label not in labels_of(selector):
                found.append(f"label {matcher.label!r} of {metric!r}")
            elif values and not matches_something(matcher, values):
                found.append(f"value {matcher.value!r} of {matcher.label!r}")
        innermost = selector.functions[-1] if selector.functions else ""
        if innermost in OF_COUNTERS and declared.kind == "gauge":
            found.append(f"{innermost} of the gauge {metric!r}")
        if innermost in OF_GAUGES and declared.kind != "gauge":
            found.append(f"{innermost} of {metric!r}, which is no gauge")
        if "histogram_quantile" in selector.functions and not metric.endswith("_bucket"):
            found.append(f"histogram_quantile of {metric!r}")
    return found


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.where)
def test_a_query_asks_only_for_what_the_server_exports(query: DeployedQuery) -> None:
    assert parse(query.text).selectors
    assert problems_of(query) == []


@pytest.mark.parametrize(
    "text",
    [
        "chockstone_gone_total > 0",
        "chockstone_save_seconds > 1",  # only its buckets, sum and count are series
        "rate(chockstone_queued_operations[5m])",
        "predict_linear(chockstone_trained_tokens_total[5m], 60)",
        'chockstone_runs{state="sleeping"}',
        'chockstone_runs{status="lost"}',
        "sum by (user) (chockstone_runs)",
        "histogram_quantile(0.9, rate(chockstone_save_seconds_sum[5m]))",
    ],
)
def test_a_query_for_something_else_is_found(text: str) -> None:
    assert problems_of(DeployedQuery("", text))


@pytest.mark.parametrize("text", ["sum(a", "a{b}", "magic(a)", "a ? b", "a }"])
def test_a_query_that_is_not_understood_is_an_error(text: str) -> None:
    with pytest.raises((ValueError, IndexError)):
        parse(text)


def test_every_metric_is_on_the_dashboard_or_in_a_rule() -> None:
    """A metric that no one looks at is not worth its cost."""
    used = {selector.metric for query in QUERIES for selector in parse(query.text).selectors}
    bases = {re.sub(r"_(bucket|sum|count)$", "", metric) for metric in used}
    unneeded = {"chockstone_process_virtual_memory_bytes"}  # comes with the others of the process

    assert set(DECLARATIONS) - used - bases == unneeded


def test_panels_do_not_overlap_and_say_what_they_show() -> None:
    cells: dict[tuple[int, int], str] = {}
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert cells.setdefault((x, y), panel["title"]) == panel["title"]
        assert place["x"] + place["w"] <= 24

    titles = [panel["title"] for panel in dashboard()["panels"] if panel["type"] == "row"]
    assert titles == ["Overview", "Training", "Sampling", "Saves", "Recovery", "Storage", "HTTP and process"]
    assert len({panel["id"] for panel in dashboard()["panels"]}) == len(dashboard()["panels"])
    assert all(panel["title"] and panel["fieldConfig"]["defaults"]["unit"] for panel in panels())


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_says_what_happened_and_what_to_do(rule: dict[str, dict[str, str]]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert "instance" in rule["annotations"]["summary"]
    assert len(rule["annotations"]["description"]) > 60


def test_every_alert_is_tested_with_series_that_fire_it() -> None:
    tested = re.findall(r'alertname="(\w+)"', ALERT_TESTS.read_text())

    assert sorted(tested) == sorted(rule["alert"] for rule in rules())


def test_promtool_accepts_the_rules_and_the_configuration() -> None:
    promtool = find_program("promtool")
    for words in (["check", "rules", RULES], ["check", "config", DEPLOY / "prometheus" / "prometheus.yml"]):
        done = subprocess.run([promtool, *map(str, words)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_fires_every_alert_and_none_on_a_healthy_server() -> None:
    words = [find_program("promtool"), "test", "rules", str(ALERT_TESTS)]

    done = subprocess.run(words, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_files_are_documented() -> None:
    guide = (DEPLOY.parent / "docs" / "guides" / "metrics-and-alerts.md").read_text()

    for file in (RULES, DASHBOARD, DEPLOY / "prometheus" / "prometheus.yml"):
        assert str(file.relative_to(DEPLOY.parent)) in guide
    assert yaml.safe_load(RULES.read_text())["groups"][0]["name"] == "chockstone"
