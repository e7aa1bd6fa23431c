"""Stored conversations on a live server: what the `openai` SDK was answered survives SIGKILL, and the loop closes."""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import openai
import pytest

from chockstone.trainers import ConversationsClient
from support.live import LiveServer

EXAMPLE = Path(__file__).parents[2] / "examples" / "serve_talk_train.py"
MODEL = "tiny-qwen3"
QUESTION = [{"role": "user", "content": "What holds a fall?"}]


@pytest.fixture
def server(start_server: Callable[..., LiveServer]) -> LiveServer:
    return start_server()


def client_of(server: LiveServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.key, max_retries=0)


def test_what_was_answered_as_stored_outlives_a_killed_server(server: LiveServer) -> None:
    answered: dict[str, str] = {}

    def talk(number: int) -> None:
        with client_of(server) as client, suppress(Exception):  # as the connection breaks off
            while True:
                chunks = client.chat.completions.create(
                    model=MODEL, messages=QUESTION, max_completion_tokens=8, store=True, stream=True, seed=number
                )
                text, answer_id = "", ""
                for chunk in chunks:
                    answer_id = chunk.id
                    text += chunk.choices[0].delta.content or ""
                    if chunk.choices[0].finish_reason is not None:
                        answered[answer_id] = text
                if len(answered) >= 12:
                    with suppress(ProcessLookupError):
                        os.kill(server.pid, signal.SIGKILL)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(talk, range(4)))
    server.kill()
    server.start()

    with server.http() as http:
        for answer_id, text in answered.items():
            kept = http.get(f"conversations/{answer_id}").json()
            (answer,) = kept["answers"]
            assert answer["message"]["content"] == text
            assert len(answer["tokens"]) == len(answer["logprobs"]) > 0
    assert len(answered) >= 12


def test_the_example_closes_the_loop(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--server", server.url, "--model", MODEL])

    runpy.run_path(str(EXAMPLE), run_name="__main__")

    shown = capsys.readouterr().out
    assert "stored     8 answers" in shown
    assert "at step 0" in shown
    assert shown.count("alias      talker ->") == 2
    with ConversationsClient(server.url, server.key) as conversations:
        digests = {each.weights_digest for each in conversations.datums("cross_entropy")}
    assert len(digests) == 2  # before and after
