"""Every Python block of README and docs runs, in the order of its page, in an empty directory."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from chockstone.backends.training.micro_batches import TOKENS_ON_CPU, TOKENS_ON_GPU
from chockstone.extras import is_installed
from support.killed_training import ScriptForks
from support.live import LiveServer
from support.loopback_s3 import make_bucket, s3_server, set_environment
from support.programs import find_program

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CURL = re.compile(r"^\$ (curl (?:.*\\\n)*.*)$", re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\((?!https?:|#)([^)#]+)")


def with_code() -> list[Path]:
    return [page for page in PAGES if BLOCK.search(page.read_text())]


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """Pages that speak of S3 find their bucket on loopback."""
    with s3_server() as url:
        make_bucket(url, "my-bucket")
        yield url


@pytest.fixture(scope="module")
def server(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """Pages that speak Tinker find a server, which serves the model that the guides make."""
    with LiveServer({"tiny": models["tiny-qwen3"]}, tmp_path_factory.mktemp("server")) as live:
        yield live


@pytest.fixture(scope="module")
def scripts() -> Iterator[ScriptForks]:
    """Processes that have imported what most pages import."""
    with ScriptForks("torch", "torch._dynamo", "tinker") as forks:
        yield forks


@pytest.fixture
def short_directory() -> Iterator[str]:
    """Ray makes sockets in it, whose paths must be short."""
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as directory:
        yield directory


@pytest.mark.parametrize("page", with_code(), ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_on_the_page_runs(
    page: Path,
    tmp_path: Path,
    bucket: str,
    scripts: ScriptForks,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    code = "\n".join(BLOCK.findall(page.read_text()))
    set_environment(monkeypatch, bucket)
    if "import tinker" in code or "TINKER_BASE_URL" in code:
        live: LiveServer = request.getfixturevalue("server")
        monkeypatch.setenv("TINKER_BASE_URL", live.url)
        monkeypatch.setenv("TINKER_API_KEY", live.key)

    if "import jax" in code and not is_installed("jax"):
        pytest.skip("needs jax: pip install 'chockstone[jax]'")
    uses_ray = "import ray" in code or "ray_train" in code
    if uses_ray:
        temporary = request.getfixturevalue("short_directory")
        for name, value in {
            "RAY_TMPDIR": temporary,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "disabled",
        }.items():
            monkeypatch.setenv(name, value)

    script = tmp_path / "page.py"
    script.write_text(code)
    warnings = "default" if uses_ray else "error"  # Ray warns of settings of its own
    for _ in range(2 if page.name == "README.md" else 1):  # a reader runs it twice
        scripts.run(script, directory=tmp_path, warnings=warnings)


@pytest.mark.parametrize("guide", ["talk-to-a-checkpoint", "talk-with-anthropic-clients"])
def test_the_curl_commands_of_the_guide_get_answers(guide: str, server: LiveServer) -> None:
    """Not ``server.env()``: it has the proxies of the machine."""
    find_program("curl")
    commands = CURL.findall((ROOT / "docs" / "guides" / f"{guide}.md").read_text())
    environment = {"PATH": os.environ["PATH"], "TINKER_BASE_URL": server.url, "TINKER_API_KEY": server.key}

    told = [
        subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, check=True).stdout
        for command in commands
    ]

    assert len(told) == (2 if guide == "talk-to-a-checkpoint" else 1)
    assert json.loads(told[0]).keys() & {"choices", "content"}
    assert all(stream.endswith("data: [DONE]\n\n") for stream in told[1:])


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_a_package_index_gets_a_readme_without_relative_links() -> None:
    made = subprocess.run(
        [sys.executable, "-m", "hatch_fancy_pypi_readme"], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert made.stdout.startswith("# Chockstone")
    assert "](" not in made.stdout.replace("](https:", "")
    assert not re.search(r"<(picture|source|img)\b", made.stdout)
    assert "Benchmarks" in made.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_on_the_page_lead_somewhere(page: Path) -> None:
    targets = LINK.findall(page.read_text())

    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("name", ["http_api", "metrics"])
def test_the_reference_is_what_the_source_says(name: str) -> None:
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / "reference" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)

    assert script.render() == script.PAGE.read_text(), "run `make reference`"


def test_the_guide_names_the_size_of_micro_batches_that_workers_use() -> None:
    guide = (ROOT / "docs" / "guides" / "users-and-limits.md").read_text()

    assert f"| `--tokens-per-micro-batch` | {TOKENS_ON_CPU} on a CPU, {TOKENS_ON_GPU} on a GPU |" in guide
