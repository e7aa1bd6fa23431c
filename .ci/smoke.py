"""Install the built distributions into new environments and use them as a new user would. `make dist` runs it.

    python .ci/smoke.py [--server fresh|borrowed] [DIRECTORY]

DIRECTORY (default: dist) holds one wheel and one sdist. The wheel and the sdist are installed without extras, each into
a new environment: a numpy state is saved, verified, restored and exported, the command line runs, and commands of the
server name the extra that they need. Then a server starts on a tiny model and answers: ``borrowed`` takes the packages
of the server from the environment that runs this script, ``fresh`` installs the wheel with [server].
"""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Final
from urllib.request import urlopen

TOP_FILES: Final = {"CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml", ".gitignore"}
MOST_BYTES: Final = 3_000_000
SERVER_PACKAGES: Final = {"fastapi", "sqlalchemy", "alembic", "torch", "transformers", "uvicorn", "pyrage", "orjson"}
START_SECONDS: Final = 120.0

LOOP: Final = """
import numpy as np
from chockstone.checkpoints import Archive, Checkpointer, RandomState, Resume, verify_archive

state = {"weights": np.arange(1000, dtype=np.float32), "step": 7, "random": RandomState()}
with Checkpointer("store") as checkpointer:
    checkpointer.save(state, step=7).result()
    checkpointer.save({**state, "step": 8}, step=8).result()
    into = {"weights": np.zeros(1000, dtype=np.float32), "step": 0, "random": RandomState()}
    receipt = checkpointer.restore(into)
    checkpointer.verify("step-00000008")
    checkpointer.export("step-00000007", __import__("pathlib").Path("exported"))
assert receipt.step == 8 and into["step"] == 8 and (into["weights"] == state["weights"]).all()
for attempt in range(2):
    with Resume("run", identity="smoke") as run:
        found = {"weights": np.zeros(3), "step": 0}
        run.restore(found)
        assert found["step"] == attempt, found
        run.save({"weights": np.full(3, 1.0), "step": attempt + 1}, step=attempt + 1)
import sys
assert not {"torch", "typer", "fastapi"} & set(sys.modules)
"""


class Environment:
    """A new virtual environment, and a directory to stand in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        self.home.mkdir()
        self.python = folder / "venv" / "bin" / "python"
        self.program = folder / "venv" / "bin" / "chockstone"

    def install(self, *words: object) -> None:
        subprocess.run([self.python, "-m", "pip", "install", "--quiet", *map(str, words)], check=True)

    def run(self, *words: object, code: int = 0) -> str:
        """What a command printed. It must exit with ``code``."""
        done = subprocess.run(list(map(str, words)), cwd=self.home, capture_output=True, text=True, check=False)
        assert done.returncode == code, f"{words} exited with {done.returncode}:\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def packages(self) -> set[str]:
        listed = self.run(self.python, "-m", "pip", "list", "--format=freeze").split()
        return {line.partition("==")[0].lower() for line in listed} - {"pip", "setuptools"}


def check_contents(wheel: Path, sdist: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert not [name for name in names if not re.match(r"chockstone(/|-[^/]+\.dist-info/)", name)], "other folders"
    assert "chockstone/py.typed" in names
    with tarfile.open(sdist) as archive:
        members = [member.name.partition("/")[2] for member in archive.getmembers()]
    assert not [name for name in members if not name.startswith("src/chockstone/") and name not in TOP_FILES], members
    assert not [name for name in [*names, *members] if "__pycache__" in name]
    for path in (wheel, sdist):
        size = path.stat().st_size
        assert size < MOST_BYTES, f"{path.name} has {size} bytes"
        print(f"{path.name}: {size / 1e6:.2f} MB")


def check_library(environment: Environment, distribution: Path) -> None:
    environment.install(distribution)
    packages = environment.packages()
    assert not packages & SERVER_PACKAGES, packages
    environment.run(environment.python, "-c", LOOP)
    program = environment.program
    assert re.match(r"chockstone \d", environment.run(program, "--version"))
    assert "checkpoints" in environment.run(program, "--help")
    assert "step-00000008" in environment.run(program, "checkpoints", "ls", "store")
    assert "2 ok, 0 damaged" in environment.run(program, "checkpoints", "verify", "store")
    environment.run(program, "checkpoints", "show", "store", "step-00000007")
    environment.run(program, "checkpoints", "diff", "store", "step-00000007", "step-00000008", code=1)
    environment.run(program, "resume", "explain", "run")
    environment.run(program, "serve", "--help")
    for words in (["serve"], ["doctor"], ["keys", "ls"], ["model", "make", "tiny"], ["train", "--env", "arithmetic"]):
        said = environment.run(program, *words, code=2)
        assert re.fullmatch(r"chockstone: .* pip install 'chockstone\[(server|train)\]'\n", said), said
    print(f"{distribution.name}: {len(packages)} packages; library and command line work")


def check_server(environment: Environment) -> None:
    program = environment.program
    environment.run(program, "serve", "--help")
    environment.run(program, "model", "make", "./tiny")
    log = environment.home / "log"
    command = [program, "serve", "--model", "tiny=./tiny", "--port", "0", "--data", "data"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=environment.home, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + START_SECONDS
        while (found := re.search(r"TINKER_BASE_URL=(\S+)\n", log.read_text())) is None:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        with urlopen(f"{found[1]}/api/v1/healthz", timeout=30) as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
    print("a server of the wheel starts, answers and stops")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", nargs="?", default="dist", type=Path)
    parser.add_argument("--server", choices=["fresh", "borrowed"], default="borrowed")
    options = parser.parse_args()
    [wheel], [sdist] = options.directory.glob("*.whl"), options.directory.glob("*.tar.gz")
    check_contents(wheel, sdist)
    with tempfile.TemporaryDirectory(prefix="chockstone-smoke-") as temporary:
        for distribution in (wheel, sdist):
            check_library(Environment(Path(temporary) / distribution.suffix.lstrip(".")), distribution)
        environment = Environment(Path(temporary) / "server")
        if options.server == "fresh":
            environment.install(f"chockstone[server] @ {wheel.absolute().as_uri()}")
        else:
            environment.install("--no-deps", wheel)
            [folder] = (environment.folder / "venv" / "lib").glob("python3*/site-packages")
            lent = [path for path in sys.path if path.endswith("site-packages")]
            (folder / "lent.pth").write_text("".join(f"{path}\n" for path in lent))
        assert "/venv/" in environment.run(environment.python, "-c", "import chockstone; print(chockstone.__file__)")
        check_server(environment)


if __name__ == "__main__":
    main()
