from __future__ import annotations

import pytest

from chockstone.extras import ExtraMissing
from chockstone.lazy_names import lazy_names


def test_a_name_is_imported_from_its_home() -> None:
    find = lazy_names("chockstone", {"require": "extras"})

    assert find("require").__module__ == "chockstone.extras"


def test_another_name_is_an_attribute_error() -> None:
    find = lazy_names("chockstone", {"require": "extras"})

    with pytest.raises(AttributeError, match="module 'chockstone' has no attribute 'other'"):
        find("other")


def test_a_missing_extra_is_named_before_anything_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chockstone.extras.is_installed", lambda _: False)
    find = lazy_names("chockstone", {"require": "does_not_exist"}, needs="jax")

    with pytest.raises(ExtraMissing, match=r"chockstone\[jax\]"):
        find("require")


def test_a_function_may_decide_what_is_missing() -> None:
    asked: list[str] = []
    find = lazy_names("chockstone", {"require": "extras"}, needs=asked.append)

    find("require")

    assert asked == ["chockstone"]
