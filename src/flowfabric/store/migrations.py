"""Load the numbered schema migrations of a backend, and compare them with the applied migrations."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from flowfabric.core.errors import Unavailable
from flowfabric.store.statements import Dialect, split_script

CREATE_TABLE = """
CREATE TABLE IF NOT EXISTS ff.migration (
    version INTEGER NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    sha256 TEXT NOT NULL
)
"""
READ_APPLIED = "SELECT version, sha256 FROM ff.migration ORDER BY version"
RECORD = "INSERT INTO ff.migration (version, name, sha256) VALUES (:version, :name, :sha256)"


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered change of the schema. The digest of its script reveals whether the script was edited later."""

    version: int
    name: str
    sha256: str
    script: str

    def statements(self, dialect: Dialect) -> list[str]:
        """Return the statements of the migration in a dialect."""
        return [dialect.translate(piece).text for piece in split_script(self.script)]


def load_migrations(backend_package: str) -> list[Migration]:
    """Return the migrations of a backend in order."""
    folder = files(backend_package) / "migrations"
    texts = {file.name: file.read_text(encoding="utf-8") for file in folder.iterdir() if file.name.endswith(".sql")}
    return [
        Migration(int(name[:4]), name.removesuffix(".sql"), hashlib.sha256(text.encode()).hexdigest(), text)
        for name, text in sorted(texts.items())
    ]


def store_not_found_error(problem: str, options: str) -> Unavailable:
    """Return the error for an address without a store. `options` are those of the command that creates the store."""
    message = f"{problem}; check the address, or create the store with `flowfabric migrate {options}`"
    return Unavailable("store_not_found", message, version=0)


def outdated_error(missing: Migration, applied: Mapping[int, str]) -> Unavailable:
    """Return the error for a schema that lacks a migration, when the caller did not allow migrating."""
    message = f"the schema lacks {missing.name}; run `flowfabric migrate`, or connect once with migrate=True"
    return Unavailable("schema_outdated", message, version=max(applied, default=0))


def find_pending(available: Sequence[Migration], applied: Mapping[int, str]) -> list[Migration]:
    """Return the migrations that are not applied. Raise if the schema is newer than this program or was edited."""
    by_version = {migration.version: migration for migration in available}
    for version, sha256 in sorted(applied.items()):
        if version not in by_version:
            message = (
                f"the schema is at version {version}, but this program supports versions up to {max(by_version)}; "
                "upgrade the program, or point it at another schema"
            )
            raise Unavailable("schema_newer", message, version=version, known=max(by_version))
        if by_version[version].sha256 != sha256:
            message = (
                f"migration {by_version[version].name} has different content in this program than when it was applied; "
                "restore the file, or point the program at another schema"
            )
            raise Unavailable("schema_edited", message, version=version)
    return [migration for migration in available if migration.version not in applied]
