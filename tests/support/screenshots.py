"""Screenshots of every page of the console, on a real server with realistic data.

    PYTHONPATH=tests python -m support.screenshots --out build/screenshots   # all pages, two widths, two themes
    PYTHONPATH=tests python -m support.screenshots --docs                    # the pictures of README and docs
    PYTHONPATH=tests python -m support.screenshots --serve                   # keep the server, to look at it yourself

``--home DIRECTORY`` keeps model and data there, so that the next call need not train again.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from PIL import Image

from support.browser import DESKTOP, PHONE, Theme, Visitor, chromium, overflow_of
from support.console_data import ANN, FLAGS, MODEL, Showcase, fill, training
from support.live import LiveServer, make_model

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

IMAGES: Final = Path(__file__).parents[2] / "docs" / "images"
THEMES: Final[tuple[Theme, ...]] = ("light", "dark")
BUSY: Final = "[aria-busy=true], .htmx-request, [data-run-charts]:not([data-points])"
PICTURE_WIDTH: Final = 1280
MOST_BYTES: Final = 200_000  # of a picture in the documentation


@dataclass(frozen=True, slots=True)
class Shot:
    """A page and what a person does on it before the picture."""

    name: str
    path: str
    act: Callable[[Page], None] = lambda page: None
    height: int | None = None  # of the picture in the documentation; None: not in it


def shots(show: Showcase) -> list[Shot]:
    """All pages, in the order of the tour."""
    runs = [show.main_run, show.branch_run]
    return [
        Shot("overview", "/console", height=900),
        Shot("runs", "/console/runs", height=560),
        Shot("run", f"/console/runs/{quote(show.main_run)}", height=1000),
        Shot("run-reward", f"/console/runs/{quote(show.reward_run)}"),
        Shot("compare", "/console/compare?" + "&".join(f"run={quote(run)}" for run in runs), height=760),
        Shot("checkpoints", "/console/checkpoints", height=720),
        Shot("playground", "/console/playground", act=sample, height=860),
        Shot("storage", "/console/storage", height=760),
        Shot("samplers", "/console/samplers"),
        Shot("users", "/console/users"),
        Shot("audit", "/console/audit"),
        Shot("doctor", "/console/doctor", act=examine),
    ]


def sample(page: Page) -> None:
    """Ask the base model and the first checkpoint the same question."""
    page.get_by_test_id("compare").click()
    first = page.get_by_test_id("pane-b").get_by_test_id("source").locator("option[value*=sampler_weights]").first
    page.get_by_test_id("pane-b").get_by_test_id("source").select_option(first.get_attribute("value"))
    for pane in ("pane-a", "pane-b"):
        page.get_by_test_id(pane).get_by_test_id("max-tokens").fill("48")
        page.get_by_test_id(pane).get_by_test_id("temperature").fill("0.2")
    page.get_by_test_id("content").fill("What is a chockstone?")
    page.get_by_test_id("run").click()
    for pane in ("pane-a", "pane-b"):
        page.get_by_test_id(pane).get_by_test_id("answer").wait_for()
    page.get_by_test_id("pane-b").get_by_test_id("token").nth(4).click()


def examine(page: Page) -> None:
    page.get_by_text("The first examination runs").wait_for(state="hidden")


def settle(page: Page) -> None:
    """Until fonts are there, nothing is being fetched for a part of the page, and the last change is painted."""
    page.evaluate("document.fonts.ready.then(() => null)")
    page.wait_for_function(f"() => !document.querySelector({BUSY!r})")
    page.evaluate("scrollTo(0, 0)")
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(null))))")


def take_all(browser: Browser, server: LiveServer, show: Showcase, out: Path, only: list[str]) -> int:
    """Every page at both widths in both themes; returns how many of them complain or scroll sideways."""
    out.mkdir(parents=True, exist_ok=True)
    trouble = 0
    for width, size in (("1440", DESKTOP), ("390", PHONE)):
        for theme in THEMES:
            visitor = Visitor(browser, server.url, size=size, theme=theme)
            pictures = [Shot("sign-in", "/console/sign-in"), *shots(show)]
            for index, shot in enumerate(pictures):
                if index == 1:
                    visitor.sign_in(ANN)
                if only and shot.name not in only:
                    continue
                page = visitor.open(shot.path)
                try:
                    shot.act(page)
                    settle(page)
                except Exception as error:  # the picture shows more than the message
                    print(f"{shot.name}: {error}")
                    trouble += 1
                page.screenshot(path=out / f"{shot.name}-{width}-{theme}.png", full_page=True)
                if wide := overflow_of(page):
                    print(f"{shot.name} at {width}: wider than the window: {wide}")
                    trouble += 1
            for complaint in visitor.complaints():
                print(f"{width} {theme}: {complaint}")
                trouble += 1
            visitor.page.close()
    return trouble


def take_for_docs(browser: Browser, server: LiveServer, show: Showcase) -> None:
    """The pictures of README and tour: each page once, the Run page in both themes, small files."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    for theme in THEMES:
        with Visitor(browser, server.url, size=(PICTURE_WIDTH, 900), theme=theme, scale=1.5) as visitor:
            visitor.sign_in(ANN)
            for shot in shots(show):
                if shot.height is None or (theme == "dark" and shot.name != "run"):
                    continue
                visitor.page.set_viewport_size({"width": PICTURE_WIDTH, "height": shot.height})
                page = visitor.open(shot.path)
                shot.act(page)
                settle(page)
                suffix = "-dark" if theme == "dark" else ""
                target = IMAGES / f"console-{shot.name}{suffix}.png"
                target.write_bytes(shrink(page.screenshot()))
                print(f"{target.name}: {target.stat().st_size // 1000} kB")


def shrink(png: bytes) -> bytes:
    """The picture with 256 colours or fewer, until it is small enough."""
    with Image.open(io.BytesIO(png)) as picture:
        for colours in (256, 128, 64):
            small = io.BytesIO()
            reduced = picture.convert("RGB").quantize(colours, kmeans=2, dither=Image.Dither.NONE)
            reduced.save(small, "PNG", optimize=True)
            if small.tell() <= MOST_BYTES:
                return small.getvalue()
    raise ValueError(f"the picture has {len(png)} bytes and does not fit into {MOST_BYTES}: take a smaller part")


@contextmanager
def filled(home: Path, steps: int) -> Iterator[tuple[LiveServer, Showcase]]:
    """A running server with data; trained now unless ``home`` has it from an earlier call."""
    model, facts = home / "models" / MODEL, home / "showcase.json"
    if not model.exists():
        model.parent.mkdir(parents=True, exist_ok=True)
        make_model(model)
    with LiveServer({MODEL: model}, home / "server", *FLAGS) as server:
        if not facts.exists():
            facts.write_text(json.dumps(asdict(fill(server, steps=steps))))
        with training(server):  # so that something runs on the pictures
            yield server, Showcase(**json.loads(facts.read_text()))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write all pages, as PAGE-WIDTH-THEME.png, to this directory")
    parser.add_argument("--only", action="append", default=[], metavar="PAGE", help="only this page (repeatable)")
    parser.add_argument("--docs", action="store_true", help="write the pictures of README and docs")
    parser.add_argument("--serve", action="store_true", help="print URL and key, and serve until Enter is pressed")
    parser.add_argument("--home", type=Path, help="directory that keeps model and data; default: a temporary one")
    parser.add_argument("--steps", type=int, default=120, help="optimizer steps of the longest run; default 120")
    chosen = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory() as temporary,
        filled(chosen.home or Path(temporary), chosen.steps) as (
            server,
            show,
        ),
    ):
        if chosen.serve:
            input(f"{server.url}/console with the key {ANN}; press Enter to stop\n")
        if not (chosen.out or chosen.docs):
            return 0
        with chromium() as browser:
            if chosen.docs:
                take_for_docs(browser, server, show)
            return 1 if chosen.out and take_all(browser, server, show, chosen.out, chosen.only) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
