from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from chockstone.cli.app import app
from chockstone.cli.output.exit_codes import ExitCode
from support.adapters import adapter_files


def test_a_dry_run_prints_what_is_in_the_directory(tmp_path: Path) -> None:
    for name, content in adapter_files().items():
        (tmp_path / name).write_bytes(content)

    done = CliRunner().invoke(app, ["import", str(tmp_path), "--model", "tiny", "--dry-run", "--json"])

    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert (document["format"], document["rank"], document["dry_run"]) == ("PEFT", 4, True)


def test_a_directory_without_weights_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["import", str(tmp_path), "--model", "tiny"])

    assert done.exit_code == ExitCode.FAILED
    assert "holds no weights" in done.stderr
