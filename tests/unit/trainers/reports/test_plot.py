"""The plot: an SVG that shows what the metrics say."""

from __future__ import annotations

import math
from pathlib import Path
from xml.etree import ElementTree

import pytest

from chockstone.trainers.reports.jsonl import METRICS, JsonLines
from chockstone.trainers.reports.plot import BOTTOM, EVALUATION, HEIGHT, LEFT, REWARD, SAVE, TOP, WIDTH, draw_rewards
from chockstone.trainers.reports.reports import StepRecord


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


def shapes(picture: Path, kind: str, **facts: str) -> list[dict[str, str]]:
    root = ElementTree.fromstring(picture.read_text())
    found = (dict(each.attrib) for each in root.iter(f"{{http://www.w3.org/2000/svg}}{kind}"))
    return [each for each in found if facts.items() <= each.items()]


def points(picture: Path, stroke: str) -> list[tuple[float, float]]:
    (line,) = shapes(picture, "polyline", stroke=stroke)
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in line["points"].split())]


def test_a_reward_that_rises_is_a_line_that_rises_with_evaluations_and_saves(tmp_path: Path) -> None:
    metrics = write(tmp_path, {step: step / 4 for step in range(1, 5)}, {0: 0.0, 4: 1.0})

    draw_rewards(metrics, tmp_path / "pictures" / "rewards.svg")

    picture = tmp_path / "pictures" / "rewards.svg"
    line = points(picture, REWARD)
    assert [x for x, _ in line] == sorted(x for x, _ in line) and len(line) == 4
    assert [y for _, y in line] == sorted((y for _, y in line), reverse=True)
    assert line[-1][1] == TOP  # 1.0 is the top of the grid
    dots = [dot for dot in shapes(picture, "circle", fill=EVALUATION) if dot["r"] == "4"]
    assert [(float(dot["cx"]), float(dot["cy"])) for dot in dots] == [(LEFT, BOTTOM), line[-1]]
    (mark,) = shapes(picture, "line", stroke=SAVE)
    assert float(mark["x1"]) == line[1][0]


@pytest.mark.parametrize(
    "rewards",
    [{1: 0.0}, {1: 1.0}, {1: -3.5, 2: -3.5}, {1: 0.0, 2: 0.0}, {step: 1e6 * step for step in range(1, 2000)}],
    ids=["nothing won", "one step", "losses", "flat", "large"],
)
def test_whatever_the_rewards_are_everything_is_inside_the_picture(tmp_path: Path, rewards: dict[int, float]) -> None:
    draw_rewards(write(tmp_path, rewards, {}), tmp_path / "rewards.svg")

    for x, y in points(tmp_path / "rewards.svg", REWARD):
        assert 0 <= x <= WIDTH and TOP <= y <= BOTTOM < HEIGHT


def test_a_reward_that_was_no_number_is_left_out(tmp_path: Path) -> None:
    draw_rewards(write(tmp_path, {1: 0.5, 2: math.nan, 3: 0.5}, {}), tmp_path / "rewards.svg")

    assert len(points(tmp_path / "rewards.svg", REWARD)) == 2


def test_nothing_to_draw_and_a_picture_of_another_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no step in"):
        draw_rewards(tmp_path / METRICS, tmp_path / "rewards.svg")
    with pytest.raises(ValueError, match=r"must end in '\.svg'"):
        draw_rewards(write(tmp_path, {1: 0.5}, {}), tmp_path / "rewards.png")

    assert not (tmp_path / "rewards.svg").exists()
