"""The choice of instruction sets, with probes that die as on a CPU that cannot run what it advertises."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from chockstone.backends.supervision import instruction_probe
from chockstone.backends.supervision.instruction_sets import (
    _WRONG,
    LADDER,
    MKL,
    ONEDNN,
    VARIABLES,
    CpuFacts,
    Limits,
    ProbeVerdict,
    cache_directory,
    choose_limits,
    describe_limits,
    read_facts,
    report_choice,
    run_probe,
)
from chockstone.backends.supervision.local import LocalBackend
from chockstone.backends.supervision.process import WorkerConfig

AMX = CpuFacts("Xeon", frozenset({"avx512_bf16", "amx_tile", "amx_bf16", "amx_int8"}), "6.1 KVM", "2.13.0")
BF16 = {ONEDNN: "AVX512_CORE_BF16"}
# Dies as the real program does there, for every limit above AVX512_CORE_BF16.
DYING = f"""
import os, signal
if os.environ.get("{ONEDNN}", "") not in ("AVX512_CORE_BF16", "AVX512_CORE", "AVX2", "SSE41"):
    os.kill(os.getpid(), signal.SIGILL)
"""
CPU_FACTS = """\
processor : 0
vendor_id : GenuineIntel
model name : Xeon
flags : fpu avx512_bf16 amx_bf16 amx_tile amx_int8

processor : 1
flags : fpu
"""
# A worker as it is on such a machine: only what the CPU advertises and the probe's program are replaced.
WORKER = """
import functools, pathlib, sys
from chockstone.backends.supervision import instruction_sets
from chockstone.backends.worker import main as worker
facts, dying = sys.argv[1:3]
instruction_sets.read_facts = functools.partial(instruction_sets.read_facts, pathlib.Path(facts))
command = (sys.executable, "-c", dying)
instruction_sets.run_probe = functools.partial(instruction_sets.run_probe, command=command)
sys.argv = sys.argv[2:]
worker.main()
"""


class Recorder:
    """A probe that works from some step of the ladder on."""

    def __init__(self, works: Limits, *, before: ProbeVerdict = ProbeVerdict.FAILS) -> None:
        self.asked: list[Limits] = []
        self._works = works
        self._before = before

    def __call__(self, limits: Limits) -> ProbeVerdict:
        self.asked.append(limits)
        return ProbeVerdict.WORKS if LADDER.index(limits) >= LADDER.index(self._works) else self._before


def dying(limits: Limits) -> ProbeVerdict:
    return run_probe(limits, command=[sys.executable, "-c", DYING])


@pytest.fixture(autouse=True)
def _unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_the_highest_that_lives_is_chosen(tmp_path: Path) -> None:
    choice = choose_limits({}, facts=AMX, cache=tmp_path, probe=dying)

    assert (choice.limits, choice.source) == (BF16, "probe")
    assert choice.value == "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"


def test_a_cpu_that_runs_all_it_advertises_is_not_limited(tmp_path: Path) -> None:
    probe = Recorder({})

    choice = choose_limits({}, facts=AMX, cache=tmp_path, probe=probe)

    assert (choice.limits, choice.value, probe.asked) == ({}, "not limited", [{}])


def test_without_amx_nothing_is_probed(tmp_path: Path) -> None:
    probe = Recorder({})

    choice = choose_limits({}, facts=replace(AMX, flags=frozenset({"avx2"})), cache=tmp_path, probe=probe)

    assert (choice.limits, choice.source, probe.asked, list(tmp_path.iterdir())) == ({}, "flags", [], [])


@pytest.mark.parametrize("name", VARIABLES)
def test_what_the_user_has_set_is_respected_and_said(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    probe = Recorder({})

    choice = choose_limits({name: "AVX2"}, facts=AMX, cache=tmp_path, probe=probe)
    with caplog.at_level(logging.INFO):
        report_choice(choice)

    assert (choice.limits, choice.value, choice.reason, probe.asked) == ({}, f"{name}=AVX2", "environment", [])
    assert f"{name}=AVX2" in caplog.text


def test_only_newer_cpus_are_tried_with_the_first_amx() -> None:
    old, new = Recorder(BF16), Recorder(BF16)

    choose_limits({}, facts=AMX, cache=None, probe=old)
    choose_limits({}, facts=replace(AMX, flags=AMX.flags | {"amx_fp16"}), cache=None, probe=new)

    assert [len(old.asked), len(new.asked)] == [3, 4]


def test_it_is_probed_once_per_cpu_kernel_and_torch(tmp_path: Path) -> None:
    choose_limits({}, facts=AMX, cache=tmp_path, probe=Recorder(BF16))
    same = Recorder(BF16)

    again = choose_limits({}, facts=AMX, cache=tmp_path, probe=same)

    assert (again.limits, again.source, same.asked) == (BF16, "cache", [])
    for other in (
        replace(AMX, model="Xeon 2"),
        replace(AMX, flags=AMX.flags | {"avx512_fp16"}),
        replace(AMX, machine="6.2 KVM"),
        replace(AMX, torch="2.14.0"),
    ):
        probe = Recorder({})
        assert choose_limits({}, facts=other, cache=tmp_path, probe=probe).source == "probe" and probe.asked


def test_the_cache_is_the_users_alone(tmp_path: Path) -> None:
    cache = tmp_path / "a" / "b"

    choose_limits({}, facts=AMX, cache=cache, probe=Recorder(BF16))

    [file] = cache.iterdir()  # and nothing that was half written
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"[" * 4000,
        b'{"ONEDNN_MAX_CPU_ISA": "AVX9000"}',
        b'{"LD_PRELOAD": "/tmp/x.so"}',
        b'{"ONEDNN_MAX_CPU_ISA": ["AVX2"]}',
    ],
)
def test_a_damaged_cache_is_probed_again_and_mended(damage: bytes, tmp_path: Path) -> None:
    (tmp_path / AMX.digest).write_bytes(damage)

    assert choose_limits({}, facts=AMX, cache=tmp_path, probe=Recorder(BF16)).source == "probe"
    assert choose_limits({}, facts=AMX, cache=tmp_path, probe=Recorder(BF16)).source == "cache"


def test_a_link_or_a_pipe_in_the_caches_place_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("{}")
    (tmp_path / AMX.digest).symlink_to(tmp_path / "elsewhere")
    assert choose_limits({}, facts=AMX, cache=tmp_path, probe=Recorder(BF16)).source == "probe"
    (tmp_path / AMX.digest).unlink()
    os.mkfifo(tmp_path / AMX.digest)

    assert choose_limits({}, facts=AMX, cache=tmp_path, probe=Recorder(BF16)).source == "probe"


def test_where_no_cache_can_be_written_every_start_probes(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    for _ in range(2):
        choice = choose_limits({}, facts=AMX, cache=tmp_path / "file" / "cache", probe=Recorder(BF16))
        assert (choice.limits, choice.source) == (BF16, "probe")


def test_a_probe_that_says_nothing_limits_nothing_and_is_not_remembered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    probe = Recorder(BF16, before=ProbeVerdict.UNKNOWN)

    choice = choose_limits({}, facts=AMX, cache=tmp_path, probe=probe)
    report_choice(choice)

    assert (choice.limits, choice.source, len(probe.asked), list(tmp_path.iterdir())) == ({}, "unknown", 1, [])
    assert "not probed" in caplog.text


@pytest.mark.parametrize(
    ("program", "verdict"),
    [
        ("", ProbeVerdict.WORKS),
        ("import os; os.kill(os.getpid(), 4)", ProbeVerdict.FAILS),
        ("import os; os.kill(os.getpid(), 11)", ProbeVerdict.FAILS),
        (f"raise SystemExit({instruction_probe.WRONG})", ProbeVerdict.FAILS),
        ("raise ImportError", ProbeVerdict.UNKNOWN),
        ("import os; os.kill(os.getpid(), 9)", ProbeVerdict.UNKNOWN),  # killed by the OOM killer
        ("import time; time.sleep(600)", ProbeVerdict.UNKNOWN),
    ],
)
def test_how_a_probe_ended_is_what_it_says(program: str, verdict: ProbeVerdict) -> None:
    timeout = 0.5 if "sleep" in program else 60.0

    assert run_probe({}, command=[sys.executable, "-c", program], timeout_seconds=timeout) is verdict
    assert instruction_probe.WRONG == _WRONG


def test_a_probe_that_cannot_be_started_says_nothing() -> None:
    assert run_probe({}, command=["/no/such/program"]) is ProbeVerdict.UNKNOWN


def test_facts_are_those_of_the_first_cpu(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(CPU_FACTS)

    facts = read_facts(tmp_path / "cpuinfo", tmp_path)

    assert facts.needs_probe and "Xeon" in facts.model and facts.torch
    assert not read_facts(tmp_path / "none", tmp_path).needs_probe


def test_the_cache_is_where_xdg_has_it(tmp_path: Path) -> None:
    expected = Path("chockstone/instruction-sets")

    assert cache_directory({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / expected
    for unset in ({}, {"XDG_CACHE_HOME": ""}, {"XDG_CACHE_HOME": "relative"}):
        assert cache_directory(unset) == Path.home() / ".cache" / expected


def test_limits_are_described_as_in_a_shell() -> None:
    assert describe_limits({MKL: "AVX2", ONEDNN: "AVX2", "OTHER": "x"}) == f"{ONEDNN}=AVX2 {MKL}=AVX2"
    assert describe_limits({ONEDNN: ""}) == "not limited"


async def test_a_worker_on_such_a_machine_says_what_it_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "cpuinfo").write_text(CPU_FACTS)
    config = WorkerConfig(models={}, store=str(tmp_path), device="cpu", dtype="bfloat16", threads=1)
    command = [sys.executable, "-c", WORKER, str(tmp_path / "cpuinfo"), DYING]
    backend = LocalBackend(config, command=command)

    await backend.start()
    async with asyncio.timeout(120):
        await backend.ready()
    environment = dict(backend.environment)
    await backend.stop()

    assert environment["instruction_sets"] == "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"
    assert "instruction sets limited limits=ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16" in capfd.readouterr().err
    assert len(list((tmp_path / "cache/chockstone/instruction-sets").iterdir())) == 1
