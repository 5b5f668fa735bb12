"""A home folder: who runs in it, its secret, and the addresses that other commands find.

Invariants: one process per home (a lock that the kernel frees when the process dies, however it dies);
`endpoints.json` exists only while services run, and is believed only while the lock is held.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from longshore_cli.errors import CliError

DEFAULT_HOME = Path("runs/local")
DEMO_HOME = Path("runs/demo")


@dataclass(frozen=True)
class Endpoints:
    """Where the services of a running home listen: service name to host:port."""

    pid: int
    grpc: dict[str, str]
    http: dict[str, str] = field(default_factory=dict)
    agents: str = ""
    """Where sandboxes' agents are reached; empty: where the scheduler says."""


class Home:
    """Paths and small files of one home folder. Nothing is made before it is needed."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    @property
    def logs(self) -> Path:
        """Logs of services and children."""
        return self.path / "logs"

    @property
    def endpoints_file(self) -> Path:
        """Addresses of the running services."""
        return self.path / "endpoints.json"

    @property
    def lock_file(self) -> Path:
        """Locked while services run; holds the pid."""
        return self.path / "lock"

    def service_dir(self, service: str) -> Path:
        """Data of one service."""
        return self.path / service

    def exists(self) -> bool:
        """Whether a controller or catalog ever ran here."""
        return any(self.service_dir(name).is_dir() for name in ("task-catalog", "controller"))

    def secret(self) -> str:
        """The shared secret; made once, readable by its owner only."""
        with contextlib.suppress(FileNotFoundError):
            found = self._secret_file.read_text().strip()
            if found:
                return found
        value = secrets.token_urlsafe(32)
        self._write_secret(value)
        return value

    @property
    def _secret_file(self) -> Path:
        return self.path / "secret"

    def _write_secret(self, value: str) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        temporary = self._secret_file.with_name(f".secret.{os.getpid()}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(value + "\n")
        os.replace(temporary, self._secret_file)

    @contextlib.contextmanager
    def lent_secret(self, value: str) -> Iterator[None]:
        """For the length of the block the secret is another one's; afterwards there is none here."""
        self._write_secret(value)
        try:
            yield
        finally:
            self._secret_file.unlink(missing_ok=True)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the home for this process.

        Raises:
            CliError: another process holds it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.lock_file, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                owner = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
                raise CliError(
                    f"home {self.path} is in use by process {owner}: stop it (kill {owner}) or choose another --home"
                ) from error
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            yield
        finally:
            os.close(descriptor)

    def in_use(self) -> bool:
        """Whether a live process holds the lock."""
        try:
            descriptor = os.open(self.lock_file, os.O_RDWR)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    @contextlib.contextmanager
    def announced(self, endpoints: Endpoints) -> Iterator[None]:
        """Publishes the addresses for the length of the block."""
        temporary = self.endpoints_file.with_name(".endpoints.json")
        temporary.write_text(json.dumps(asdict(endpoints), indent=2) + "\n")
        os.replace(temporary, self.endpoints_file)
        try:
            yield
        finally:
            self.endpoints_file.unlink(missing_ok=True)

    def endpoints(self) -> Endpoints | None:
        """Addresses of the services that run here now; None when none do."""
        if not self.in_use():
            return None
        try:
            return Endpoints(**json.loads(self.endpoints_file.read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            return None
