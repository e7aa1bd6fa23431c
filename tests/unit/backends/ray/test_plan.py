from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from chockstone.backends.ray.plan import RayPlan, spawn_driver, take_plan
from chockstone.backends.supervision.process import WorkerConfig

CONFIG = WorkerConfig(models={"tiny": "/models/tiny"}, store="/store", threads=2)
SECRETS = {
    "CHOCKSTONE_KEY": "k",
    "TINKER_API_KEY": "k",
    "PGPASSWORD": "p",
    "AWS_SECRET_ACCESS_KEY": "s",
    "RAY_AUTH_TOKEN": "",
}


def environment_of_driver(plan: RayPlan, directory: Path) -> dict[str, str]:
    """What a driver finds in its environment."""
    script = "import json, os, sys; open(sys.argv[1], 'w').write(json.dumps(dict(os.environ)))"
    found = directory / "environment"
    driver = spawn_driver(plan, CONFIG, command=[sys.executable, "-I", "-c", script, str(found)])
    assert driver.process.wait(30) == 0
    driver.channel.close()
    environment: dict[str, str] = json.loads(found.read_text())
    return environment


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)


def test_fewer_workers_will_do_only_if_the_plan_says_so() -> None:
    assert RayPlan(workers=3).fewest == 3
    assert RayPlan(workers=3, min_workers=1).fewest == 1


def test_a_driver_reads_its_plan_and_removes_it_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = RayPlan(workers=3, min_workers=2, address="10.0.0.1:6379", join_seconds=5)
    monkeypatch.setenv("CHOCKSTONE_RAY", environment_of_driver(plan, tmp_path)["CHOCKSTONE_RAY"])

    assert take_plan() == (plan, CONFIG)
    with pytest.raises(KeyError):
        take_plan()


def test_the_driver_of_its_own_cluster_gets_the_credentials_of_the_store_and_a_token(tmp_path: Path) -> None:
    environment = environment_of_driver(RayPlan(), tmp_path)

    assert not {"CHOCKSTONE_KEY", "TINKER_API_KEY", "PGPASSWORD"} & environment.keys()
    assert environment["AWS_SECRET_ACCESS_KEY"] == "s"
    assert environment["RAY_AUTH_MODE"] == "token" and len(environment["RAY_AUTH_TOKEN"]) == 64


def test_the_driver_of_a_running_cluster_gets_no_credentials(tmp_path: Path) -> None:
    environment = environment_of_driver(RayPlan(address="10.0.0.1:6379"), tmp_path)

    assert not {"CHOCKSTONE_KEY", "TINKER_API_KEY", "PGPASSWORD", "AWS_SECRET_ACCESS_KEY"} & environment.keys()
    assert "RAY_AUTH_MODE" not in environment
