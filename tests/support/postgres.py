"""A real PostgreSQL server on loopback, in a folder of its own, for as long as a test needs it."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

__all__ = ["SECRET", "PostgresServer", "postgres_server"]

SECRET = "no-one-may-read-this"
"""The password of the only user."""

_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",
    "shared_buffers": "16MB",
    "max_connections": "40",
    "deadlock_timeout": "200ms",
}


def _program(name: str) -> str:
    """The path of a program of PostgreSQL's; skips the test where there is none. Debian keeps them beside the path."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    found = shutil.which(name) or next((str(folder / name) for folder in folders if (folder / name).exists()), None)
    if found is None:
        pytest.skip(f"no PostgreSQL server is installed here ('{name}' is missing); on Debian: apt-get install postgresql")
    return found


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@dataclass
class PostgresServer:
    """A server and its data.

    Attributes:
        folder: of the data and the log.
        port: on loopback.
    """

    folder: Path
    port: int

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://keeper:{SECRET}@127.0.0.1:{self.port}/{database}"

    def run(self, program: str, *arguments: str) -> None:
        """Runs a program of PostgreSQL's, which refuses to be root."""
        user = {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid, "extra_groups": []} if os.geteuid() == 0 else {}
        told = self.folder / "told"
        with told.open("ab") as file:
            status = subprocess.run(
                [_program(program), *arguments], cwd=self.folder, stdout=file, stderr=file, check=False, **user
            ).returncode
        assert status == 0, told.read_text()

    def start(self) -> None:
        settings = " ".join(f"-c {name}='{value}'" for name, value in {**_SETTINGS, "port": str(self.port)}.items())
        self.run("pg_ctl", "start", "-w", "-D", str(self.folder / "data"), "-l", str(self.folder / "log"), "-o", settings)

    def stop(self, how: str = "immediate") -> None:
        """Stops the server; at once, as a machine that loses its power does, unless asked otherwise."""
        self.run("pg_ctl", "stop", "-w", "-m", how, "-D", str(self.folder / "data"))

    def new_database(self, name: str) -> str:
        """The URL of an empty database."""
        import psycopg

        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')
        return self.url(name)


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A server with one user, who has a password; skips the test where none is installed."""
    for program in ("initdb", "pg_ctl", "postgres"):
        _program(program)
    pytest.importorskip("psycopg", reason="psycopg, the driver of PostgreSQL, is not installed: pip install psycopg[binary]")
    with tempfile.TemporaryDirectory(prefix="superopt-postgres-") as name:
        folder = Path(name)
        password = folder / "password"
        password.write_text(SECRET)
        if os.geteuid() == 0:
            for path in (folder, password):
                shutil.chown(path, "nobody")
        server = PostgresServer(folder, _free_port())
        made = ("-A", "scram-sha-256", "-U", "keeper", "--pwfile", str(password), "-E", "UTF8", "--no-sync")
        server.run("initdb", "-D", str(folder / "data"), *made)
        server.start()
        try:
            yield server
        finally:
            server.stop()
