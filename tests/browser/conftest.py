"""The console in real Chromium.

Playwright keeps an event loop in the main thread while a browser is open, so the browser is the package's and not the
session's: tests of other folders that need a loop of their own come before or after it. For the same reason the SDK is
called in other threads (``apart``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.browser import Visitor, chromium
from support.console_data import ANN, BEN, MODEL, apart, create, finetune, post_points, service
from support.live import LiveServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser

Visit = Callable[..., Visitor]
FLAGS = ("--key", f"ann={ANN}", "--key", f"ben={BEN}", "--admin", "ann", "--trash", "1h", "--recovery-steps", "5")
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>'\"&{{7*7}}"


@dataclass(frozen=True, slots=True)
class Made:
    """What the shared server has from the start."""

    run: str  # Ann's: 6 steps, three checkpoints, one sampler, the series "reward"
    ben_run: str
    checkpoints: tuple[str, ...]  # names of Ann's


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="package")
def live(browser: Browser, models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """The server that most tests share; started after the browser, because without one there is nothing to do."""
    with LiveServer({MODEL: models[MODEL]}, tmp_path_factory.mktemp("browser"), *FLAGS, key=ANN) as server:
        yield server


@pytest.fixture(scope="package")
def made(live: LiveServer) -> Made:
    return apart(lambda: _make(live)).result(timeout=200)


def _make(server: LiveServer) -> Made:
    with service(server, ANN) as ann, service(server, BEN) as ben:
        first = finetune(create(ann, rank=4, name="belay-sft", note=HOSTILE), 6, save_every=2)
        first.client.save_weights_for_sampler("sampler").result()
        for step in range(1, 7):
            post_points(server, ANN, first.run_id, step, reward=step / 6)
        other = finetune(create(ben, rank=4, name="bens-secret"), 2, save_every=2)
    return Made(first.run_id, other.run_id, tuple(first.saved))


@pytest.fixture
def visit(browser: Browser, live: LiveServer) -> Iterator[Visit]:
    """Opens a browser window: ``visit(key)`` signs in, ``visit(None)`` does not. Each has cookies of its own."""
    with ExitStack() as stack:

        def open_window(key: str | None = ANN, *, server: LiveServer | None = None, **options: Any) -> Visitor:
            visitor = stack.enter_context(Visitor(browser, (server or live).url, **options))
            if key is not None:
                visitor.sign_in(key)
            return visitor

        yield open_window
