from __future__ import annotations

from pathlib import Path

from chockstone.cli.models.directory import count_parameters, format_parameters


def test_foreign_weights_are_not_counted(tmp_path: Path) -> None:
    for index, content in enumerate((b"", b"\xff" * 64, b"\x02\0\0\0\0\0\0\0[]", b"\x09\0\0\0\0\0\0\0" + b'{"a": {}}')):
        directory = tmp_path / str(index)
        directory.mkdir()
        (directory / "model.safetensors").write_bytes(content)

        assert count_parameters(directory) is None


def test_parameters_are_spelled_shortly() -> None:
    assert [format_parameters(count) for count in (7, 999_999, 1_049_000, 99_960_000, 595_776_512, 8_190_735_360)] == [
        "7",
        "1.0M",
        "1.0M",
        "100M",
        "596M",
        "8.2B",
    ]
