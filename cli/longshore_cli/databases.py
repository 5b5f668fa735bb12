"""The services' databases as their settings name them, and the revisions of their schemas."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any

from longshore_cli.errors import CliError
from longshore_cli.local.settings import by_name

WITH_DATABASE = ("task-catalog", "sandbox-scheduler", "inference-gateway", "trajectory-store", "controller")
_RETRY_S = 2.0


@dataclass(frozen=True)
class ServiceDatabase:
    """Where one service keeps its tables."""

    service: str
    package: str
    """Holds the history of migrations."""
    url: str

    def migrate(self, patience_s: float) -> None:
        """Brings it up to date. Raises Unavailable when it cannot be reached for so long."""
        from longshore_common.database import migrate

        migrate(self.url, self.package, patience_s)


@dataclass(frozen=True)
class State:
    """What a database holds; its password is not shown."""

    service: str
    revision: str | None
    """None: nothing yet."""
    newest: str
    url: str

    def value(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def chosen(names: Sequence[str] | None) -> list[ServiceDatabase]:
    """The named services' databases; none named: all.

    Raises:
        CliError: an unknown service, or its settings are wrong.
    """
    unknown = sorted(set(names or ()) - set(WITH_DATABASE))
    if unknown:
        raise CliError(f"no database of {', '.join(unknown)}: services with one are {', '.join(WITH_DATABASE)}")
    return [_database(service.name, service.package) for service in by_name(names or WITH_DATABASE)]


def _database(name: str, package: str) -> ServiceDatabase:
    from pydantic import ValidationError
    from sqlalchemy.exc import ArgumentError

    from longshore_common.database import shown

    try:
        settings = import_module(f"{package}.settings").Settings()
        url = settings.resolved_database_url(name)
        shown(url)
    except ArgumentError as error:
        variable = f"LONGSHORE_{name.upper().replace('-', '_')}_DATABASE_URL"
        raise CliError(
            f"{variable} is not a database URL: write postgresql+asyncpg://user:password@host/name"
        ) from error
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise CliError(f"settings of {name} are wrong: {problems}; check LONGSHORE_* variables") from error
    return ServiceDatabase(name, f"{package}.store", url)


def state(database: ServiceDatabase, patience_s: float = 0.0) -> State:
    """Its revision and the newest one of the code.

    Raises:
        Unavailable: it cannot be reached for so long.
    """
    from longshore_common.database import revisions, shown
    from longshore_common.errors import Unavailable

    deadline = time.monotonic() + patience_s
    while True:
        try:
            revision, newest = revisions(database.url, database.package)
        except Unavailable:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_RETRY_S)
        else:
            return State(database.service, revision, str(newest), shown(database.url))
