"""F45: the real entrypoints of flytekit run a chain of attempts, as the platform would start them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytest.importorskip("flytekit")

from flyteidl.core import errors_pb2, literals_pb2

from chockstone.integrations.flyte.layouts import LEAF, shard
from support.loopback_s3 import ENVIRONMENT, Fault, Kind, faulty_proxy, make_bucket, s3_server

HERE = Path(__file__).parent
EXECUTE = ["task-module", "chain_task", "task-name"]
RESOLVER = "flytekit.core.python_auto_container.default_task_resolver"
MAP_RESOLVER = "flytekit.core.array_node_map_task.ArrayNodeMapTaskResolver"
FORGET = ("AWS_", "FLYTE_", "_F_", "BATCH_", "CHOCKSTONE_", "RANK", "WORLD_SIZE")


@dataclass(slots=True)
class Runner:
    """Starts attempts of one task whose checkpoints are below ``raw``."""

    home: Path
    raw: str
    environ: dict[str, str] = field(default_factory=dict)

    def path(self, attempt: int) -> str:
        uid = f"feda4e266c748463a97d-n0-{attempt}"
        return f"{self.raw}/{shard(uid)}/{uid}/{LEAF}"

    def run(self, task: str, attempt: int, *, die_at: str = "") -> subprocess.CompletedProcess[str]:
        is_map = task.startswith("mapped")
        index = literals_pb2.Literal(scalar=literals_pb2.Scalar(primitive=literals_pb2.Primitive(integer=2)))
        several = literals_pb2.Literal(collection=literals_pb2.LiteralCollection(literals=[index, index, index]))
        inputs = literals_pb2.LiteralMap(literals={"index": several} if is_map else {})
        (self.home / "inputs.pb").write_bytes(inputs.SerializeToString())
        resolving = ["vars", "", "resolver", RESOLVER, *EXECUTE] if is_map else EXECUTE
        command = [
            str(Path(sys.executable).with_name("pyflyte-map-execute" if is_map else "pyflyte-execute")),
            *("--inputs", str(self.home / "inputs.pb")),
            *("--output-prefix", str(self.outputs(attempt))),
            *("--raw-output-data-prefix", str(self.home / "raw-outputs")),
            *("--checkpoint-path", self.path(attempt)),
            *("--prev-checkpoint", self.path(attempt - 1) if attempt else '""'),
            *("--resolver", MAP_RESOLVER if is_map else RESOLVER),
            *("--", *resolving, task),
        ]
        environ = {name: value for name, value in os.environ.items() if not name.startswith(FORGET)}
        environ |= {
            "PYTHONPATH": str(HERE),
            "FLYTE_INTERNAL_EXECUTION_ID": "feda4e266c748463a97d",
            "FLYTE_INTERNAL_EXECUTION_PROJECT": "project",
            "FLYTE_INTERNAL_EXECUTION_DOMAIN": "development",
            "FLYTE_INTERNAL_TASK_NAME": f"chain_task.{task}",
            "FLYTE_ATTEMPT_NUMBER": str(attempt),
            "TOLD": str(self.home / f"told-{attempt}"),
            "DIE_AT": die_at,
            **self.environ,
        }
        return subprocess.run(command, env=environ, cwd=self.home, capture_output=True, text=True, timeout=180)

    def outputs(self, attempt: int) -> Path:
        return self.home / f"outputs-{attempt}"

    def result(self, attempt: int) -> int:
        content = (self.outputs(attempt) / "outputs.pb").read_bytes()
        return literals_pb2.LiteralMap.FromString(content).literals["o0"].scalar.primitive.integer

    def error(self, attempt: int) -> errors_pb2.ContainerError:
        return errors_pb2.ErrorDocument.FromString((self.outputs(attempt) / "error.pb").read_bytes()).error

    def told(self, attempt: int) -> str:
        return (self.home / f"told-{attempt}").read_text()


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with s3_server() as url:
        make_bucket(url, "flyte")
        yield url


@pytest.fixture(params=["file", "s3"])
def runner(request: pytest.FixtureRequest, tmp_path: Path) -> Runner:
    if request.param == "file":
        return Runner(tmp_path, str(tmp_path / "raw"))
    url: str = request.getfixturevalue("s3")
    return Runner(tmp_path, f"s3://flyte/{uuid.uuid4().hex}", {**ENVIRONMENT, "AWS_ENDPOINT_URL_S3": url})


@pytest.mark.parametrize(
    ("task", "expected"), [("decorated", 3), ("mapped_untouched", 203)], ids=["decorator", "entry-point-map"]
)
def test_F45_after_two_attempts_that_died_at_once_the_next_starts_where_the_first_ended(
    runner: Runner, task: str, expected: int
) -> None:
    if task == "mapped_untouched":
        runner.environ["CHOCKSTONE_FLYTE_AUTO"] = "1"

    assert runner.run(task, 0, die_at="3").returncode == -signal.SIGKILL
    for attempt in (1, 2):
        assert runner.run(task, attempt, die_at="start").returncode == -signal.SIGKILL
    done = runner.run(task, 3)

    assert done.returncode == 0, done.stderr
    assert runner.told(3) == "chockstone.integrations.flyte.checkpointer 3"
    assert runner.result(3) == expected


def test_F45_a_map_task_may_be_decorated_and_a_task_may_call_for_its_checkpoint(tmp_path: Path) -> None:
    runner = Runner(tmp_path, str(tmp_path / "raw"))

    assert runner.run("mapped", 0, die_at="2").returncode == -signal.SIGKILL
    assert runner.run("helped", 2).returncode == 0
    done = runner.run("mapped", 3)

    assert done.returncode == 0, done.stderr
    assert runner.told(3) == "chockstone.integrations.flyte.checkpointer 2"


def test_F37_without_being_asked_for_flytekit_keeps_its_own_checkpoint(tmp_path: Path) -> None:
    runner = Runner(tmp_path, str(tmp_path / "raw"))
    assert runner.run("untouched", 0, die_at="2").returncode == -signal.SIGKILL

    done = runner.run("untouched", 1)

    assert done.returncode == 0, done.stderr
    assert runner.told(1) == "flytekit.core.checkpointer 2"


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault(Kind.STATUS, 403, "AccessDenied"), errors_pb2.ContainerError.NON_RECOVERABLE),
        (Fault(Kind.STATUS, 503, "SlowDown"), errors_pb2.ContainerError.RECOVERABLE),
    ],
    ids=["403", "503"],
)
def test_F17_F19_flyte_is_told_whether_another_attempt_is_worth_its_while(
    s3: str, tmp_path: Path, fault: Fault, kind: int
) -> None:
    with faulty_proxy(s3) as proxy:
        environ = {**ENVIRONMENT, "AWS_ENDPOINT_URL_S3": proxy.url}
        runner = Runner(tmp_path, f"s3://flyte/{uuid.uuid4().hex}", environ)
        proxy.inject(fault, method="GET", containing="n0-0")

        runner.run("decorated", 1)

    assert runner.error(1).kind == kind, runner.error(1).message
    assert "nothing older is taken" in runner.error(1).message


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kills", [8, pytest.param(150, marks=pytest.mark.soak)])
def test_F11_F12_no_kill_costs_more_than_the_save_it_fell_into(runner: Runner, kills: int) -> None:
    command = [sys.executable, str(HERE / "killing.py"), runner.raw, str(kills), "7"]

    done = subprocess.run(command, env={**os.environ, **runner.environ}, capture_output=True, text=True, timeout=1100)

    assert done.returncode == 0, done.stderr
    saved, found = 0, []
    for line in done.stdout.splitlines():
        word, number = line.split(maxsplit=1)
        assert word in {"found", "saved"}, line
        if word == "found":
            found.append(int(number))
            assert saved <= int(number) <= saved + 1, done.stdout
        saved = int(number)
    assert len(found) == kills + 1
    assert saved > 1
