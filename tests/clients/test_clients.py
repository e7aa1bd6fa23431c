"""Programs that speak to the endpoints, unmodified: LiteLLM, inspect-ai, and what tinker-cookbook builds on the SDK."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from environments import ask

from support.live import LiveServer

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def server(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    home = tmp_path_factory.mktemp("clients")
    flags = ["--key=ann=tml-of-ann-01234"]
    with LiveServer({"tiny": models["tiny-qwen3"]}, home, *flags, key="tml-of-ann-01234") as live:
        yield live
        assert " ERROR " not in live.log()


def test_litellm_talks_streams_calls_tools_and_knows_the_errors(server: LiveServer, tmp_path: Path) -> None:
    told = ask("litellm", "litellm_client.py", server, tmp_path)

    assert told.pop("failures") == {
        "context": "ContextWindowExceededError",
        "anthropic_context": "ContextWindowExceededError",
        "model": "NotFoundError",
        "key": "AuthenticationError",
        "penalty": "BadRequestError",
    }
    for name in ("called", "called_in_a_stream", "anthropic_called"):
        assert told[name][0] == "weather"
        assert told[name][1] in ("Oslo", "Rome")
    assert told["schema"].keys() == {"is_red"}
    assert all(told.values()), told


def test_inspect_runs_tasks_by_its_providers(server: LiveServer, tmp_path: Path) -> None:
    told = ask("cookbook", "inspect_client.py", server, tmp_path)

    for name, found in told.items():
        assert (found["status"], found["errors"], len(found["ends"])) == ("success", [], 2), (name, found)
    for name in ("context", "anthropic_context"):
        assert told[name]["ends"] == ["model_length"] * 2
    for name in ("schema", "anthropic_schema"):
        assert all(json.loads(text).keys() == {"is_red"} for text in told[name]["texts"])


def test_the_cookbook_captures_agents_and_evaluates(
    server: LiveServer, models: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "tiny").symlink_to(models["tiny-qwen3"])  # it loads the tokenizer by the name of the base model
    told = ask("cookbook", "cookbook_client.py", server, tmp_path)

    assert told["sampled_nll"] == pytest.approx(told["trained_nll"], abs=1e-4)
    assert told["inspect"].keys() == {"qa/accuracy", "qa/stderr"}
    proxy = told["proxy"]
    assert proxy["stream"]
    assert proxy["message"] > 0
    assert proxy["captured"] == 3
    assert proxy["logprobs"]
    assert "prompt is too long" in proxy["too_long"]
