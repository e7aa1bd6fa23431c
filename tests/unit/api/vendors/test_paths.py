from __future__ import annotations

import pytest

from chockstone.api.vendors.paths import Vendor, vendor_of


@pytest.mark.parametrize(
    ("path", "vendor"),
    [
        ("/v1", Vendor.OPENAI),
        ("/v1/chat/completions", Vendor.OPENAI),
        ("/oai/api/v1/models", Vendor.OPENAI),
        ("/anthropic/v1/messages", Vendor.ANTHROPIC),
        ("/anthropic/api/v1/messages", Vendor.ANTHROPIC),
        ("/anthropic", Vendor.ANTHROPIC),
        ("/", None),
        ("", None),
        ("/api/v1/asample", None),
        ("/v10/models", None),
        ("/anthropics/x", None),
        ("//v1/models", None),
        ("/console/v1", None),
    ],
)
def test_the_first_part_of_a_path_says_whose_it_is(path: str, vendor: Vendor | None) -> None:
    assert vendor_of(path) is vendor
