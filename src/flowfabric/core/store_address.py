"""The address of a store: a URL, the path of a SQLite file, or `:memory:`."""

from __future__ import annotations

import posixpath

_RELATIVE_URL = "sqlite:///"
# The characters that end the path of a URL, or that begin an escape sequence in it.
_ESCAPES = str.maketrans({"%": "%25", "?": "%3F", "#": "%23"})


def make_absolute(address: str, folder: str) -> str:
    """Return the address with an absolute path. `folder` is the working directory that a relative path refers to.

    Otherwise a program that changes its working directory would create a second store.
    """
    if address.endswith(":memory:"):
        return address
    if "://" not in address:
        return posixpath.join(folder, address) if address else address
    path = address.removeprefix(_RELATIVE_URL)
    if path in (address, "") or path.startswith("/"):
        return address
    return f"{_RELATIVE_URL}{folder.translate(_ESCAPES)}/{path}"
