"""The address of a store: a URL, the path of a SQLite file, or `:memory:`."""

from __future__ import annotations

import posixpath
import re

# SQLAlchemy and Django write the driver into the URL, as in `postgresql+psycopg://…`. FlowFabric has its own drivers.
_DRIVER = re.compile(r"(postgresql|postgres|sqlite)\+[a-z0-9_]+(?=://)")
_RELATIVE_URL = "sqlite:///"
# The characters that end the path of a URL, or that begin an escape sequence in it.
_ESCAPES = str.maketrans({"%": "%25", "?": "%3F", "#": "%23"})


def without_driver(address: str) -> str:
    """Return the address without the driver of another library, which has no meaning here."""
    return _DRIVER.sub(r"\1", address, count=1) if _DRIVER.match(address) else address


def make_absolute(address: str, folder: str) -> str:
    """Return the address with an absolute path and without a driver.

    `folder` is the working directory that a relative path refers to.

    Otherwise a program that changes its working directory would create a second store.
    """
    address = without_driver(address)
    if address.endswith(":memory:"):
        return address
    if "://" not in address:
        return posixpath.join(folder, address) if address else address
    path = address.removeprefix(_RELATIVE_URL)
    if path in (address, "") or path.startswith("/"):
        return address
    return f"{_RELATIVE_URL}{folder.translate(_ESCAPES)}/{path}"
