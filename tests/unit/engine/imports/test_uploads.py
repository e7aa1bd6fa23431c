from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from chockstone.catalog import RowMissing
from chockstone.engine.imports.uploads import WeightUpload, WeightUploads, new_upload_id
from chockstone.wire.failures import BadRequest

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def upload(expires_at: datetime = NOW + timedelta(hours=1), **facts: int) -> WeightUpload:
    return WeightUpload(
        upload_id=new_upload_id(),
        owner="ann",
        run_id="s:train:0",
        name="imported",
        base_model="tiny",
        spec={"rank": 4},
        optimizer={"type": "adamw"},
        project_id=None,
        files=facts or {"a": 10},
        expires_at=expires_at,
    )


def test_an_upload_is_known_to_the_next_server(tmp_path: Path) -> None:
    made = upload()
    WeightUploads(tmp_path / "uploads").add(made, reserve_bytes=0)

    uploads = WeightUploads(tmp_path / "uploads")
    assert uploads.get(made.upload_id) == made
    assert uploads.all() == [made]


def test_a_file_appears_whole_and_replaces_the_one_before(tmp_path: Path) -> None:
    uploads, made = WeightUploads(tmp_path / "uploads"), upload()
    uploads.add(made, reserve_bytes=0)

    with uploads.receiving(made, "a") as file:
        file.write(b"first")
        assert not uploads.path(made, "a").exists()
    with uploads.receiving(made, "a") as file:
        file.write(b"second")

    assert uploads.path(made, "a").read_bytes() == b"second"


def test_a_file_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    uploads, made = WeightUploads(tmp_path / "uploads"), upload()
    uploads.add(made, reserve_bytes=0)

    with pytest.raises(ConnectionError), uploads.receiving(made, "a") as file:
        file.write(b"half")
        raise ConnectionError

    assert [each.name for each in (tmp_path / "uploads" / made.upload_id).iterdir()] == ["upload.json"]


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "\0", "ü"])
def test_a_name_that_is_no_upload_is_not_there(name: str, tmp_path: Path) -> None:
    with pytest.raises(RowMissing):
        WeightUploads(tmp_path).get(name)


def test_expired_uploads_are_swept_and_at_the_start_what_a_killed_server_left(tmp_path: Path) -> None:
    uploads, old, new = WeightUploads(tmp_path / "uploads"), upload(NOW), upload()
    for each in (old, new):
        uploads.add(each, reserve_bytes=0)
    (tmp_path / "uploads" / "0f").mkdir()
    half = tmp_path / "uploads" / new.upload_id / "a.part-0f"
    half.write_bytes(b"half")

    assert uploads.sweep(NOW) == [old.upload_id]
    assert uploads.sweep(NOW, is_start=True) == ["0f"]
    assert uploads.all() == [new] and not half.exists()
    with pytest.raises(RowMissing), uploads.receiving(old, "a"):
        raise AssertionError("it is not there")


def test_the_sweep_of_a_start_leaves_an_upload_that_begins_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploads, begun = WeightUploads(tmp_path / "uploads"), upload()
    listed = uploads.all()

    def begin_after_listing() -> list[WeightUpload]:
        uploads.add(begun, reserve_bytes=0)
        return listed

    with monkeypatch.context() as patch:
        patch.setattr(uploads, "all", begin_after_listing)
        assert uploads.sweep(NOW, is_start=True) == []
    with uploads.receiving(begun, "a") as file:
        file.write(b"half")
        assert uploads.sweep(NOW, is_start=True) == []

    assert uploads.path(begun, "a").read_bytes() == b"half"


def test_the_sweep_of_a_start_leaves_the_facts_of_an_upload_that_are_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploads, begun = WeightUploads(tmp_path / "uploads"), upload()
    write, swept = Path.write_text, []

    def write_and_sweep(path: Path, text: str) -> int:
        size = write(path, text)
        swept.append(uploads.sweep(NOW, is_start=True))
        return size

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", write_and_sweep)
        uploads.add(begun, reserve_bytes=0)

    assert swept == [[]]
    assert uploads.all() == [begun]


def test_an_upload_that_does_not_fit_on_the_disk_is_refused(tmp_path: Path) -> None:
    uploads = WeightUploads(tmp_path / "uploads")

    with pytest.raises(BadRequest, match="disk of this server") as refused:
        uploads.add(replace(upload(), files={"a": 1 << 60}), reserve_bytes=0)

    assert refused.value.code == "no_room"
    assert uploads.all() == []
