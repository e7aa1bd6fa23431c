"""What the guide "Resume on Slurm, Kubernetes and spot instances" shows: the example is killed and goes on, under a
shell, a Slurm that is played, and a real torchrun; scripts and manifests are what their readers can read."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import yaml

from chockstone.checkpoints.resume.platforms import JobIdentity

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "docs" / "guides" / "resume-anywhere.md"
EXAMPLE = ROOT / "examples" / "resume.py"
SCRIPT = ROOT / "examples" / "resume.sbatch"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
KNOWN = ("SLURM_", "SKYPILOT_", "JOBSET_", "TORCHELASTIC_", "KUBERNETES_", "JOB_COMPLETION_INDEX", "RANK", "WORLD_SIZE")
QUICK = ["--steps", "40", "--save-every", "5", "--pause", "0.02"]


def blocks(language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(GUIDE.read_text()) if kind == language]


def environment(**more: str) -> dict[str, str]:
    """Ours without what a scheduler may have set around the tests."""
    return {name: value for name, value in os.environ.items() if not name.startswith(KNOWN)} | more


@contextmanager
def started(command: list[str], environ: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A process in a group of its own, none of which is left when this ends."""
    process = subprocess.Popen(
        command,
        env=environ,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def read_until(process: subprocess.Popen[str], line: str) -> list[str]:
    assert process.stdout is not None
    said = []
    for each in process.stdout:
        said.append(each.rstrip())
        if each.startswith(line):
            return said
    raise AssertionError("\n".join(said))


def run(command: list[str], environ: dict[str, str]) -> list[str]:
    with started(command, environ) as process:
        said, _ = process.communicate(timeout=200)
    assert process.returncode == 0, said
    return said.splitlines()


def last_step(said: list[str]) -> int:
    return max(int(line.split()[1]) for line in said if line.startswith("step "))


def where(said: list[str]) -> int:
    """The step after which a process went on."""
    (line,) = {line for line in said if line.startswith(("resumed after step ", "a fresh start"))}
    return 0 if line == "a fresh start" else int(line.split()[-1])


def result(said: list[str]) -> str:
    (line,) = {line for line in said if line.startswith("done: ")}
    return line


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the training comes to if nobody kills it."""
    return result(
        run([sys.executable, str(EXAMPLE), str(tmp_path_factory.mktemp("alone") / "run"), *QUICK], environment())
    )


def test_the_example_goes_on_after_each_kill_and_ends_with_the_same_weights(tmp_path: Path, undisturbed: str) -> None:
    command = [sys.executable, str(EXAMPLE), str(tmp_path / "run"), *QUICK]
    begun = []
    for kill_at in (13, 27):
        with started(command, environment()) as process:
            said = read_until(process, f"step {kill_at} ")
            process.kill()
        begun.append(where(said))

    said = run(command, environment())

    begun.append(where(said))
    assert begun == sorted(begun)
    assert begun[0] == 0
    assert 5 <= begun[1] <= 13
    assert 15 <= begun[2] <= 27
    assert result(said) == undisturbed


def test_the_loop_of_a_shell_ends_when_the_training_has(tmp_path: Path) -> None:
    loop = next(text for text in blocks("bash") if text.startswith("until "))
    command = f"{sys.executable} examples/resume.py {tmp_path / 'run'} --steps 3 --save-every 2 --pause 0"
    script, count = re.subn(r"python examples/resume\.py \S+(?=;)", command, loop)
    assert count == 1

    assert result(run(["bash", "-c", script], environment()))


def play_slurm(directory: Path) -> Path:
    """An srun that runs and an scontrol that notes what it was asked."""
    bin_directory = directory / "bin"
    bin_directory.mkdir()
    commands = {
        "srun": 'SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0 exec "$@"',
        "scontrol": f'echo "$@" >> {directory / "asked"}',
    }
    for name, text in commands.items():
        path = bin_directory / name
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return bin_directory


def test_the_script_for_slurm_goes_on_in_its_next_attempt_and_asks_for_it_when_the_time_is_up(
    tmp_path: Path, undisturbed: str
) -> None:
    path = f"{play_slurm(tmp_path)}:{os.environ['PATH']}"
    job = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NAME": "run-7", "SLURM_NTASKS": "8", "SLURM_PROCID": "0"}
    array = {"SLURM_ARRAY_JOB_ID": "4700", "SLURM_ARRAY_TASK_ID": "3"}
    environ = environment(**job, **array, PATH=path, RUNS=str(tmp_path / "runs"), PYTHON=sys.executable)
    command = ["bash", str(SCRIPT), *QUICK]

    with started(command, environ) as process:
        first = read_until(process, "step 17 ")
        os.kill(process.pid, signal.SIGUSR1)  # as Slurm does, to the script alone
        deadline = time.monotonic() + 60
        while not (tmp_path / "asked").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
    second = run(command, environ | {"SLURM_RESTART_COUNT": "1"})

    assert (tmp_path / "asked").read_text() == "requeue 4711\n"
    assert where(first) == 0
    assert where(second) >= 10, "the save of step 15 may be under way when the first attempt ends"
    assert result(second) == undisturbed
    root = tmp_path / "runs" / "run-7-4700_3"
    assert root.name.endswith(JobIdentity.read(environ).job or "none"), "as the library names the job"
    assert sorted(path.name.partition(".")[0] for path in root.iterdir()) == ["attempt-00000", "attempt-00001"]


@pytest.mark.soak
def test_torchrun_starts_its_workers_again_and_all_of_them_go_on_from_one_step(tmp_path: Path) -> None:
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "--max-restarts",
        "2",
    ]
    command = [*launch, str(EXAMPLE), str(tmp_path / "run"), *QUICK]
    fresh_addresses = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # for ranks that torchrun starts again
    with started(command, environment(GLOO_SOCKET_IFNAME="lo", **fresh_addresses)) as process:
        first = read_until(process, "step 18 ")
        os.kill(child_of(process.pid), signal.SIGKILL)  # one worker; its agent ends the other, and starts both again
        rest, _ = process.communicate(timeout=200)
    second = rest.splitlines()

    assert process.returncode == 0, rest
    assert where(first) == 0
    resumed = [line for line in second if line.startswith("resumed after step ")]
    assert len(resumed) == 2
    assert len(set(resumed)) == 1, "both from one"
    assert int(resumed[0].split()[-1]) >= 10
    assert len({line for line in second if line.startswith("done: ")}) == 1, "and to the same weights"


def child_of(pid: int) -> int:
    """A worker that trains, of the agent ``pid``."""
    children = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    if not children:  # started by another thread of it
        tasks = Path(f"/proc/{pid}/task").glob("*/children")
        children = [int(each) for task in tasks for each in task.read_text().split()]
    return next(each for each in children if "examples/resume.py" in Path(f"/proc/{each}/cmdline").read_text())


def test_shell_blocks_are_shell() -> None:
    for text in [*blocks("bash"), SCRIPT.read_text()]:
        done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)

        assert done.returncode == 0, done.stderr


def test_the_script_of_the_guide_is_the_one_in_examples() -> None:
    assert SCRIPT.read_text() in blocks("bash")


def test_manifests_hand_on_what_the_library_reads() -> None:
    job, job_set, sky = (yaml.safe_load(text) for text in blocks("yaml"))

    assert (job["kind"], job_set["kind"]) == ("Job", "JobSet")
    (replicated,) = job_set["spec"]["replicatedJobs"]
    (container,) = replicated["template"]["spec"]["template"]["spec"]["containers"]
    names = {each["name"]: f"value of {each['name']}" for each in container["env"]}
    assert set(names) == {"JOBSET_RESTART_ATTEMPT", "JOBSET_NAME"}
    seen = JobIdentity.read({"JOBSET_RESTART_ATTEMPT": "1", "JOBSET_NAME": job_set["metadata"]["name"]})
    assert (seen.platform, seen.attempt, seen.job) == ("jobset", 1, "run-7")
    assert sky["resources"]["use_spot"] is True
    assert "$SKYPILOT_TASK_ID" in sky["run"]
    for script in (container["command"][-1], sky["run"], sky["setup"]):
        assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0


def test_every_variable_on_the_page_is_one_that_is_read_or_set_by_its_platform() -> None:
    """A name with a slip in it would be silently ignored by all."""
    names = set(re.findall(r"\b(?:SLURM|SKYPILOT|JOBSET|TORCHELASTIC)_[A-Z_]+", GUIDE.read_text()))
    read = set(re.findall(r"\b[A-Z]+_[A-Z_]+", (ROOT / "src/chockstone/checkpoints/resume/platforms.py").read_text()))

    assert names - read == {"SLURM_JOB_NAME", "SLURM_NTASKS", "SKYPILOT_NUM_GPUS_PER_NODE"} - read
