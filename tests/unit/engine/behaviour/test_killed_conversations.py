"""What ``keep`` and ``reward`` returned for is there after SIGKILL, whole, and nothing else is."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from chockstone.engine.conversations import Conversations

_ENDLESS = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from chockstone.engine.conversations import Conversations
from support.engine.stored_answers import stored_answer, stored_choice

async def talk(conversations, number):
    while True:
        logprobs = tuple(-i / 2**9 for i in range(300))
        kept = await conversations.keep(stored_answer(choices=[stored_choice((number,) * 300, logprobs)]))
        print("kept", kept, number, flush=True)
        await conversations.reward("ada", kept, float(number))
        print("rewarded", kept, number, flush=True)

async def main():
    conversations = Conversations(Path({directory!r}))
    await asyncio.gather(*(talk(conversations, number) for number in range(8)))

asyncio.run(main())
"""


async def test_what_was_acknowledged_outlives_a_killed_process(tmp_path: Path) -> None:
    directory = tmp_path / "conversations"
    program = _ENDLESS.format(tests=str(Path(__file__).parents[3]), directory=str(directory))
    kept: dict[str, int] = {}
    rewarded: set[str] = set()
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(random.uniform(0.0, 0.2))  # a kill at any moment of a write
            os.kill(process.pid, signal.SIGKILL)
            for line in process.stdout.read().splitlines():
                words = line.split()
                if len(words) == 3 and words[0] == "kept":
                    kept[words[1]] = int(words[2])
                elif len(words) == 3:
                    rewarded.add(words[1])

    conversations = Conversations(directory)
    found = {each.conversation_id: each async for each in conversations.read_all("ada")}
    use = await conversations.use("ada")
    conversations.stop()

    assert len(kept) > 3
    assert kept.keys() | rewarded <= found.keys()
    for conversation_id, each in found.items():
        (choice,) = each.answer.choices
        number = choice.tokens[0]
        assert choice.tokens == (number,) * 300
        assert choice.logprobs == tuple(-i / 2**9 for i in range(300))
        possible = [float(number)] if conversation_id in rewarded else [None, float(number)]
        assert each.feedback_on(0).reward in possible
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert len(files) == use.count == len(found)
