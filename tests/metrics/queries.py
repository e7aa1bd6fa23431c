"""The queries of the dashboard and the alert rules in ``deploy``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
RULES: Final = DEPLOY / "prometheus" / "alerts.yml"
DASHBOARD: Final = DEPLOY / "grafana" / "chockstone.json"
GRAFANA: Final = {"$__rate_interval": "5m", "$__interval": "5m", "$instance": ".*"}  # what Grafana puts into a query


class DeployedQuery(NamedTuple):
    where: str
    text: str


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return found


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def filled_in(query: str) -> str:
    for variable, value in GRAFANA.items():
        query = query.replace(variable, value)
    assert "$" not in query, f"{query!r} has a variable that is not known here"
    return query


def dashboard_queries() -> Iterator[DeployedQuery]:
    for panel in panels():
        for target in panel["targets"]:
            yield DeployedQuery(f"{panel['title']} {target['refId']}", filled_in(target["expr"]))
    for annotation in dashboard()["annotations"]["list"]:
        yield DeployedQuery(annotation["name"], filled_in(annotation["expr"]))


def variable_queries() -> Iterator[DeployedQuery]:
    """Of the drop-down lists, as PromQL: ``label_values`` is a function of Grafana alone."""
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert found is not None
            yield DeployedQuery(variable["name"], f"count by ({found[2]}) ({found[1]})")


def rule_queries() -> Iterator[DeployedQuery]:
    for rule in rules():
        yield DeployedQuery(rule["alert"], rule["expr"])
