"""Instruction sets: which of the CPU's advertised instructions torch may use on this machine.

Some virtual machines advertise AMX and cannot run it: the first bfloat16 product kills the process with "Illegal
instruction". On a CPU that advertises AMX, a probe program (``instruction_probe``) runs once. If it dies, it runs again
with fewer and fewer instruction sets, and the first limits under which it survives are set before torch is imported.
The result is cached in the user's cache directory. Imports no torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import logging
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, Literal

log = logging.getLogger(__name__)
ONEDNN: Final = "ONEDNN_MAX_CPU_ISA"
MKL: Final = "MKL_ENABLE_INSTRUCTIONS"
ATEN: Final = "ATEN_CPU_CAPABILITY"
VARIABLES: Final = (ONEDNN, "DNNL_MAX_CPU_ISA", MKL, ATEN)  # the second is an older name of the first
PROBE: Final = (sys.executable, "-P", "-m", "chockstone.backends.supervision.instruction_probe")

_AMX: Final = "AVX512_CORE_AMX"
_FIRST_AMX: Final = {"amx_tile", "amx_bf16", "amx_int8"}
Limits = Mapping[str, str]  # environment variables
LADDER: Final[tuple[Limits, ...]] = (  # from everything the CPU advertises down to what every x86-64 has
    {},
    {ONEDNN: _AMX},
    {ONEDNN: "AVX512_CORE_FP16"},
    {ONEDNN: "AVX512_CORE_BF16"},
    {ONEDNN: "AVX512_CORE"},
    {ONEDNN: "AVX512_CORE", MKL: "AVX512"},
    {ONEDNN: "AVX2", MKL: "AVX2", ATEN: "avx2"},
    {ONEDNN: "SSE41", MKL: "SSE4_2", ATEN: "default"},
)
_DEADLY: Final = {signal.SIGILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGABRT, signal.SIGTRAP}
_WRONG: Final = 3  # instruction_probe.WRONG: it ran, and computed wrong numbers
_PROBE_SECONDS: Final = 120.0
_LARGEST_CACHE_BYTES: Final = 4096
_MACHINE_FACTS: Final = ("sys_vendor", "product_name", "product_version")  # identify the hypervisor
Source = Literal["environment", "flags", "cache", "probe", "unknown"]


class ProbeVerdict(Enum):
    WORKS = "works"
    FAILS = "fails"
    UNKNOWN = "unknown"  # it did not end, or died for another reason than the CPU


Probe = Callable[[Limits], ProbeVerdict]


@dataclass(frozen=True, slots=True)
class CpuFacts:
    """Decides whether to probe, and is the key of the cached result."""

    model: str
    flags: frozenset[str]
    machine: str  # kernel and hypervisor
    torch: str

    @property
    def needs_probe(self) -> bool:
        return any(flag.startswith("amx_") for flag in self.flags)

    def ladder(self) -> tuple[Limits, ...]:
        """``LADDER`` without the step that disables only what this CPU does not advertise."""
        has_newer = any(flag.startswith("amx_") and flag not in _FIRST_AMX for flag in self.flags)
        return LADDER if has_newer else tuple(limits for limits in LADDER if limits.get(ONEDNN) != _AMX)

    @property
    def digest(self) -> str:
        facts = json.dumps([self.model, sorted(self.flags), self.machine, self.torch])
        return hashlib.sha256(facts.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class InstructionSetChoice:
    limits: Limits  # to set, without those that the environment sets already
    source: Source
    environment: Limits  # limits that were set before

    @property
    def value(self) -> str:
        return describe_limits({**self.environment, **self.limits})

    @property
    def reason(self) -> str:
        """Where the choice comes from, in words."""
        return {
            "environment": "environment",
            "flags": "default: the CPU advertises no AMX",
            "cache": "probed earlier on this CPU",
            "probe": "probed now",
            "unknown": "the probe gave no answer",
        }[self.source]


def describe_limits(environ: Mapping[str, str]) -> str:
    """The limits that are set in ``environ``, as a shell would set them."""
    return " ".join(f"{name}={environ[name]}" for name in VARIABLES if environ.get(name)) or "not limited"


def limit_instruction_sets() -> InstructionSetChoice:
    """Set the limits in the environment of this process and its children. Call before torch is imported."""
    choice = choose_here()
    os.environ.update(choice.limits)
    return choice


def choose_here() -> InstructionSetChoice:
    return choose_limits(os.environ, facts=read_facts(), cache=cache_directory(os.environ), probe=run_probe)


def report_choice(choice: InstructionSetChoice) -> None:
    if choice.source == "unknown":
        log.warning("instruction sets not probed limits=%s; bfloat16 may end the worker", choice.value)
    elif choice.limits:
        log.warning("instruction sets limited limits=%s source=%s", choice.value, choice.reason)
    elif choice.environment:
        log.info("instruction sets limited limits=%s source=%s", choice.value, choice.reason)


def choose_limits(
    environ: Mapping[str, str], *, facts: CpuFacts, cache: Path | None, probe: Probe
) -> InstructionSetChoice:
    """Choose the highest instruction sets that work. Limits that the user has set are kept without a probe."""
    present = {name: environ[name] for name in VARIABLES if environ.get(name)}
    if present:
        return InstructionSetChoice({}, "environment", present)
    if not facts.needs_probe:
        return InstructionSetChoice({}, "flags", {})
    if cache is not None and (known := _read_cache(cache / facts.digest)) is not None:
        return InstructionSetChoice(known, "cache", {})
    for limits in facts.ladder():
        verdict = probe(limits)
        if verdict is ProbeVerdict.UNKNOWN:
            break
        if verdict is ProbeVerdict.WORKS:
            if cache is not None:
                _write_cache(cache / facts.digest, limits)
            return InstructionSetChoice(limits, "probe", {})
    return InstructionSetChoice({}, "unknown", {})


def run_probe(
    limits: Limits, *, command: Sequence[str] = PROBE, timeout_seconds: float = _PROBE_SECONDS
) -> ProbeVerdict:
    environ = {name: value for name, value in os.environ.items() if name not in VARIABLES} | dict(limits)
    environ |= {"OMP_NUM_THREADS": "1"}
    try:
        ended = subprocess.run(  # noqa: S603  # our own program
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=timeout_seconds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ProbeVerdict.UNKNOWN
    if ended.returncode == 0:
        return ProbeVerdict.WORKS
    return ProbeVerdict.FAILS if ended.returncode == _WRONG or -ended.returncode in _DEADLY else ProbeVerdict.UNKNOWN


def read_facts(cpu_facts: Path = Path("/proc/cpuinfo"), machine_facts: Path = Path("/sys/class/dmi/id")) -> CpuFacts:
    """Facts about the CPU. Without these files it counts as advertising nothing."""
    first: dict[str, str] = {}
    with contextlib.suppress(OSError), open(cpu_facts, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if not line.strip():
                break  # facts of the next CPU follow, and there may be hundreds
            name, _, value = line.partition(":")
            first[name.strip()] = value.strip()
    machine = [platform.release(), platform.version()]
    for name in _MACHINE_FACTS:
        with contextlib.suppress(OSError):
            machine.append((machine_facts / name).read_text(errors="replace").strip())
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch = ""
    model = " ".join(first.get(name, "") for name in ("vendor_id", "model name", "stepping", "microcode"))
    return CpuFacts(model, frozenset(first.get("flags", "").split()), " ".join(machine), torch)


def cache_directory(environ: Mapping[str, str]) -> Path | None:
    """The user's cache directory by the XDG rules, where a relative path counts as not set. None: there is none."""
    chosen = environ.get("XDG_CACHE_HOME", "")
    try:
        base = Path(chosen) if os.path.isabs(chosen) else Path.home() / ".cache"
    except RuntimeError:
        return None
    return base / "chockstone" / "instruction-sets"


def _read_cache(path: Path) -> Limits | None:
    """None if the file is missing, damaged or of another user. Only limits of ``LADDER`` are accepted."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        try:
            if os.fstat(descriptor).st_uid != os.getuid():
                return None
            cached = json.loads(file.read(_LARGEST_CACHE_BYTES))
        except (OSError, ValueError, RecursionError):
            return None
    return next((limits for limits in LADDER if limits == cached), None)


def _write_cache(path: Path, limits: Limits) -> None:
    """Write atomically, readable for the user only. If that fails, the next start probes again."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")  # 0600
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                json.dump(dict(limits), file)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
