"""Directories of DCP itself are read without running code of theirs."""

from __future__ import annotations

import os
import pickle
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata

from chockstone.checkpoints.errors import ImportRefused
from chockstone.integrations.formats import list_dcp_directory, read_dcp_directory
from chockstone.integrations.formats.reading.dcp_directory import DcpChunk, check_cover
from support.integrations.foreign import rewrite_zip, same, with_pickle

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def sample_state() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(40, 30, generator=generator)
    return {
        "model": {"weight": weight, "turned": weight.t(), "half": weight.bfloat16(), "one": torch.tensor(3.5)},
        "optimizer": {"groups": [{"lr": 0.1, "betas": (0.9, 0.99)}], "state": {"0": {"step": torch.tensor(7)}}},
        "empty": torch.empty(0, 4),
        "step": 12,
        "note": "plain",
    }


def test_a_directory_of_one_process_comes_back_nested_as_it_was_saved(tmp_path: Path) -> None:
    dcp.save(sample_state(), checkpoint_id=tmp_path / "dcp", no_dist=True)

    listed = list_dcp_directory(tmp_path / "dcp")
    assert same(read_dcp_directory(tmp_path / "dcp"), sample_state())
    assert listed["model.half"] == (torch.bfloat16, (40, 30), (((0, 0), (40, 30)),))
    assert listed["step"] is None


class Trap:
    """Unpickling it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_metadata_that_names_other_classes_is_refused_and_not_run(tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Metadata({}, planner_data=Trap(tmp_path / "sprung"))))

    with pytest.raises(ImportRefused, match="no part of DCP's metadata"):
        read_dcp_directory(tmp_path)
    assert not (tmp_path / "sprung").exists()


def test_metadata_cannot_set_attributes_of_a_class(tmp_path: Path) -> None:
    dcp.save(sample_state(), checkpoint_id=tmp_path / "dcp", no_dist=True)
    before = dict(vars(Metadata))
    name = b"ctorch.distributed.checkpoint.metadata\nMetadata\n"
    (tmp_path / "dcp" / ".metadata").write_bytes(b"\x80\x02" + name + pickle.dumps({"evil": 1}, 2)[2:-1] + b"b.")

    with pytest.raises(ImportRefused, match="sets attributes"):
        read_dcp_directory(tmp_path / "dcp")
    assert dict(vars(Metadata)).keys() == before.keys()


def test_links_and_pipes_are_not_read(tmp_path: Path) -> None:
    dcp.save({"x": torch.ones(3)}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    data = next((tmp_path / "dcp").glob("*.distcp"))
    data.rename(tmp_path / "elsewhere")
    data.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ImportRefused, match="is a link"):
        read_dcp_directory(tmp_path / "dcp")
    data.unlink()
    os.mkfifo(data)
    with pytest.raises(ImportRefused, match="not a regular file"):
        read_dcp_directory(tmp_path / "dcp")


def test_a_pickled_value_is_refused_by_its_name_and_not_run(tmp_path: Path) -> None:
    dcp.save({"trap": Trap(tmp_path / "sprung")}, checkpoint_id=tmp_path / "dcp", no_dist=True)

    with pytest.raises(ImportRefused, match="'trap' holds something other than tensors and plain values"):
        read_dcp_directory(tmp_path / "dcp")
    assert not (tmp_path / "sprung").exists()


def rewrite_metadata(directory: Path, **changes: Any) -> None:
    """Change what the metadata says of the place of every item."""
    metadata = pickle.loads((directory / ".metadata").read_bytes())
    for info in metadata.storage_data.values():
        vars(info).update(changes)
    (directory / ".metadata").write_bytes(pickle.dumps(metadata))


@pytest.mark.parametrize("place", ["../secret", "/etc/passwd", "folder/file"])
def test_items_outside_the_directory_are_refused(tmp_path: Path, place: str) -> None:
    dcp.save({"weight": torch.ones(3)}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    rewrite_metadata(tmp_path / "dcp", relative_path=place)

    with pytest.raises(ImportRefused, match="outside the directory"):
        read_dcp_directory(tmp_path / "dcp")


def test_missing_short_and_foreign_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ImportRefused, match=r"has no file '\.metadata'"):
        read_dcp_directory(tmp_path)
    dcp.save({"weight": torch.ones(300)}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    data = tmp_path / "dcp" / "__0_0.distcp"
    data.write_bytes(data.read_bytes()[:-100])
    with pytest.raises(ImportRefused, match="the file '__0_0.distcp' is shorter"):
        read_dcp_directory(tmp_path / "dcp")
    data.unlink()
    with pytest.raises(ImportRefused, match="there is no '__0_0.distcp'"):
        read_dcp_directory(tmp_path / "dcp")
    (tmp_path / "dcp" / ".metadata").write_bytes(b"\x80\x04garbage")
    with pytest.raises(ImportRefused):
        read_dcp_directory(tmp_path / "dcp")


def change(directory: Path, edit: Callable[[Metadata], None]) -> None:
    """Change what the metadata says."""
    metadata = pickle.loads((directory / ".metadata").read_bytes())
    edit(metadata)
    (directory / ".metadata").write_bytes(pickle.dumps(metadata))


def test_a_chunk_that_is_missing_is_noticed(tmp_path: Path) -> None:
    dcp.save({"weight": torch.ones(6)}, checkpoint_id=tmp_path, no_dist=True)
    change(tmp_path, lambda metadata: metadata.state_dict_metadata["weight"].chunks.clear())

    with pytest.raises(ImportRefused, match="the chunks of 'weight' are not the whole tensor"):
        read_dcp_directory(tmp_path)


def boxes(*chunks: tuple[tuple[int, ...], tuple[int, ...]]) -> list[DcpChunk]:
    return [DcpChunk(*chunk) for chunk in chunks]


@pytest.mark.parametrize(
    ("shape", "chunks"),
    [
        ((), boxes(((), ()))),
        ((4,), boxes(((0,), (4,)))),
        ((4,), boxes(((2,), (2,)), ((0,), (2,)), ((4,), (0,)))),
        ((4, 6), boxes(((0, 0), (2, 6)), ((2, 0), (2, 3)), ((2, 3), (2, 3)))),
        ((2, 2, 2), boxes(*[((a, b, c), (1, 1, 1)) for a in (0, 1) for b in (0, 1) for c in (0, 1)])),
        ((0, 5), boxes()),
    ],
)
def test_chunks_that_are_the_whole_are_taken(shape: tuple[int, ...], chunks: list[DcpChunk]) -> None:
    check_cover("x", shape, chunks)


@pytest.mark.parametrize(
    ("shape", "chunks"),
    [
        ((), boxes(((), ()), ((), ()))),
        ((4,), boxes(((0,), (2,)), ((1,), (2,)))),  # as many elements as the whole, one of them twice
        ((4,), boxes(((0,), (2,)), ((0,), (2,)))),
        ((4,), boxes(((0,), (3,)))),
        ((4,), boxes(((0,), (4,)), ((0,), (4,)))),
        ((4, 4), boxes(((0, 0), (2, 4)), ((1, 0), (2, 4)))),
        ((3, 3), boxes(((0, 0), (2, 2)), ((1, 1), (2, 2)), ((0, 2), (1, 1)))),
        ((4,), boxes(((3,), (2,)), ((0,), (3,)))),
        ((4,), boxes(((0, 0), (4, 1)))),
    ],
)
def test_chunks_that_overlap_or_leave_gaps_are_refused(shape: tuple[int, ...], chunks: list[DcpChunk]) -> None:
    with pytest.raises(ValueError, match="'x'"):
        check_cover("x", shape, chunks)


def test_every_way_to_lay_small_chunks_is_judged_by_counting() -> None:
    generator = random.Random(5)
    verdicts = set()
    for _ in range(3000):
        height, width = generator.choice([(2, 2), (2, 3)])
        chunks, cells = [], dict.fromkeys([(y, x) for y in range(height) for x in range(width)], 0)
        for _ in range(generator.randint(1, 4)):
            y, x = generator.randrange(height), generator.randrange(width)
            sizes = generator.randint(1, height - y), generator.randint(1, width - x)
            chunks.append(DcpChunk((y, x), sizes))
            for cell in cells:
                cells[cell] += y <= cell[0] < y + sizes[0] and x <= cell[1] < x + sizes[1]
        is_whole = set(cells.values()) == {1}
        verdicts.add(is_whole)
        try:
            check_cover("x", (height, width), chunks)
        except ValueError:
            assert not is_whole, chunks
        else:
            assert is_whole, chunks
    assert verdicts == {True, False}


def test_a_tensor_that_claims_more_than_the_files_hold_is_refused_before_it_is_made(tmp_path: Path) -> None:
    dcp.save({"weight": torch.ones(1).expand(1 << 20)[:1].clone()}, checkpoint_id=tmp_path, no_dist=True)
    huge = 1 << 44

    def claim(metadata: Metadata) -> None:
        entry = metadata.state_dict_metadata["weight"]
        entry.size = torch.Size([huge])
        entry.chunks[:] = [type(entry.chunks[0])(torch.Size([n]), torch.Size([huge // 2])) for n in (0, huge // 2)]

    change(tmp_path, claim)

    with pytest.raises(ImportRefused, match="claim more than"):
        read_dcp_directory(tmp_path)


def test_lists_have_no_more_places_than_there_are_values(tmp_path: Path) -> None:
    dcp.save({"a": torch.ones(1), "b": torch.ones(1)}, checkpoint_id=tmp_path, no_dist=True)

    def spread(metadata: Metadata) -> None:
        metadata.planner_data = {"a": ("one", 9_000_000), "b": ("two", 9_000_000)}

    change(tmp_path, spread)

    with pytest.raises(ImportRefused, match="names the place 9000000 of a list"):
        read_dcp_directory(tmp_path)


def test_two_values_at_one_place_are_refused(tmp_path: Path) -> None:
    dcp.save({"a": torch.ones(1), "b": torch.ones(1)}, checkpoint_id=tmp_path, no_dist=True)

    for paths in ({"a": ("x",), "b": ("x",)}, {"a": ("x",), "b": ("x", "y")}):
        change(tmp_path, lambda metadata, paths=paths: vars(metadata).update(planner_data=paths))
        with pytest.raises(ImportRefused, match="two values at 'x'"):
            read_dcp_directory(tmp_path)


def test_values_that_share_their_bytes_are_refused(tmp_path: Path) -> None:
    """A small file could stand for any number of large values."""
    dcp.save({"a": "text" * 100, "b": "text" * 100}, checkpoint_id=tmp_path, no_dist=True)

    def share(metadata: Metadata) -> None:
        one, other = metadata.storage_data.values()
        vars(other).update(vars(one))

    change(tmp_path, share)

    with pytest.raises(ImportRefused, match="two items are in the same place"):
        read_dcp_directory(tmp_path)


def put_item(directory: Path, content: bytes) -> None:
    """Let the one item of a directory be these bytes."""
    next(directory.glob("*.distcp")).write_bytes(content)
    rewrite_metadata(directory, offset=0, length=len(content))


@pytest.mark.parametrize("value", [torch.ones(4), "plain"], ids=["tensor", "value"])
def test_an_item_that_is_compressed_is_refused_before_it_is_inflated(tmp_path: Path, value: object) -> None:
    dcp.save({"x": value}, checkpoint_id=tmp_path, no_dist=True)
    put_item(
        tmp_path, rewrite_zip(with_pickle(b"\x80\x02" + b"N0" * 5_000_000 + b"N."), compression=zipfile.ZIP_DEFLATED)
    )

    with pytest.raises(ImportRefused, match="is compressed"):
        read_dcp_directory(tmp_path)


def test_metadata_whose_values_hold_each_other_is_refused_with_a_short_message(tmp_path: Path) -> None:
    nested: Any = ()
    for _ in range(60):
        nested = (nested, nested)
    dcp.save({"a": torch.ones(1)}, checkpoint_id=tmp_path, no_dist=True)
    change(tmp_path, lambda metadata: vars(metadata).update(planner_data={"a": nested}))

    with pytest.raises(ImportRefused, match="the path of 'a'") as refused:
        read_dcp_directory(tmp_path)
    assert len(str(refused.value)) < 1000
