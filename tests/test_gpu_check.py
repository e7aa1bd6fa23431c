"""The GPU check in its reduced form."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.gpu_check.run import CheckRow, main, render, run_one


def test_the_reduced_form_reports_each_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.md"

    code = main(["--device", "cpu", "--only", "sampling agrees", "--out", str(report)])

    assert code == 0
    assert report.read_text() == capsys.readouterr().out
    assert "# Chockstone GPU check: 1 ok, 0 failed, 0 skipped" in report.read_text()
    assert "| sampling agrees | ok |" in report.read_text()


def test_a_check_that_raises_fails_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_place: object) -> dict[str, str]:
        raise ValueError("other numbers")

    monkeypatch.setattr("benchmarks.gpu_check.run.all_checks", lambda: {"broken": fail})

    assert run_one("broken", "cpu") == {"result": "failed", "numbers": {"reason": "ValueError: other numbers"}}


def test_the_report_counts_and_escapes() -> None:
    rows = [CheckRow("a", "ok", 1.25, {"peak": "3 MiB"}), CheckRow("b", "failed", 0.5, {"reason": "x | y"})]

    report = render(rows, "cpu")

    assert report.startswith("# Chockstone GPU check: 1 ok, 1 failed, 0 skipped")
    assert "| a | ok | 1.2 | peak: 3 MiB |" in report and "reason: x \\| y" in report
