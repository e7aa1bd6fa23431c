from __future__ import annotations

from datetime import UTC, datetime

from chockstone.catalog import RunRow, Usage
from chockstone.console.pages.checkpoint_tree import RunNode, build

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def run(number: int, **metadata: str) -> RunRow:
    return RunRow(
        run_id=f"s:train:{number}",
        session_id="s",
        model_seq_id=number,
        owner="ann",
        base_model="tiny",
        spec={},
        optimizer_config={},
        user_metadata=metadata,
        created_at=NOW,
        last_request_at=NOW,
        project_id=None,
        state="unloaded",
        failure=None,
        steps=number,
    )


def tree(count: int, parents: dict[int, str], *, without: set[int] | None = None) -> tuple[RunNode, ...]:
    """Runs 0 … count, all with a checkpoint of 10 bytes but some."""
    rows = {f"s:train:{number}": run(number) for number in range(count)}
    used = {f"s:train:{number}": Usage(1, 10) for number in range(count) if number not in (without or set())}
    return build(rows, {run_id: parents.get(number) for number, run_id in enumerate(rows)}, used)


def outline(nodes: tuple[RunNode, ...]) -> list[object]:
    return [(node.step, outline(node.children)) if node.children else node.step for node in nodes]


def of(number: int) -> str:
    return f"tinker://s:train:{number}/weights/final"


def test_runs_stand_below_the_runs_they_were_made_from() -> None:
    nodes = tree(5, {1: of(0), 2: of(0), 3: of(2)})

    assert outline(nodes) == [(0, [1, (2, [3])]), 4]
    assert nodes[0].children[0].made_from == "weights/final"
    assert nodes[0].children[0].foreign_parent is None


def test_a_run_made_from_anothers_checkpoint_is_a_root_and_says_so() -> None:
    [node] = tree(1, {0: "tinker://other:train:7/sampler_weights/x"})

    assert node.foreign_parent == "tinker://other:train:7/sampler_weights/x"


def test_runs_without_checkpoints_are_shown_only_where_others_come_from_them() -> None:
    assert outline(tree(3, {1: of(0)}, without={0, 2})) == [(0, [1])]


def test_runs_that_loaded_from_each_other_are_all_shown() -> None:
    nodes = tree(3, {0: of(1), 1: of(2), 2: of(0)})

    found: list[int | None] = []
    left = list(nodes)
    while left:
        node = left.pop()
        found.append(node.step)
        left += node.children
    assert sorted(each for each in found if each is not None) == [0, 1, 2]


def test_a_long_chain_is_shown_to_a_depth_and_loses_no_run() -> None:
    nodes = tree(1000, {number: of(number - 1) for number in range(1, 1000)})

    depth, count, level = 0, 0, list(nodes)
    while level:
        depth, count = depth + 1, count + len(level)
        level = [child for node in level for child in node.children]
    assert count == 1000
    assert depth == 25


def test_a_parent_that_is_no_path_is_passed_over() -> None:
    [node] = tree(1, {0: "not a path"})

    assert (node.made_from, node.foreign_parent) == (None, None)
