from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from chockstone.backends.export.published_adapters import DirectoryTaken, PublishedAdapters
from chockstone.checkpoints import open_store
from chockstone.wire.failures import BadRequest, ServerFailure
from support.backends.saving import open_desk
from support.tiny_models import lora_run, tiny_base


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the archives one, two and three, and a copy of the first."""
    directory = tmp_path_factory.mktemp("store")
    with open_desk(directory) as desk:
        for rank, name in enumerate(("one", "two", "three"), start=2):
            desk.save(lora_run(tiny_base(), rank=rank), name, kind="sampler_weights")
    open_store(directory).copy("one", "copy")
    return directory


class Publishing:
    def __init__(self, store: Path, directory: Path, *, most: int = 2, is_shared: bool = False) -> None:
        self.directory = directory
        self.left: list[str] = []
        self.adapters = PublishedAdapters(
            open_store(store), directory, most=most, on_leaving=self._leave, is_shared=is_shared
        )
        self.adapters.open()

    async def _leave(self, name: str) -> None:
        assert (self.directory / name).is_dir(), "files go last"
        self.left.append(name)

    async def use(self, archive: str) -> str:
        async with self.adapters.lent(archive) as files:
            assert sorted(path.name for path in Path(files.directory).iterdir()) == [
                "adapter_config.json",
                "adapter_model.safetensors",
            ]
            return files.name

    def there(self) -> set[str]:
        return {path.name for path in self.directory.iterdir() if path.is_dir()}


@pytest.fixture
def publishing(store: Path, tmp_path: Path) -> Iterator[Publishing]:
    made = Publishing(store, tmp_path / "adapters")
    yield made
    made.adapters.close()
    assert not made.there()


async def test_files_are_made_once_and_named_for_what_they_hold(publishing: Publishing) -> None:
    names = await asyncio.gather(*(publishing.use(archive) for archive in ("one", "one", "copy", "two")))

    assert names[0] == names[1] == names[2] != names[3]
    assert publishing.there() == set(names)


async def test_what_was_unused_for_longest_makes_room(publishing: Publishing) -> None:
    one, two = [await publishing.use(archive) for archive in ("one", "two")]
    await publishing.use("one")

    three = await publishing.use("three")

    assert publishing.left == [two]
    assert publishing.there() == {one, three}
    assert await publishing.use("two") == two


async def test_what_is_in_use_stays_until_it_is_not(publishing: Publishing) -> None:
    async with publishing.adapters.lent("one") as files:
        await publishing.use("two")
        await publishing.use("three")
        forgetting = asyncio.create_task(publishing.adapters.forget("one"))
        await asyncio.sleep(0.01)

        assert files.name in publishing.there()
    await forgetting

    assert files.name not in publishing.there()


async def test_a_copy_keeps_the_files_that_it_shares(publishing: Publishing) -> None:
    name = await publishing.use("one")
    await publishing.use("copy")

    await publishing.adapters.forget("one")
    assert (publishing.left, publishing.there()) == ([], {name})
    await publishing.adapters.forget("copy")

    assert (publishing.left, publishing.there()) == ([name], set())


async def test_what_cannot_be_read_is_told_as_a_load_would_tell_it_and_tried_again(
    publishing: Publishing, store: Path
) -> None:
    with pytest.raises(BadRequest) as missing:
        await publishing.use("four")
    (store / "four.tar").write_bytes(b"x" * 100_000)
    with pytest.raises(ServerFailure) as damaged:
        await publishing.use("four")
    (store / "four.tar").write_bytes((store / "one.tar").read_bytes())

    await publishing.use("four")

    assert (missing.value.code, damaged.value.code) == ("missing", "damaged")


async def test_what_a_killed_server_left_is_removed_and_what_is_others_stays(store: Path, tmp_path: Path) -> None:
    left = tmp_path / "adapters" / f"chockstone-{'0' * 64}"
    left.mkdir(parents=True)
    (tmp_path / "adapters" / ".export-0123456789abcdef.partial").mkdir()
    (tmp_path / "adapters" / "theirs").mkdir()

    publishing = Publishing(store, tmp_path / "adapters")
    publishing.adapters.close()

    assert sorted(path.name for path in (tmp_path / "adapters").iterdir()) == [".lock", "theirs"]


def test_a_directory_is_one_servers_at_a_time(publishing: Publishing, store: Path) -> None:
    with pytest.raises(DirectoryTaken, match="another server publishes"):
        Publishing(store, publishing.directory)


@pytest.mark.parametrize("is_shared", [False, True])
async def test_only_a_shared_directory_is_for_other_users(store: Path, tmp_path: Path, is_shared: bool) -> None:
    before = os.umask(0o077)  # as a server has it
    try:
        publishing = Publishing(store, tmp_path / "adapters", is_shared=is_shared)
        published = tmp_path / "adapters" / await publishing.use("one")
        modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "adapters", published, *published.iterdir())]
        publishing.adapters.close()
    finally:
        os.umask(before)

    assert modes == ([0o755, 0o755, 0o644, 0o644] if is_shared else [0o700, 0o700, 0o600, 0o600])
