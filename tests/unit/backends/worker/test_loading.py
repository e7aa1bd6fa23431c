from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest

from chockstone.backends.training.base_model import load_base_model
from chockstone.backends.worker.loading import logged_progress, report_loading
from chockstone.cli.models.making import make_model


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "tiny"
    make_model(directory, architecture="qwen3")
    return directory


def load(model: Path) -> None:
    with report_loading("tiny") as loaded:
        loaded(load_base_model("tiny", model))


def test_a_loaded_model_is_logged_with_its_size_time_type_and_device(
    model: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    caplog.set_level("INFO")

    load(model)

    first, last = caplog.messages
    assert first == "model loading model=tiny"
    words = dict(word.split("=") for word in last.removeprefix("model loaded ").split())
    assert words.keys() == {
        *("model", "parameters", "seconds", "dtype", "precision", "bytes", "device", "available_bytes"),
    }
    assert (words["model"], words["dtype"], words["device"]) == ("tiny", "float32", "cpu")
    assert 900_000 < int(words["parameters"]) < 1_100_000
    assert shown.getvalue() == ""


def test_a_terminal_shows_a_bar(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)

    load(model)

    assert re.search(r"\rloading tiny: +0%\|.*\| 0/24 ", shown.getvalue())
    assert shown.getvalue().endswith(" \r"), "it is gone when the model is loaded"


def test_without_a_terminal_a_long_load_is_logged_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    passed = [0.0]
    items = ""

    for item in logged_progress("abcdefgh", "tiny", monotonic=lambda: sum(passed)):
        items += item
        passed.append(4.0)

    assert items == "abcdefgh"
    assert caplog.messages == ["model loading model=tiny weights=3 of=8", "model loading model=tiny weights=6 of=8"]


def test_a_model_that_cannot_be_loaded_leaves_no_hook_behind(model: Path) -> None:
    from transformers.utils import logging as transformers_logging

    with pytest.raises(ZeroDivisionError), report_loading("tiny"):
        assert transformers_logging._tqdm_hook is not None
        raise ZeroDivisionError

    assert transformers_logging._tqdm_hook is None
