"""Numbered migrations, forward only: which there are, which are applied, and whether the two agree."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from flowfabric.core.errors import Unavailable
from flowfabric.sqlstore.statements import Dialect, split_script

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
    """One step of the schema, with the digest that shows whether it was edited afterwards."""

    version: int
    name: str
    sha256: str
    script: str

    def statements(self, dialect: Dialect) -> list[str]:
        """The statements of the migration in a dialect."""
        return [dialect.translate(piece).text for piece in split_script(self.script)]


def load_migrations(backend_package: str) -> list[Migration]:
    """The migrations that a backend ships, in order."""
    folder = files(backend_package) / "migrations"
    texts = {file.name: file.read_text(encoding="utf-8") for file in folder.iterdir() if file.name.endswith(".sql")}
    return [
        Migration(int(name[:4]), name.removesuffix(".sql"), hashlib.sha256(text.encode()).hexdigest(), text)
        for name, text in sorted(texts.items())
    ]


def pending(available: Sequence[Migration], applied: Mapping[int, str]) -> list[Migration]:
    """The migrations still to be applied; refuses a schema that is newer than this program or was edited."""
    known = {item.version: item for item in available}
    for version, sha256 in sorted(applied.items()):
        if version not in known:
            message = (
                f"the schema is at version {version}, this program knows versions up to {max(known)}; "
                "upgrade the program, or point it at another schema"
            )
            raise Unavailable("schema_newer", message, version=version, known=max(known))
        if known[version].sha256 != sha256:
            message = (
                f"migration {known[version].name} was applied with other content than this program ships; "
                "restore the file, or point the program at another schema"
            )
            raise Unavailable("schema_edited", message, version=version)
    return [item for item in available if item.version not in applied]
