"""A real PostgreSQL server for tests: in a directory of its own, started by the first test that asks, ended with them.

``CHOCKSTONE_TEST_DATABASE=postgres`` has every server and engine of the tests keep its catalog there.
"""

from __future__ import annotations

import atexit
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path
from urllib.parse import quote

from support.programs import find_program

IS_POSTGRES = os.environ.get("CHOCKSTONE_TEST_DATABASE") == "postgres"
PASSWORD = "s3cret/p@ss:w%rd?"  # all that a URL could trip over
_ADMIN = "postgres"
_ROLE = "chockstone"  # with no more rights than the owner of a database has
_START_SECONDS = 60.0
_SETTINGS = {
    "fsync": "off",  # it dies here, and the machine does not
    "full_page_writes": "off",
    "max_connections": "120",
    "shared_buffers": "16MB",
    "listen_addresses": "127.0.0.1",
    "log_min_messages": "fatal",
    "timezone": "Pacific/Chatham",  # no zone that anybody could take for UTC
}


class PostgresServer:
    """Started by ``start``, which may be done again after a ``stop``. The port stays the same.

    To be used from the main thread: the server ends with the thread that started it, if all else fails.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._data = home / "data"
        self.port = _free_port()
        self._user = _account()
        self._process: subprocess.Popen[bytes] | None = None

    def create(self) -> None:
        if self._user is not None:
            shutil.chown(self._home, self._user)
        password = self._home / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)  # nobody else can look into the directory
        command = [_program("initdb"), "--pgdata", str(self._data), "--username", _ADMIN, "--pwfile", str(password)]
        command += ["--auth-local=trust", "--auth-host=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync"]
        subprocess.run(self._as_its_user(command), check=True, capture_output=True, cwd=self._home, timeout=120)

    def start(self, **settings: str) -> None:
        """Returns when it takes connections."""
        told = {**_SETTINGS, "port": str(self.port), "unix_socket_directories": str(self._home), **settings}
        command = [_program("postgres"), "-D", str(self._data), *(f"--{name}={told[name]}" for name in told)]
        (self._data / "postmaster.pid").unlink(missing_ok=True)
        with open(self._home / "log", "ab") as log:
            self._process = subprocess.Popen(
                self._as_its_user(command), stdout=log, stderr=log, cwd=self._home, start_new_session=True
            )
        deadline = time.monotonic() + _START_SECONDS
        while not self._is_ready():
            assert self._process.poll() is None, f"PostgreSQL ended:\n{self.log()}"
            assert time.monotonic() < deadline, f"PostgreSQL does not start:\n{self.log()}"
            time.sleep(0.01)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT ends connections in good order; SIGQUIT is a crash that the next start recovers from."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(60)
            self._process = None

    def remove(self) -> None:
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self._home, ignore_errors=True)

    def create_database(self) -> str:
        """The URL of an empty one."""
        name = f"test_{secrets.token_hex(8)}"
        self.sql(f"CREATE DATABASE {name} OWNER {_ROLE}")
        return self.url(name)

    def create_schema(self) -> str:
        """The URL of an empty one, which is made much faster than a database is."""
        name = f"test_{secrets.token_hex(8)}"
        self.sql(f"CREATE SCHEMA {name} AUTHORIZATION {_ROLE}")
        return f"{self.url(_ADMIN)}?search_path={name}"

    def empty(self, url: str) -> None:
        """As ``create_schema`` made it."""
        name = _schema(url)
        self.sql(f"DROP SCHEMA {name} CASCADE", f"CREATE SCHEMA {name} AUTHORIZATION {_ROLE}")

    def url(self, database: str, *, role: str = _ROLE, password: str = PASSWORD) -> str:
        return f"postgresql://{role}:{quote(password, safe='')}@127.0.0.1:{self.port}/{database}"

    def socket_url(self, database: str) -> str:
        return f"postgresql:///{database}?host={self._home}&port={self.port}&user={_ROLE}"

    def sql(self, *statements: str, database: str = "postgres") -> str:
        """What they print, as its superuser. ``database``: a name, or one of our URLs."""
        command = [_program("psql"), "--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1"]
        command += ["--host", str(self._home), "--port", str(self.port), "--username", _ADMIN]
        command += ["--dbname", database.rpartition("/")[2].partition("?")[0]]
        environment = {**os.environ, "PGOPTIONS": f"--search_path={_schema(database)}"}
        for statement in statements:
            command += ["--command", statement]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.strip()

    def make_certificate(self, host: str) -> tuple[Path, Path]:
        """One that is signed by itself, and its key."""
        certificate, key = self._home / "server.crt", self._home / "server.key"
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        command += ["-days", "2", "-subj", f"/CN={host}", "-addext", f"subjectAltName=DNS:{host}"]
        command += ["-keyout", str(key), "-out", str(certificate)]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        if self._user is not None:
            for path in (certificate, key):
                shutil.chown(path, self._user)
        return certificate, key

    def log(self) -> str:
        return (self._home / "log").read_text()

    def _is_ready(self) -> bool:
        try:
            return (self._data / "postmaster.pid").read_text().splitlines()[7].strip() == "ready"
        except (FileNotFoundError, IndexError):
            return False

    def _as_its_user(self, command: list[str]) -> list[str]:
        """It refuses to be run by root. And whatever happens to the tests, it is not to outlive them."""
        change = []
        if self._user is not None:
            change = [f"--reuid={self._user}", f"--regid={_group(self._user)}", "--clear-groups"]
        return ["setpriv", *change, "--pdeathsig=QUIT", *command]


@cache
def shared_postgres() -> PostgresServer:
    """For as long as this process runs. Without PostgreSQL the test is skipped, and fails in CI."""
    return _make_postgres()


@cache
def _stopped_now_and_then() -> PostgresServer:
    return _make_postgres()


def stoppable_postgres() -> PostgresServer:
    """Another one, which runs at the moment."""
    server = _stopped_now_and_then()
    if not server.is_running:
        server.start()
    return server


def _make_postgres() -> PostgresServer:
    for program in ("initdb", "postgres", "psql", "setpriv"):
        _program(program)
    server = PostgresServer(Path(tempfile.mkdtemp(prefix="chockstone-postgres-")))
    try:
        server.create()
        server.start()
        server.sql(f"CREATE ROLE {_ROLE} LOGIN PASSWORD '{PASSWORD}'")
    except BaseException:
        server.remove()
        raise
    atexit.register(server.remove)
    return server


def database_for(home: Path) -> str | None:
    """Where a server that keeps its data at ``home`` has its catalog, if the environment has it elsewhere."""
    return _database_for(str(home)) if IS_POSTGRES else None


@cache
def _database_for(home: str) -> str:  # whoever comes back to a directory finds its catalog
    return shared_postgres().create_schema()


def catalog_url(home: Path) -> str:
    """Of the catalog of a server at ``home``. A new SQLite file has its tables, which take long to make."""
    if (elsewhere := database_for(home)) is not None:
        return elsewhere
    file = home / "catalog.sqlite3"
    if not file.exists():
        file.touch(mode=0o600)
        file.write_bytes(_empty_catalog())
    return f"sqlite:///{file}"


@cache
def _empty_catalog() -> bytes:
    from sqlalchemy import create_engine  # late: environments of older clients have no catalog

    from chockstone.catalog.database.upgrade import _create

    with tempfile.TemporaryDirectory() as folder:
        engine = create_engine(f"sqlite:///{folder}/catalog.sqlite3")
        with engine.begin() as connection:
            _create(connection)
        engine.dispose()
        return Path(folder, "catalog.sqlite3").read_bytes()


@cache
def _program(name: str) -> str:
    """Debian keeps those of the server out of PATH."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    return find_program(name, also=tuple(versions))


def _schema(url: str) -> str:
    return url.partition("search_path=")[2] or "public"


def _account() -> str | None:
    if os.getuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _group(user: str) -> int:
    return pwd.getpwnam(user).pw_gid


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
