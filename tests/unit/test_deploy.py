"""The files in ``deploy`` say nothing that this program would not understand."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from chockstone.cli.app import app
from chockstone.cli.settings.settings import NAMES

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
GUIDE = ROOT / "docs" / "guides" / "from-a-laptop-to-a-cluster.md"
VARIABLES = {"CHOCKSTONE_CONFIG", *(f"CHOCKSTONE_{name.upper()}" for name in NAMES)}
SECRET = re.compile(r"PASSWORD|SECRET|KEY|DATABASE", re.IGNORECASE)
DATABASE = "postgresql://ann:secret@database/chockstone"
RAY_HEALTH = {"path": "/api/healthz", "port": 52365}  # as a node of ray[default] has it, with a dashboard or without
SECRETS = {"CHOCKSTONE_DATABASE": DATABASE, "CHOCKSTONE_KEYS": "ann=tml-0123456789"}


def settled(words: list[str], environment: dict[str, str], where: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What ``serve`` makes of a command line and an environment, which both must be understood."""
    for variable in [name for name in os.environ if name.startswith("CHOCKSTONE_")]:
        monkeypatch.delenv(variable)
    monkeypatch.chdir(where)
    assert words[0] == "serve"
    given = {name: value for name, value in environment.items() if name.startswith("CHOCKSTONE_")}
    told = CliRunner().invoke(app, [*words, "--show-config"], env={**given, "COLUMNS": "300"})
    assert told.exit_code == 0, told.output
    return told.stdout


def value_of(setting: str, told: str) -> str:
    found = re.search(rf"^{setting}\s+(.*?)\s{{2,}}", told, re.MULTILINE)
    assert found is not None, told
    return found[1]


@pytest.fixture(scope="module")
def manifest() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "kuberay.yaml").read_text()))


def one(manifest: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    [found] = [each for each in manifest if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def pods(manifest: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Every template of a pod, with its labels."""
    for each in manifest:
        if each["kind"] in ("Deployment", "StatefulSet"):
            yield each["spec"]["template"]
        if each["kind"] == "RayCluster":
            yield each["spec"]["headGroupSpec"]["template"]
            yield from (group["template"] for group in each["spec"]["workerGroupSpecs"])


def words_of(container: dict[str, Any]) -> list[str]:
    """From ``serve`` on."""
    words = container["args"]
    if container.get("command", [])[:1] == ["/bin/sh"]:
        words = shlex.split(words[0].partition("exec ")[2])[1:]
    return list(map(str, words))


def environment_of(container: dict[str, Any], manifest: list[dict[str, Any]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        if "configMapRef" in source:
            found |= one(manifest, "ConfigMap", source["configMapRef"]["name"])["data"]
    for variable in container.get("env", ()):
        found[variable["name"]] = variable.get("value") or SECRETS[variable["name"]]
    return found


def test_the_pods_start_servers_that_understand_their_settings(
    manifest: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = one(manifest, "StatefulSet", "chockstone-engine")["spec"]["template"]["spec"]["containers"][0]
    replica = one(manifest, "Deployment", "chockstone-replica")["spec"]["template"]["spec"]["containers"][0]

    told = settled(words_of(engine), environment_of(engine, manifest), tmp_path, monkeypatch)
    assert value_of("backend", told) == "ray"
    assert value_of("store", told).startswith("s3://")
    assert value_of("journal", told) == "synced"
    told = settled(words_of(replica), environment_of(replica, manifest), tmp_path, monkeypatch)
    service = one(manifest, "Service", "chockstone-engine")
    port = service["spec"]["ports"][0]["port"]
    assert value_of("engine", told) == f"http://{service['metadata']['name']}:{port}"
    for container in (engine, replica):
        told = settled(words_of(container), environment_of(container, manifest), tmp_path, monkeypatch)
        assert value_of("port", told) == str(container["ports"][0]["containerPort"])
        assert value_of("host", told) == "0.0.0.0"


def test_there_are_as_many_workers_as_the_server_asks_for(
    manifest: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = one(manifest, "StatefulSet", "chockstone-engine")["spec"]["template"]["spec"]["containers"][0]
    [group] = one(manifest, "RayCluster", "chockstone-ray")["spec"]["workerGroupSpecs"]

    told = settled(words_of(engine), environment_of(engine, manifest), tmp_path, monkeypatch)

    assert value_of("workers", told) == str(group["replicas"])
    assert value_of("min_workers", told) == str(group["minReplicas"])
    assert "--address=chockstone-ray-head-svc:6379" in engine["args"][0]  # as KubeRay names the head of this cluster


def test_nothing_secret_stands_in_a_file(manifest: list[dict[str, Any]]) -> None:
    for pod in pods(manifest):
        for container in pod["spec"]["containers"]:
            for variable in container.get("env", ()):
                if SECRET.search(variable["name"]):
                    assert set(variable["valueFrom"]) == {"secretKeyRef"}, variable
    assert [each["kind"] for each in manifest if each["kind"] == "Secret"] == []
    assert not any(SECRET.search(name) for name in one(manifest, "ConfigMap", "chockstone")["data"])
    service = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    for each in service.values():
        for name, value in (each.get("environment") or {}).items():
            assert not SECRET.search(name) or value is None or "${" in value, name


def test_pods_are_confined(manifest: list[dict[str, Any]]) -> None:
    for pod in pods(manifest):
        spec = pod["spec"]
        assert spec["enableServiceLinks"] is False  # or a Service called chockstone sets CHOCKSTONE_PORT
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        for container in spec["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["limits"]["memory"]


def test_the_parts_of_the_manifest_find_each_other(manifest: list[dict[str, Any]]) -> None:
    labels = [pod["metadata"]["labels"] for pod in pods(manifest)]
    for each in manifest:
        spec = each.get("spec", {})
        selector = spec.get("podSelector") or spec.get("selector") or {}
        wanted = selector.get("matchLabels", selector)
        if wanted:
            assert any(wanted.items() <= of_pod.items() for of_pod in labels), each["metadata"]["name"]
        if each["kind"] in ("Deployment", "StatefulSet"):
            assert wanted.items() <= spec["template"]["metadata"]["labels"].items()
    for pod in pods(manifest):
        volumes = {volume["name"] for volume in pod["spec"].get("volumes", ())}
        for container in pod["spec"]["containers"]:
            mounted = {mount["name"] for mount in container.get("volumeMounts", ())}
            assert mounted <= volumes | {"data"}
            ports = {port["name"] for port in container.get("ports", ())}
            probes = {name: container[name]["httpGet"] for name in container if name.endswith("Probe")}
            assert {"livenessProbe", "readinessProbe"} <= set(probes), container["name"]
            for name, probe in probes.items():
                route = "readyz" if name == "readinessProbe" else "healthz"
                is_ray = container["name"].startswith("ray-")
                known = [RAY_HEALTH] if is_ray else [{"path": f"/api/v1/{route}", "port": port} for port in ports]
                assert probe in known, (container["name"], name)


def test_server_and_workers_see_models_under_one_path(manifest: list[dict[str, Any]]) -> None:
    engine = one(manifest, "StatefulSet", "chockstone-engine")["spec"]["template"]["spec"]["containers"][0]
    [group] = one(manifest, "RayCluster", "chockstone-ray")["spec"]["workerGroupSpecs"]
    worker = group["template"]["spec"]["containers"][0]

    places = [{m["name"]: m["mountPath"] for m in each["volumeMounts"]}["models"] for each in (engine, worker)]

    assert places[0] == places[1]
    assert f"={places[0]}/" in engine["args"][0]


def interpolated(text: str, environment: dict[str, str]) -> str:
    def replaced(found: re.Match[str]) -> str:
        return environment.get(found["name"]) or found["default"] or ""

    return re.sub(r"\$\{(?P<name>\w+)(?::-(?P<default>[^}]*)|:\?[^}]*)?\}", replaced, text)


@pytest.fixture
def composed() -> dict[str, Any]:
    environment = {"POSTGRES_PASSWORD": "secret", "CHOCKSTONE_KEYS": SECRETS["CHOCKSTONE_KEYS"]}
    environment |= {"MODEL_NAME": "Qwen/Qwen3-8B", "MODEL_DIRECTORY": "/models/qwen3-8b"}
    composed: dict[str, Any] = yaml.safe_load(interpolated((DEPLOY / "compose.yaml").read_text(), environment))
    return composed


def test_the_containers_start_servers_that_understand_their_settings(
    composed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = composed["services"]
    databases = set()
    for name in ("engine", "replica"):
        service = services[name]
        told = settled(service["command"], service["environment"], tmp_path, monkeypatch)
        databases.add(value_of("database", told))
        assert set(service["depends_on"]) <= set(services)
    assert value_of("engine", told) == "http://engine:8000"
    assert len(databases) == 1
    assert "@database/" in databases.pop()


def test_what_is_mounted_is_a_volume_or_a_place(composed: dict[str, Any]) -> None:
    for service in composed["services"].values():
        for mount in service.get("volumes", ()):
            source = mount.split(":")[0]
            assert source in composed["volumes"] or source.startswith("/"), mount


@pytest.mark.skipif(shutil.which("docker") is None, reason="the docker client is not installed")
def test_compose_reads_its_file() -> None:
    if subprocess.run(["docker", "compose", "version"], capture_output=True, timeout=60).returncode:
        pytest.skip("the compose plugin of docker is not installed")
    environment = {**os.environ, "POSTGRES_PASSWORD": "x", "CHOCKSTONE_KEYS": "ann=tml-x"}
    environment |= {"MODEL_NAME": "tiny", "MODEL_DIRECTORY": "/tiny"}

    command = ["docker", "compose", "-f", str(DEPLOY / "compose.yaml"), "config", "--quiet"]
    read = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)

    assert read.returncode == 0, read.stderr


def test_the_image_installs_extras_that_there_are() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    dockerfile = (DEPLOY / "Dockerfile").read_text()

    [extras] = re.findall(r"/source\[([\w,]+)\]", dockerfile)

    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    assert '"ray[default]==$RAY"' in dockerfile  # answers the probes of the manifest
    [entry] = re.findall(r"ENTRYPOINT (\[.*\])", dockerfile)
    assert json.loads(entry)[0] in project["scripts"]
    for copied in re.findall(r"^COPY (?!--)(.*) \S+$", dockerfile, re.MULTILINE):
        assert all((ROOT / name).exists() for name in copied.split())


def test_kuberay_is_told_the_version_of_ray_that_is_in_the_image(manifest: list[dict[str, Any]]) -> None:
    [version] = re.findall(r"^ARG RAY=(\S+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)

    assert one(manifest, "RayCluster", "chockstone-ray")["spec"]["rayVersion"] == version


@pytest.fixture
def unit() -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=True)
    parser.optionxform = str  # type: ignore[assignment, method-assign]  # names are as they are written
    parser.read(DEPLOY / "chockstone.service")
    return parser


def test_the_unit_starts_a_server_that_understands_its_settings(
    unit: configparser.RawConfigParser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = shlex.split(unit["Service"]["ExecStart"])
    (tmp_path / "chockstone.toml").write_text('[models]\ntiny = "./tiny"\n')
    place = words.index("--config") + 1
    assert words[place].startswith("/etc/chockstone/")
    words[place] = str(tmp_path / "chockstone.toml")
    environment = dict(word.split("=", 1) for word in shlex.split(unit["Service"]["Environment"]))

    told = settled(words[1:], {**environment, **SECRETS}, tmp_path, monkeypatch)

    assert value_of("data", told) == f"/var/lib/{unit['Service']['StateDirectory']}"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_understands_the_unit_and_finds_it_hardened(tmp_path: Path) -> None:
    program = tmp_path / "chockstone"
    program.write_text("#!/bin/sh\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    text = (DEPLOY / "chockstone.service").read_text().replace("/opt/chockstone/bin/chockstone", str(program))
    unit = tmp_path / "chockstone.service"
    unit.write_text(text)

    read = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60)
    ours = [line for line in read.stderr.splitlines() if "chockstone" in line]
    judged = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(unit)],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (read.returncode, ours) == (0, []), read.stderr
    assert judged.returncode == 0, judged.stdout[-300:]  # an exposure of 2.0 of 10, at most


@pytest.mark.parametrize(
    "page", [*sorted(path for path in DEPLOY.iterdir() if path.is_file()), GUIDE], ids=lambda page: page.name
)
def test_every_variable_and_flag_that_is_named_exists(page: Path) -> None:
    text = page.read_text()
    known = set(
        re.findall(r"--[a-z][a-z-]+", CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "300"}).output)
    )

    variables = set(re.findall(r"CHOCKSTONE_[A-Z_]+", text)) - {"CHOCKSTONE_"}
    commands = re.findall(r"chockstone serve((?:\s+(?:\\\n\s*)?[^\s`|#&;]+)*)", text)
    flags = {flag for command in commands for flag in re.findall(r"(?<!\S)--[a-z][a-z-]+", command)}

    assert variables <= VARIABLES
    assert flags <= known


def test_the_unit_in_the_crash_guide_is_an_excerpt_of_the_shipped_one() -> None:
    page = (ROOT / "docs" / "guides" / "survive-crashes.md").read_text()
    [excerpt] = re.findall(r"^```ini\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)

    shown = {line for line in excerpt.splitlines() if line}

    assert shown <= set((DEPLOY / "chockstone.service").read_text().splitlines())


def test_the_capacity_plan_is_what_its_code_computes() -> None:
    page = GUIDE.read_text()
    [code] = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)

    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout

    assert len(printed.splitlines()) > 10
    assert printed in page
