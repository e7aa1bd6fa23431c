from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.cli.store_commands import run

COMMANDS = ["ls", "show", "verify", "export", "rm", "gc", "diff"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches_by_example_and_names_the_exit_codes(command: str) -> None:
    result = run(command, "--help")

    assert result.exit_code == 0
    assert re.search(rf"^    chockstone checkpoints {command} \S", result.stdout, re.MULTILINE)
    assert "Exit codes: 0 success" in result.stdout


def test_commands_load_only_what_they_need(store: Path) -> None:
    program = (
        "import sys\n"
        "import chockstone.cli.app\n"
        "assert not {'numpy', 'torch', 'xxhash', 'rich'} & set(sys.modules)\n"
        "sys.argv = ['chockstone', 'checkpoints', *sys.argv[1:]]\n"
        "try:\n"
        "    chockstone.cli.main()\n"
        "except SystemExit as end:\n"
        "    assert not end.code, end.code\n"
        "assert 'torch' not in sys.modules\n"
    )

    for words in (["verify", store], ["show", store, "run-1/step-00000000"], ["ls", store]):
        subprocess.run([sys.executable, "-c", program, *words], check=True, timeout=60, stdout=subprocess.DEVNULL)
