"""Commands are written in the bytes of version 0.1.0, and read from what any version wrote."""

from __future__ import annotations

import orjson
import pytest

from chockstone.engine.runs.commands import (
    CloseRun,
    Command,
    ForwardBackward,
    Load,
    LoadSource,
    OpenRun,
    Save,
    SnapshotWeights,
    StepOptimizer,
    UnknownCommand,
    read_command,
)
from chockstone.engine.storage.verification import SkippedCheckpointRow
from chockstone.wire.paths import TinkerPath

PATH = "tinker://s:train:0/weights/a"
SOURCE = LoadSource("s:train:0", "weights", "a", PATH, 7, "tiny")
SOURCE_JSON = (
    b'"source":{"run_id":"s:train:0","kind":"weights","name":"a","path":"tinker://s:train:0/weights/a","save_id":7,'
    b'"base_model":"tiny"}'
)
SKIPPED = (SkippedCheckpointRow("tinker://s:train:0/weights/b", "a digest differs"),)
SKIPPED_JSON = b'"skipped":[{"path":"tinker://s:train:0/weights/b","reason":"a digest differs"}]'

WRITTEN: list[tuple[Command, str, bytes]] = [
    (OpenRun(), "open", b"{}"),
    (
        OpenRun(Load(SOURCE, with_optimizer=False, skipped=SKIPPED)),
        "open",
        b"{" + SOURCE_JSON + b',"with_optimizer":false,' + SKIPPED_JSON + b"}",
    ),
    (ForwardBackward(), "pass", b'{"elementwise_loss":true,"loss_id":null}'),
    (ForwardBackward("s:loss:3"), "pass", b'{"elementwise_loss":true,"loss_id":"s:loss:3"}'),
    (
        StepOptimizer({"learning_rate": 0.001, "beta1": 0.9}),
        "optim_step",
        b'{"params":{"learning_rate":0.001,"beta1":0.9}}',
    ),
    (
        Save(TinkerPath.parse(PATH), 60, overwrite=True, user_metadata={"team": "é"}, recipients=("age1x",)),
        "save",
        (
            b'{"path":"tinker://s:train:0/weights/a","ttl_seconds":60,"overwrite":true,"user_metadata":{"team":"\xc3\xa9"},'
            b'"recipients":["age1x"]}'
        ),
    ),
    (
        Save(TinkerPath.parse(PATH)),
        "save",
        (
            b'{"path":"tinker://s:train:0/weights/a","ttl_seconds":null,"overwrite":false,"user_metadata":{},'
            b'"recipients":[]}'
        ),
    ),
    (SnapshotWeights(4), "snapshot", b'{"sampler_seq_id":4}'),
    (Load(SOURCE, with_optimizer=True), "load", b"{" + SOURCE_JSON + b',"with_optimizer":true,"skipped":[]}'),
    (CloseRun(), "close", b"{}"),
]


@pytest.mark.parametrize(("command", "name", "written"), WRITTEN)
def test_a_command_is_written_in_the_bytes_of_the_journal_format(command: Command, name: str, written: bytes) -> None:
    assert (command.name, orjson.dumps(command.to_json())) == (name, written)


@pytest.mark.parametrize(("command", "name", "written"), WRITTEN)
def test_a_command_is_the_same_when_it_is_read_again(command: Command, name: str, written: bytes) -> None:
    assert read_command(name, orjson.loads(written)) == command


@pytest.mark.parametrize(
    ("written", "command"),
    [
        (b"{}", ForwardBackward(elementwise_loss=False, has_loss_id=False)),
        (b'{"elementwise_loss":true}', ForwardBackward(has_loss_id=False)),
    ],
)
def test_a_pass_of_an_earlier_version_lacks_keys_and_is_written_without_them(
    written: bytes, command: ForwardBackward
) -> None:
    assert read_command("pass", orjson.loads(written)) == command
    assert orjson.dumps(command.to_json()) == written


@pytest.mark.parametrize(
    ("name", "values"), [("merge", {"with": "b"}), ("save", {}), ("load", {"source": 3}), ("save", {"path": "a"})]
)
def test_what_this_version_cannot_read_is_an_unknown_command(name: str, values: dict[str, object]) -> None:
    assert read_command(name, values) == UnknownCommand(name, values)
