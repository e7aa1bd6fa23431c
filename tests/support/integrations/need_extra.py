"""Skips a module of tests where the packages of an extra are not installed."""

from __future__ import annotations

import os

import pytest

from chockstone.extras import ExtraMissing, require


def need_extra(extra: str, *, in_ci: bool = True) -> None:
    """Skip the module where a package of the extra is absent. ``in_ci``: it must not be absent there."""
    try:
        require(extra, "this test")
    except ExtraMissing as missing:
        if in_ci and os.environ.get("CI"):
            pytest.fail(str(missing))
        pytest.skip(str(missing), allow_module_level=True)
