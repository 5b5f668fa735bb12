"""What every service can be told, from the environment."""

from __future__ import annotations

from pathlib import Path

from pydantic import AliasChoices, Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


def service_config(prefix: str) -> SettingsConfigDict:
    """Frozen settings read from variables that start with `prefix`; unknown constructor arguments are refused."""
    return SettingsConfigDict(env_prefix=prefix, frozen=True, extra="forbid", populate_by_name=True)


class ServiceSettings(BaseSettings):
    """Base of each service's settings."""

    model_config = service_config("LONGSHORE_")

    grpc_address: str = "127.0.0.1:0"
    """host:port of the gRPC server. Port 0: any free one."""

    http_address: str | None = None
    """host:port of the HTTP server, for services that have one."""

    metrics_address: str | None = None
    """host:port for Prometheus; none: metrics are not served (all-in-one serves one page for all)."""

    data_dir: Path = Path("runs/local")
    """Folder for the embedded database and objects. Created when missing."""

    database_url: str | None = None
    """SQLAlchemy URL, e.g. postgresql+asyncpg://...; none: SQLite in data_dir."""

    database_schema: str = ""
    """Postgres schema of this service's tables, made when missing, so that services share one database; empty: the
    database user's own. SQLite has a file per service."""

    database_patience_s: float = 60.0
    """Seconds that a starting service waits for a database that is not there yet."""

    secret: SecretStr = Field(
        default=SecretStr(""), validation_alias=AliasChoices("secret", "LONGSHORE_SECRET"), repr=False
    )
    """Shared secret between services. Empty: calls are not authenticated (tests only; a warning is logged)."""

    log_level: str = "info"
    """debug, info, warning or error."""

    log_json: bool = False
    """JSON lines instead of text."""

    def resolved_database_url(self, name: str) -> str:
        """The database URL, with the embedded default `data_dir/<name>.sqlite`."""
        if self.database_url is None:
            return f"sqlite+aiosqlite:///{self.data_dir.absolute()}/{name}.sqlite"
        from longshore_common.database import with_schema  # SQLAlchemy: not for those who only read settings.

        return with_schema(self.database_url, self.database_schema)
