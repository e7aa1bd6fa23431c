from __future__ import annotations

import re

import pytest

from chockstone.api.config import ServerConfig
from chockstone.backends.supervision import instruction_sets, thread_choice
from chockstone.backends.supervision.instruction_sets import InstructionSetChoice
from support.cli.serving import serve


def test_show_config_starts_nothing(started: list[ServerConfig], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHOCKSTONE_KEYS", "alice=tml-geheim1")

    result = serve("--model", "tiny", "--show-config")

    assert (result.exit_code, started, result.stderr) == (0, [], "")
    assert re.search(r"^keys +alice=tml-\*\*\* +environment CHOCKSTONE_KEYS$", result.stdout, re.MULTILINE)


def test_show_config_says_which_instruction_sets_a_worker_would_use(
    started: list[ServerConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = InstructionSetChoice({"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}, "cache", {})
    monkeypatch.setattr(instruction_sets, "choose_here", lambda: chosen)

    result = serve("--model", "tiny", "--show-config")

    line = r"^instruction_sets +ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 +probed earlier on this CPU$"
    assert re.search(line, result.stdout, re.MULTILINE)


def test_show_config_says_how_openmp_waits(started: list[ServerConfig], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")

    result = serve("--model", "tiny", "--show-config")

    assert re.search(r"^openmp_waiting +OMP_WAIT_POLICY=PASSIVE +environment$", result.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("flags", "threads", "reason"),
    [
        ([], 2, r"the CPU limit of the cgroup \(2 of 64 cores\)"),
        (["--threads", "auto", "--replicas", "2"], 1, r"the CPU limit .*, shared by 2 replicas"),
        (["--threads", "5"], 5, "the setting"),
    ],
)
def test_show_config_says_how_many_threads_a_worker_would_have(
    started: list[ServerConfig], monkeypatch: pytest.MonkeyPatch, flags: list[str], threads: int, reason: str
) -> None:
    monkeypatch.setattr(thread_choice, "count_cores", lambda: 64)
    monkeypatch.setattr(thread_choice, "read_limit", lambda: 2.0)
    for name in thread_choice.VARIABLES:
        monkeypatch.delenv(name, raising=False)

    result = serve("--model", "tiny", "--show-config", *flags)

    assert re.search(rf"^threads_per_worker +{threads} +{reason}$", result.stdout, re.MULTILINE), result.stdout


def test_show_config_shows_also_what_cannot_start(started: list[ServerConfig]) -> None:
    result = serve("--show-config", "--host", "0.0.0.0")

    assert result.exit_code == 0
    assert re.search(r"^host +0\.0\.0\.0 +flag --host$", result.stdout, re.MULTILINE)
    assert "with these settings `serve` would not start: no model to serve" in result.stderr
