"""The plot: an SVG that shows what the metrics say."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from chockstone.trainers.reports.jsonl import METRICS, JsonLines
from chockstone.trainers.reports.plot import draw_rewards
from chockstone.trainers.reports.reports import StepRecord

SVG = "{http://www.w3.org/2000/svg}"


def write(directory: Path, rewards: dict[int, float], evaluations: dict[int, float]) -> Path:
    report = JsonLines(directory)
    report.resume(0)
    for step, reward in rewards.items():
        report.record(StepRecord(step, {"reward/mean": reward}))
    for step, reward in evaluations.items():
        report.evaluated(step, {"reward/mean": reward})
    report.event("checkpoint step-00000002 saved in 0.4 s")
    report.event("checkpoint step-00000900 saved in 0.4 s")  # by a life that was lost
    report.event("checkpoint step-00000003 failed")
    report.close()
    return directory / METRICS


def picture_of(picture: Path) -> ElementTree.Element:
    return ElementTree.fromstring(picture.read_text())


def size(picture: Path) -> tuple[float, float]:
    _, _, width, height = map(float, picture_of(picture).attrib["viewBox"].split())
    return width, height


def points(picture: Path, curve: str) -> list[tuple[float, float]]:
    """Of a line."""
    (path,) = picture_of(picture).findall(f".//{SVG}g[@id='{curve}']/{SVG}path")
    numbers = [float(word) for word in path.attrib["d"].split() if word not in ("M", "L")]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def marks(picture: Path, kind: str) -> list[tuple[float, float]]:
    """Of dots and strokes."""
    found = picture_of(picture).findall(f".//{SVG}g[@id='{kind}']//{SVG}use")
    return [(float(use.attrib["x"]), float(use.attrib["y"])) for use in found]


def test_a_reward_that_rises_is_a_line_that_rises_with_evaluations_and_saves(tmp_path: Path) -> None:
    metrics = write(tmp_path, {step: step / 4 for step in range(1, 5)}, {0: 0.0, 4: 1.0})

    draw_rewards(metrics, tmp_path / "pictures" / "rewards.svg")

    picture = tmp_path / "pictures" / "rewards.svg"
    line = points(picture, "rewards")
    assert [x for x, _ in line] == sorted(x for x, _ in line) and len(line) == 4
    assert [y for _, y in line] == sorted((y for _, y in line), reverse=True)
    first, last = marks(picture, "evaluations")
    assert last == pytest.approx(line[-1])
    assert first[1] == pytest.approx(line[0][1] + (line[0][1] - line[1][1]))  # 0.0 is one step lower than 0.25
    (mark,) = marks(picture, "saves")
    assert mark[0] == pytest.approx(line[1][0])
    assert mark[1] == pytest.approx(first[1])  # at the axis, which is at zero


def test_the_same_metrics_give_the_same_bytes(tmp_path: Path) -> None:
    metrics = write(tmp_path, {1: 0.5, 2: 0.25}, {2: 1.0})

    draw_rewards(metrics, tmp_path / "one.svg")
    draw_rewards(metrics, tmp_path / "other.svg")

    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "other.svg").read_bytes()


@pytest.mark.parametrize(
    "rewards",
    [{1: 0.0}, {1: 1.0}, {1: -3.5, 2: -3.5}, {1: 0.0, 2: 0.0}, {step: 1e6 * step for step in range(1, 2000)}],
    ids=["nothing won", "one step", "losses", "flat", "large"],
)
def test_whatever_the_rewards_are_everything_is_inside_the_picture(tmp_path: Path, rewards: dict[int, float]) -> None:
    draw_rewards(write(tmp_path, rewards, {}), tmp_path / "rewards.svg")

    width, height = size(tmp_path / "rewards.svg")
    for x, y in points(tmp_path / "rewards.svg", "rewards"):
        assert 0 <= x <= width and 0 <= y <= height


def test_a_reward_that_was_no_number_is_left_out(tmp_path: Path) -> None:
    draw_rewards(write(tmp_path, {1: 0.5, 2: math.nan, 3: 0.5}, {}), tmp_path / "rewards.svg")

    assert len(points(tmp_path / "rewards.svg", "rewards")) == 2


def test_nothing_to_draw_and_a_picture_of_another_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no step in"):
        draw_rewards(tmp_path / METRICS, tmp_path / "rewards.svg")
    with pytest.raises(ValueError, match=r"must end in '\.svg'"):
        draw_rewards(write(tmp_path, {1: 0.5}, {}), tmp_path / "rewards.png")

    assert not (tmp_path / "rewards.svg").exists()


def test_without_matplotlib_the_error_names_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    with pytest.raises(ModuleNotFoundError, match=r"pip install 'chockstone\[train\]'"):
        draw_rewards(write(tmp_path, {1: 0.5}, {}), tmp_path / "rewards.svg")
