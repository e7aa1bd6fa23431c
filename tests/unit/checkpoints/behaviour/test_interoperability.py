from __future__ import annotations

import os
import subprocess
import tarfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch

from chockstone.checkpoints.format.layout import Layout
from chockstone.checkpoints.format.manifest import Manifest, render_head, render_tail
from chockstone.checkpoints.format.tar import render_headers
from support.archives import NOON, assert_same, open_file, small_state, write_archive
from support.programs import find_program

GIBIBYTE = 1024**3
LONG = "/".join(["folder-" + "x" * 60] * 4) + "/config.json"  # 279 bytes
EDGE = "d" * 99 + "/" + "name-cut-right-after-its-slash"  # the ustar field ends in "/"
FILES = {
    "config.json": b'{"r": 8}',
    "empty": b"",
    "one-byte": b"x",
    "a-page": b"p" * 4096,
    LONG: b"far down",
    EDGE: b"not a folder",
    "n" * 100: b"a hundred",
    "m" * 101: b"a hundred and one",
}


def run(*arguments: str | Path) -> str:
    done = subprocess.run(
        arguments, capture_output=True, text=True, check=False, env={**os.environ, "TZ": "UTC", "LC_ALL": "C"}
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr, "not even a warning"
    return done.stdout


def list_with_tarfile(path: Path) -> list[tuple[str, int]]:
    with tarfile.open(path, "r:") as tar:
        assert all(member.isreg() for member in tar)
        return [(member.name, member.size) for member in tar]


def list_with_gnu_tar(path: Path) -> list[tuple[str, int]]:
    lines = run(find_program("tar"), "--list", "--verbose", "--file", path).splitlines()
    assert all(line.startswith("-rw-r--r-- ") for line in lines), "regular files"
    return [(line.split()[5], int(line.split()[2])) for line in lines]


def list_with_bsdtar(path: Path) -> list[tuple[str, int]]:
    lines = run(find_program("bsdtar"), "-tvf", path).splitlines()
    assert all(line.startswith("-rw-r--r-- ") for line in lines), "regular files"
    return [(line.split()[8], int(line.split()[4])) for line in lines]


def extract_with_tarfile(path: Path, target: Path) -> None:
    with tarfile.open(path, "r:") as tar:
        tar.extractall(target, filter="data")


def extract_with_gnu_tar(path: Path, target: Path) -> None:
    run(find_program("tar"), "--extract", "--file", path, "--directory", target)


def extract_with_bsdtar(path: Path, target: Path) -> None:
    run(find_program("bsdtar"), "-xf", path, "-C", target)


LISTERS = [list_with_tarfile, list_with_gnu_tar, list_with_bsdtar]
EXTRACTORS = [extract_with_tarfile, extract_with_gnu_tar, extract_with_bsdtar]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_archive(tmp_path_factory.mktemp("store"), files=FILES)


@pytest.fixture(scope="module")
def members(path: Path) -> list[tuple[str, int, int]]:
    """(name, offset, size) of everything in the file, in order."""
    with open_file(path) as archive:
        layout = archive.layout
    return [(member.name, member.offset, member.size) for member in (layout.manifest, *layout.members, layout.commit)]


def sparse(path: Path, members: list[tuple[str, int]], *, filled: dict[str, bytes]) -> Layout:
    """An archive planned and rendered as a writer does, its payloads left as holes except for a few."""
    manifest = Manifest(kind="weights", step=1, created_at=NOON, members=tuple(members))
    manifest.check()
    layout = manifest.plan()
    payload = manifest.encode(bytes(16 * layout.block_count), layout)
    with path.open("wb") as file:
        file.truncate(layout.size)
        os.pwrite(file.fileno(), render_head(payload, mtime=manifest.mtime), 0)
        for member in layout.members:
            headers = render_headers(
                member.name, size=member.size, header_offset=member.header_offset, mtime=manifest.mtime
            )
            os.pwrite(file.fileno(), headers + filled.get(member.name, b""), member.header_offset)
        os.pwrite(file.fileno(), render_tail(payload, layout, mtime=manifest.mtime), layout.body_end)
    return layout


@pytest.mark.parametrize("listing", LISTERS)
def test_every_member_is_listed(
    path: Path, members: list[tuple[str, int, int]], listing: Callable[[Path], list[tuple[str, int]]]
) -> None:
    assert listing(path) == [(name, size) for name, _, size in members]


@pytest.mark.parametrize("extract", EXTRACTORS)
def test_every_member_is_extracted_byte_for_byte(
    path: Path, members: list[tuple[str, int, int]], tmp_path: Path, extract: Callable[[Path, Path], None]
) -> None:
    extract(path, tmp_path)

    content = path.read_bytes()
    for name, offset, size in members:
        assert (tmp_path / name).read_bytes() == content[offset : offset + size], name
    found = sorted(str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if not file.is_dir())
    assert found == sorted(name for name, _, _ in members)
    assert {name: (tmp_path / name).read_bytes() for name in FILES} == FILES


@pytest.mark.parametrize("extract", EXTRACTORS)
def test_extracted_tensors_open_with_safetensors(
    path: Path, tmp_path: Path, extract: Callable[[Path, Path], None]
) -> None:
    state = small_state()

    extract(path, tmp_path)

    with safetensors.safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        assert_same(file.get_tensor("weight"), state["model"]["weight"])
        assert_same(file.get_tensor("bias"), state["model"]["bias"])
        assert file.metadata() == {"format": "pt", "head": "weight"}, "tied tensors, as transformers writes them"
    with safetensors.safe_open(tmp_path / "optimizer.safetensors", framework="np") as file:
        assert set(file.keys()) == {"state.0.step", "state.0.exp_avg"}


def test_safetensors_opens_a_member_in_place(path: Path) -> None:
    with open_file(path) as archive:
        mapped = archive.map()
        member = archive.members["model.safetensors"]
    assert mapped is not None

    found = safetensors.torch.load(bytes(mapped[member.offset : member.end]))

    state = small_state()
    assert_same(dict(sorted(found.items())), {"bias": state["model"]["bias"], "weight": state["model"]["weight"]})


TYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in (
        "bool",
        "uint8",
        "int8",
        "int16",
        "uint16",
        "int32",
        "uint32",
        "int64",
        "uint64",
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "float8_e4m3fn",
        "float8_e5m2",
        "complex64",
    )
}


def test_safetensors_reads_every_type_it_has_a_name_for(tmp_path: Path) -> None:
    tensors = {name: torch.arange(16, dtype=torch.uint8).to(dtype).reshape(4, 4) for name, dtype in TYPES.items()}
    path = write_archive(tmp_path, {"model": tensors})

    with open_file(path) as archive:
        found = safetensors.torch.load(archive.read("model.safetensors"))

    assert_same({name: found[name] for name in tensors}, tensors)


@pytest.mark.parametrize(
    "state",
    [
        {"model": {"weird key": torch.ones(1), "": torch.ones(2), "🔑": torch.ones(3), "a\0b": torch.ones(4)}},
        {"model": {"k" * 10_000: torch.ones(1)}},
        {"model": {"__metadata__": torch.ones(1)}},
        {"model": {"empty": torch.ones(0), "flat": torch.ones(3, 0, 2), "scalar": torch.tensor(1.0)}},
        {"model": {"format": torch.ones(1)}},
        {"model": torch.ones(1)},
        {"model": {"odd": torch.ones(3, dtype=torch.uint8), "wide": torch.ones(3, dtype=torch.float64)}},
        {"model": {"raw": torch.ones(3, dtype=torch.complex128), "even": torch.ones(16, dtype=torch.bool)}},
    ],
    ids=["names", "long", "reserved", "empty", "format", "bare", "mixed", "raw"],
)
def test_safetensors_reads_every_file_of_tensors(tmp_path: Path, state: dict[str, Any]) -> None:
    with open_file(write_archive(tmp_path, state)) as archive:
        found = safetensors.deserialize(archive.read("model.safetensors"))
        ours = archive.tensors("model.safetensors")

    assert {key: tuple(facts["shape"]) for key, facts in found} == {key: ours[key].entry.shape for key in ours}


def test_safetensors_reads_keys_that_are_no_unicode(tmp_path: Path) -> None:
    with open_file(write_archive(tmp_path, {"model": {"\ud800": torch.ones(1)}})) as archive:
        found = safetensors.deserialize(archive.read("model.safetensors"))

    assert len(found) == 1


def test_two_tied_names_that_say_format_do_not_hide_the_format(tmp_path: Path) -> None:
    weight = torch.ones(2)

    with open_file(write_archive(tmp_path, {"model": {"a": weight, "format": weight}})) as archive:
        (tmp_path / "m.safetensors").write_bytes(archive.read("model.safetensors"))

    with safetensors.safe_open(tmp_path / "m.safetensors", framework="pt") as file:
        assert file.metadata()["format"] == "pt", "transformers refuses a file without it"


@pytest.mark.parametrize("extract", EXTRACTORS)
def test_sha256sum_checks_an_extracted_commit(
    path: Path, tmp_path: Path, extract: Callable[[Path, Path], None]
) -> None:
    extract(path, tmp_path)

    command = [find_program("sha256sum"), "--check", "--strict", "COMMIT"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, "manifest.json: OK\n"), done.stderr


@pytest.mark.parametrize("listing", LISTERS)
@pytest.mark.parametrize("size", [8 * GIBIBYTE - 1, 8 * GIBIBYTE, 9 * GIBIBYTE + 1, 5000 * GIBIBYTE])
def test_a_member_of_eight_gibibytes_and_more_is_listed_and_so_is_what_follows(
    tmp_path: Path, listing: Callable[[Path], list[tuple[str, int]]], size: int
) -> None:
    planned = [("state.json", 2), ("model.safetensors", size), (LONG, 7), ("last.json", 2)]
    large = tmp_path / "large.tar"
    layout = sparse(large, planned, filled={})

    found = listing(large)

    assert found == [("manifest.json", layout.manifest.size), *planned, ("COMMIT", 140)]
    assert large.stat().st_blocks * 512 < 4 * 1024**2, "nothing is really written"


@pytest.mark.parametrize("extract", [extract_with_gnu_tar, extract_with_bsdtar, extract_with_tarfile])
def test_what_follows_a_huge_member_is_extracted(tmp_path: Path, extract: Callable[[Path, Path], None]) -> None:
    large = tmp_path / "large.tar"
    sparse(large, [("model.safetensors", 9 * GIBIBYTE), (LONG, 0)], filled={})

    if extract is extract_with_tarfile:
        with tarfile.open(large, "r:") as tar:
            tar.extract(LONG, tmp_path, filter="data")
    elif extract is extract_with_gnu_tar:
        run(find_program("tar"), "--extract", "--file", large, "--directory", tmp_path, LONG)
    else:
        run(find_program("bsdtar"), "-xf", large, "-C", tmp_path, LONG)

    assert (tmp_path / LONG).read_bytes() == b""


def test_members_carry_the_time_of_the_checkpoint(path: Path) -> None:
    with tarfile.open(path, "r:") as tar:
        times = {datetime.fromtimestamp(member.mtime, UTC) for member in tar}

    assert times == {NOON}


def test_cat_after_cat_is_still_a_tar_for_those_who_ignore_zeros(path: Path, tmp_path: Path) -> None:
    twice = tmp_path / "twice.tar"
    twice.write_bytes(path.read_bytes() * 2)

    names = run(find_program("tar"), "--list", "--ignore-zeros", "--file", twice).split()

    assert len(names) == 2 * len(list_with_tarfile(path))
