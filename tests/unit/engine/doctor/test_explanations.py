from __future__ import annotations

from chockstone.engine.doctor.explanations import EXPLANATIONS
from chockstone.engine.doctor.findings import FindingKind


def test_every_kind_of_finding_is_explained() -> None:
    assert set(EXPLANATIONS) == set(FindingKind)
