"""A missing program is named, and is a failure where nothing may be skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.programs import PACKAGES, find_program


@pytest.mark.parametrize("name", PACKAGES)
def test_a_missing_program_and_its_package_are_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)

    with pytest.raises(pytest.skip.Exception, match=f"{name!r} is not installed.* {PACKAGES[name]!r}"):
        find_program(name)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=f"{name!r} is not installed.* {PACKAGES[name]!r}"):
        find_program(name)


def test_a_program_is_found_elsewhere_first(tmp_path: Path) -> None:
    (tmp_path / "tar").write_text("#!/bin/sh\n")
    (tmp_path / "tar").chmod(0o755)

    assert find_program("tar", also=(tmp_path,)) == str(tmp_path / "tar")
