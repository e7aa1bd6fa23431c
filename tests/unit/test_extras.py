"""A plain install has the library and its command line; what needs an extra names the command that installs it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from chockstone.extras import PACKAGES, ExtraMissing, explain, is_installed, require
from support.cli.store_commands import fill

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
IMPORT_NAMES = {
    "mlflow-skinny": "mlflow",
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry.exporter.otlp.proto.http",
    "opentelemetry-sdk": "opentelemetry.sdk",
    "orbax-checkpoint": "orbax.checkpoint",
    "protobuf": "google.protobuf",
    "pyjwt": "jwt",
}
TOOLS = {"bench", "dev", "docs"}  # extras that no code of ours asks for
OF_TYPER = {"pydantic"}  # typer brings it, so a plain install has it

# Runs commands, given as JSON, in a process where no package of an extra can be imported.
CHILD = """
import contextlib, io, json, sys
blocked, commands = json.loads(sys.argv[1])
sys.modules.update(dict.fromkeys(blocked))
from chockstone.cli import main
for words in commands:
    sys.argv = ["chockstone", *words]
    shown, errors, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(errors):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    print(json.dumps([code, shown.getvalue(), errors.getvalue()]))
"""


def blocked_packages() -> list[str]:
    names = {package.partition(".")[0] for packages in PACKAGES.values() for package in packages}
    return sorted(names - OF_TYPER)


def run_without_extras(*commands: list[str]) -> list[tuple[int, str, str]]:
    """Exit code, standard output and standard error of each command."""
    arguments = [sys.executable, "-c", CHILD, json.dumps([blocked_packages(), commands])]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    assert not done.returncode, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


@cache
def own_packages(extra: str) -> frozenset[str]:
    """The packages that pyproject.toml names for an extra, without those of the extras that it includes."""
    names = [re.split(r"[\[<>=;]", text)[0] for text in PROJECT["optional-dependencies"][extra]]
    return frozenset(IMPORT_NAMES.get(name, name.replace("-", "_")) for name in names if name != "chockstone")


def included(extra: str) -> set[str]:
    """An extra and all that it includes."""
    texts = [text for text in PROJECT["optional-dependencies"][extra] if text.startswith("chockstone[")]
    parts = {part for text in texts for part in text.partition("[")[2].rstrip("]").split(",")}
    return {extra}.union(*map(included, parts))


@pytest.mark.parametrize("extra", sorted({*PROJECT["optional-dependencies"]} - TOOLS))
def test_the_table_has_the_packages_of_pyproject(extra: str) -> None:
    installed = {package for part in included(extra) for package in own_packages(part)}

    assert own_packages(extra) <= set(PACKAGES[extra]) <= installed


def test_the_table_has_no_other_extras() -> None:
    assert set(PACKAGES) == {*PROJECT["optional-dependencies"]} - TOOLS


def test_a_plain_install_has_few_packages() -> None:
    assert [re.split(r"[<>=]", text)[0] for text in PROJECT["dependencies"]] == ["numpy", "rich", "typer", "xxhash"]


def test_the_error_names_what_is_missing_and_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("fastapi", "jwt", "pyrage", "uvicorn"):
        monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(ExtraMissing) as caught:
        require("server", "`chockstone serve`")

    assert str(caught.value) == (
        "`chockstone serve` needs the Python packages 'fastapi', 'jwt', 'pyrage' and 1 more, which are not installed: "
        "pip install 'chockstone[server]'"
    )
    assert (caught.value.extra, caught.value.name) == ("server", "fastapi")


def test_only_the_packages_that_matter_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)

    require("s3", "a listing", packages=["obstore"])
    with pytest.raises(ExtraMissing, match="the Python package 'boto3', which is not installed"):
        require("s3", "a store")


def test_a_package_below_one_that_is_absent_is_absent() -> None:
    assert not is_installed("there_is_no_such_package.part")


@pytest.mark.parametrize(
    ("name", "extra"), [("fastapi", "server"), ("google.protobuf", "server"), ("ray.util", "ray"), ("nonsense", None)]
)
def test_an_error_of_an_import_is_explained_by_its_extra(name: str, extra: str | None) -> None:
    found = explain(ModuleNotFoundError("no", name=name), "this")

    assert (found and found.extra) == extra


SERVER_COMMANDS = [
    ["serve", "--model", "tiny=./tiny"],
    ["serve", "--show-config"],
    ["model", "make", "./tiny"],
    ["doctor", "--data", "."],
    ["keys", "create", "ann"],
    ["keys", "ls"],
    ["keys", "revoke", "1"],
]


def test_a_command_that_needs_an_extra_says_which(tmp_path: Path) -> None:
    fill(tmp_path / "store", steps=1)
    export = ["checkpoints", "export", str(tmp_path / "store"), "run-1/step-00000000", str(tmp_path / "out")]
    expected: list[tuple[list[str], str]] = [
        *((words, "server") for words in SERVER_COMMANDS),
        (["train", "--env", "arithmetic"], "train"),
        (["train", "--env", "arithmetic", "--server", "http://127.0.0.1:1"], "train"),
        ([*export, "--merge", "--base", str(tmp_path)], "server"),
        ([*export[:-1], str(tmp_path / "out.gguf"), "--to", "gguf", "--base", str(tmp_path)], "gguf"),
    ]

    results = run_without_extras(*(words for words, _ in expected))

    for (words, extra), (code, _, errors) in zip(expected, results, strict=True):
        assert code == 2, (words, errors)
        assert f"pip install 'chockstone[{extra}]'" in errors, words
        assert len(errors.splitlines()) == 1, errors


def test_as_json_the_error_is_a_document_too() -> None:
    [(code, shown, _)] = run_without_extras(["doctor", "--json"])

    assert (code, json.loads(shown)["error"]["kind"]) == (2, "ExtraMissing")


def test_a_store_on_s3_names_its_extra() -> None:
    [(code, _, errors)] = run_without_extras(["checkpoints", "ls", "s3://bucket/prefix"])

    assert (code, "pip install 'chockstone[s3]'" in errors) == (3, True)


def test_the_commands_of_the_library_need_no_extra(tmp_path: Path) -> None:
    store = tmp_path / "store"
    fill(store)
    names = ["run-1/step-00000000", "run-1/step-00000100"]
    commands = [
        ["checkpoints", "ls", str(store)],
        ["checkpoints", "show", str(store), names[0]],
        ["checkpoints", "verify", str(store)],
        ["checkpoints", "export", str(store), names[0], str(tmp_path / "out")],
        ["checkpoints", "gc", str(store), "--keep-last", "2", "--dry-run"],
        ["checkpoints", "rm", str(store), names[1], "--yes"],
        ["resume", "explain", str(tmp_path / "nothing")],
        ["--version"],
        ["--help"],
        ["serve", "--help"],
        ["train", "--help"],
        ["model", "make", "--help"],
    ]

    results = run_without_extras(*commands)

    assert [(words, code, errors) for words, (code, _, errors) in zip(commands, results, strict=True) if code] == []


def test_a_server_is_asked_without_any_extra() -> None:
    commands = [["runs", "ls"], ["storage"], ["checkpoints", "ls"], ["trash"]]

    results = run_without_extras(*([*words, "--server", "http://127.0.0.1:1"] for words in commands))

    assert [code for code, _, _ in results] == [3] * len(commands)


@pytest.mark.parametrize(
    ("statement", "extra"),
    [
        ("from chockstone.checkpoints import *", None),
        ("import chockstone.checkpoints.resume, chockstone.checkpoints.restoring.diff", None),
        ("from chockstone.trainers import Collector, TrainerConfig", None),
        ("from chockstone.trainers import Trainer", "sdk"),
        ("from chockstone.integrations.flyte.layouts import recognise", None),
        ("from chockstone.integrations.flyte import resumable", "flyte"),
        ("from chockstone.integrations.flyte2 import checkpoint", "flyte2"),
        ("from chockstone.api.app import create_app", "server"),
        ("from chockstone.catalog import Catalog", "server"),
        ("from chockstone.backends.training import base_model", "server"),
        ("from chockstone.sampling import sampler", "server"),
        ("from chockstone.checkpoints import open_store; open_store('gs://bucket')", "gs"),
    ],
)
def test_an_import_that_needs_an_extra_says_which(statement: str, extra: str | None) -> None:
    code = f"import sys; sys.modules.update(dict.fromkeys({blocked_packages()!r}))\n{statement}"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    if extra is None:
        assert not done.returncode, done.stderr
    else:
        assert f"pip install 'chockstone[{extra}]'" in done.stderr.splitlines()[-1]


def test_values_of_torch_in_an_archive_name_the_extra(tmp_path: Path) -> None:
    import torch

    from chockstone.checkpoints import Checkpointer

    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save({"model": {"w": torch.ones(3)}}, step=1)
        checkpointer.save({"size": torch.Size([2])}, step=2)
    code = """
import sys; sys.modules["torch"] = None
from chockstone.checkpoints import Checkpointer
with Checkpointer(sys.argv[1]) as checkpointer:
    for stored in checkpointer.checkpoints():
        try:
            checkpointer.restore({}, name=stored.name)
        except ImportError as error:
            print(error)
"""

    done: Any = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, timeout=60)

    missing = "needs the Python package 'torch', which is not installed: pip install 'chockstone[torch]'"
    assert done.stdout.splitlines() == [f"tensor 'w' of 'model' {missing}", f"a value of type torch.Size {missing}"]
