"""The loop of the guide "Save from asynchronous trainers" is killed, and trains on every sample once all the same."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

GUIDE = Path(__file__).parents[1] / "docs" / "guides" / "async-trainers.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LIVE = """
import json, os, signal, sys


class Mortal(Run):
    async def make_step(self, batch):
        await super().make_step(batch)
        if self.step == int(sys.argv[1]):
            os.kill(os.getpid(), signal.SIGKILL)

    def restore(self, saved):
        super().restore(saved)
        self.resumed_from = self.step


Run = Mortal
run = asyncio.run(attempt("./killed"))
print(json.dumps([run.resumed_from, run.ledger, PROBLEMS, BATCH * STEPS]))
"""


def live(directory: Path, *, killed_after: int) -> str:
    """What one process says, which runs loader, loop and attempt as the guide has them."""
    blocks = BLOCK.findall(GUIDE.read_text())
    ends = next(number for number, block in enumerate(blocks) if block.startswith("async def attempt("))
    code = "\n".join(blocks[: ends + 1]).partition("\nuninterrupted = ")[0] + LIVE
    command = [sys.executable, "-W", "error", "-c", code, str(killed_after)]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True)
    assert done.returncode == (-9 if killed_after else 0), done.stderr
    return done.stdout


def test_the_loop_of_the_guide_trains_on_every_sample_once_although_it_is_killed(tmp_path: Path) -> None:
    live(tmp_path, killed_after=8)
    said = live(tmp_path, killed_after=0)

    resumed_from, ledger, problems, count = json.loads(said.splitlines()[-1])
    first_epoch = {problem for epoch, problem in ledger[:problems] if epoch == 0}
    assert 0 < resumed_from < 8
    assert len(ledger) == count
    assert len({(epoch, problem) for epoch, problem in ledger}) == count, "trained twice"
    assert first_epoch == set(range(problems)), "skipped, or out of order"
    assert [epoch for epoch, _ in ledger] == [number // problems for number in range(count)], "skipped"
