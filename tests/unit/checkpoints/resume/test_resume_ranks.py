"""Several processes, one decision: real ones, over gloo."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from chockstone.checkpoints.errors import ResumeBlocked, ResumeError
from chockstone.checkpoints.resume.resume_ranks import ResumeRanks
from chockstone.extras import is_installed

# One process pays for the import of torch and forks the ranks, which do not share anything else.
NURSERY = """
import json, os, signal, sys, time, traceback
from datetime import timedelta

import torch.distributed as distributed

from chockstone.checkpoints import errors
from chockstone.checkpoints.resume.resume_ranks import ResumeRanks as Ranks

directory, world_size, code = sys.argv[1], int(sys.argv[2]), sys.argv[3]


def tell(**what):
    print(json.dumps(what), flush=True)


def attempt(work):
    try:
        tell(result=work())
    except errors.CheckpointError as error:
        tell(kind=type(error).__name__, text=str(error), verdict=str(getattr(error, "verdict", "")))


def live(rank):
    for stream, name in ((1, "said"), (2, "errors")):
        os.dup2(os.open(f"{directory}/{name}-{rank}", os.O_CREAT | os.O_WRONLY), stream)
    store = distributed.FileStore(f"{directory}/meeting", world_size)
    distributed.init_process_group(
        "gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=200)
    )
    store.add("connected", 1)
    while store.add("connected", 0) < world_size:  # one that dies at once would take those with it who still connect
        time.sleep(0.005)
    exec(code, globals() | {"rank": rank, "ranks": Ranks.found(0, 1)})
    distributed.barrier()  # leave together
    distributed.destroy_process_group()


def be_born(rank):
    if child := os.fork():
        return child
    try:
        signal.alarm(240)  # nobody outlives the test
        live(rank)
        sys.stdout.flush()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


children = [be_born(rank) for rank in range(world_size)]
print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]))
"""


@dataclass
class Told:
    """What a process said, line by line, and how it ended."""

    said: list[dict[str, Any]]
    returncode: int
    errors: str


def run_ranks(directory: Path, count: int, code: str) -> list[Told]:
    """``code`` in ``count`` processes at once."""
    if not is_installed("torch"):
        pytest.skip("several processes need torch.distributed")
    environ = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-c", NURSERY, str(directory), str(count), code]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=280)
    assert done.returncode == 0, done.stderr
    return [
        Told(
            [json.loads(line) for line in (directory / f"said-{rank}").read_text().splitlines()],
            returncode,
            (directory / f"errors-{rank}").read_text(),
        )
        for rank, returncode in enumerate(json.loads(done.stdout))
    ]


def test_all_ranks_hear_the_decision_of_the_first_which_alone_makes_it(tmp_path: Path) -> None:
    told = run_ranks(
        tmp_path,
        8,
        """
def look():
    tell(looked=ranks.rank)
    return "attempt-00003/000007-0001 ✓ " + "0" * 70_000

attempt(lambda: ranks.decide(look))
attempt(lambda: ranks.share("" if ranks.leads else None))
attempt(lambda: ranks.all_agree(True, "not to be said"))
""",
    )

    assert [each.returncode for each in told] == [0] * 8, told[0].errors
    assert [line for each in told for line in each.said if "looked" in line] == [{"looked": 0}]
    decision = {"result": "attempt-00003/000007-0001 ✓ " + "0" * 70_000}
    assert [each.said[-3:] for each in told] == [[decision, {"result": ""}, {"result": None}]] * 8


def test_an_error_of_the_first_is_the_same_error_on_all_and_they_can_go_on(tmp_path: Path) -> None:
    told = run_ranks(
        tmp_path,
        4,
        """
class Stricter(errors.ResumeBlocked):
    pass

def fail(error):
    def work():
        raise error
    return lambda: ranks.decide(work)

attempt(fail(errors.ResumeBlocked("s3://b/run answers 403", verdict="DENIED")))
attempt(fail(Stricter("no answer", verdict="UNREACHABLE")))
attempt(fail(errors.ResumeExhausted("all 3 are damaged")))
attempt(fail(errors.Superseded("attempt 4 has taken over")))
attempt(fail(errors.StoreDenied("no s3:ListBucket")))
try:
    fail(KeyError("step"))()
except KeyError as error:
    tell(own=str(error))
except errors.ResumeError as error:
    tell(heard=str(error))
attempt(lambda: ranks.decide(lambda: "still here"))
""",
    )

    assert [each.returncode for each in told] == [0] * 4, told[0].errors
    kinds = ["ResumeBlocked", "ResumeBlocked", "ResumeExhausted", "Superseded", "StoreDenied"]
    for each in told[1:]:
        assert [line["kind"] for line in each.said[:5]] == kinds
        assert [line["text"] for line in each.said[:5]] == [line["text"] for line in told[0].said[:5]]
        assert [line["verdict"] for line in each.said[:2]] == ["DENIED", "UNREACHABLE"]
        assert each.said[5] == {"heard": "rank 0 failed while it looked where to resume: KeyError: 'step'"}
    assert told[0].said[1]["kind"] == "Stricter", "its own, as it was"
    assert told[0].said[5] == {"own": "'step'"}
    assert [each.said[6] for each in told] == [{"result": "still here"}] * 4


def test_one_rank_that_cannot_restore_stops_all_and_is_named(tmp_path: Path) -> None:
    told = run_ranks(
        tmp_path,
        6,
        """
attempt(lambda: ranks.all_agree(rank != 4, "block 12 differs from its digest"))
attempt(lambda: ranks.all_agree(rank == 0, "ä" * 5000))
attempt(lambda: ranks.all_agree(True))
""",
    )

    assert [each.returncode for each in told] == [0] * 6, told[0].errors
    assert [each.said for each in told] == [told[0].said] * 6
    first, second, third = told[0].said
    assert first["kind"] == "ResumeError"
    assert first["text"].startswith("rank 4 of 6 could not continue")
    assert "rank 4: block 12 differs from its digest" in first["text"]
    assert second["text"].startswith("ranks 1, 2, 3, 4, 5 of 6 could not continue")
    assert second["text"].endswith("and 1 more")
    assert third == {"result": None}


def test_a_rank_that_dies_stops_the_others(tmp_path: Path) -> None:
    told = run_ranks(
        tmp_path,
        4,
        """
attempt(lambda: ranks.decide(lambda: "go"))
if rank == 2:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    ranks.all_agree(True)
    tell(went_on=True)
except errors.ResumeError as error:
    tell(kind=type(error).__name__, text=str(error))
os._exit(0)  # the group is broken: nothing to take leave of
""",
    )

    assert told[2].returncode == -signal.SIGKILL
    others = [told[rank] for rank in (0, 1, 3)]
    assert [each.returncode for each in others] == [0] * 3, others[0].errors
    for each in others:
        assert each.said[0] == {"result": "go"}
        assert each.said[1]["kind"] == "ResumeError"
        assert "lost the others" in each.said[1]["text"]


def test_the_first_that_dies_while_it_looks_stops_the_others(tmp_path: Path) -> None:
    told = run_ranks(
        tmp_path,
        4,
        """
attempt(lambda: ranks.decide(lambda: os.kill(os.getpid(), signal.SIGKILL)))
os._exit(0)
""",
    )

    assert told[0].returncode == -signal.SIGKILL
    for each in told[1:]:
        assert each.returncode == 0, each.errors
        assert "lost the others" in each.said[0]["text"]


def test_a_rank_other_than_that_of_torch_is_refused(tmp_path: Path) -> None:
    told = run_ranks(
        tmp_path,
        2,
        """
attempt(lambda: Ranks(rank, 4).share("go" if rank == 0 else None))
attempt(lambda: Ranks(1 - rank, 2).decide(lambda: tell(wrote=rank)))
""",
    )

    for rank, each in enumerate(told):
        assert each.returncode == 0, each.errors
        assert f"rank {rank} of 4 to Resume and rank {rank} of 2 to torch.distributed" in each.said[0]["text"]
        assert [line["kind"] for line in each.said] == ["ResumeError", "ResumeError"], "and before anything was written"


def test_without_a_process_group_the_error_says_what_to_call() -> None:
    with pytest.raises(ResumeError, match=r"rank 0 of 4 .* call torch\.distributed\.init_process_group\(\)"):
        ResumeRanks(0, 4).decide(lambda: pytest.fail("it must not decide alone"))
    with pytest.raises(ResumeError, match="rank 1 of 4"):
        ResumeRanks(1, 4).share(None)
    with pytest.raises(ResumeError, match="rank 3 of 4"):
        ResumeRanks(3, 4).all_agree(True)


def test_one_process_alone_needs_no_torch() -> None:
    code = """
import sys
from chockstone.checkpoints.errors import ResumeError
from chockstone.checkpoints.resume.resume_ranks import ResumeRanks as Ranks

ranks = Ranks.found(0, 1)
assert ranks == Ranks() and ranks.leads
assert ranks.decide(lambda: "a") == ranks.share("a") == "a"
ranks.all_agree(True)
try:
    ranks.all_agree(False, "no room")
except ResumeError as error:
    assert str(error) == "no room"
else:
    raise AssertionError
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120)

    assert done.returncode == 0, done.stderr


def test_alone_an_error_stays_what_it_is() -> None:
    blocked = ResumeBlocked("403", verdict="DENIED", report="the report")

    def work() -> str:
        raise blocked

    with pytest.raises(ResumeBlocked) as raised:
        ResumeRanks().decide(work)

    assert raised.value is blocked


@pytest.mark.parametrize(("rank", "world_size"), [(-1, 1), (1, 1), (0, 0), (4, 2)])
def test_a_rank_outside_of_its_world_is_refused(rank: int, world_size: int) -> None:
    with pytest.raises(ResumeError, match=f"rank {rank} is not one of a world of {world_size}"):
        ResumeRanks(rank, world_size)


def test_rank_0_must_have_something_to_say() -> None:
    with pytest.raises(ResumeError, match="nothing to share"):
        ResumeRanks().share(None)
