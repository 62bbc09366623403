"""A key ring in a file or an environment variable: one `kid=SECRET` per line, of which the first is the active key.

    # blank lines and lines that begin with # are ignored
    2031-05=9f…
    2030-11=04…

A secret has 64 hex characters. With a key file, the secrets are only in the file; the store has the kids, their times
and their check values. If the ring does not know the key in the first line, that key becomes active. A retired key
never becomes active again. No error shows a line, since any part of it may be a secret.
"""

from __future__ import annotations

from dataclasses import dataclass

from flowfabric.core.errors import Conflict, InvalidRequest, Refused
from flowfabric.core.fast_dataclass import replace
from flowfabric.core.tokens.key_ring import KeyRing, has_secret, parse_kid, parse_secret
from flowfabric.core.tokens.secret import Secret

MAX_FILE_CHARACTERS = 64 * 1024


@dataclass(frozen=True, slots=True)
class FileKey:
    """A line of the file: a kid and its secret."""

    kid: str
    secret: Secret


def parse_key_file(text: Secret, where: str) -> tuple[FileKey, ...]:
    """Return the keys in the text of a key file or variable, in order; errors call that source `where`."""
    if len(text.reveal()) > MAX_FILE_CHARACTERS:
        message = f"{where} has more than {MAX_FILE_CHARACTERS} characters; remove collected keys"
        raise InvalidRequest("invalid_key_file", message, where=where)
    keys: dict[str, FileKey] = {}
    for number, line in _lines(text):
        key = _parse_line(line, where, number)
        if key.kid in keys:
            message = f"{where}, line {number}: kid {key.kid} is repeated; keep one line"
            raise InvalidRequest("invalid_key_file", message, where=where, line=number)
        keys[key.kid] = key
    if not keys:
        message = f"{where} contains no key; add a line kid=SECRET, with a secret of 64 hex characters"
        raise InvalidRequest("invalid_key_file", message, where=where)
    return tuple(keys.values())


def with_secrets(ring: KeyRing, keys: tuple[FileKey, ...], where: str) -> KeyRing:
    """Return the ring with secrets filled in from the file; raise if the secret of a kid has changed."""
    secrets = {key.kid: key.secret for key in keys}
    for key in ring.keys:
        if key.kid in secrets and not has_secret(key, secrets[key.kid]):
            message = f"the secret of kid {key.kid} in {where} has changed; restore it or use a new kid"
            raise Conflict("key_check_mismatch", message, kid=key.kid, where=where)
    return KeyRing(tuple(replace(key, secret=secrets.get(key.kid, key.secret)) for key in ring.keys))


def can_mint_with(ring: KeyRing, keys: tuple[FileKey, ...]) -> bool:
    """Return True if the ring knows the first key of the file, and the file has the active key of the ring.

    Processes get a new key file one after another, so the first key of an older file may already be retired.
    """
    active = ring.active
    return ring.find(keys[0].kid) is not None and active is not None and active.kid in {key.kid for key in keys}


def active_key_missing(ring: KeyRing, where: str) -> Refused:
    """Return the error for a process that must mint tokens but whose key file is older than the ring."""
    assert ring.active is not None, "a key is only retired when another becomes active"
    kid = ring.active.kid
    message = f"key {kid} is active but missing in {where}; add its line, or a line with a new kid at the top"
    return Refused("key_secret_missing", message, kid=kid, where=where)


def keys_kept_in_file(where: str) -> Refused:
    """Return the error for a call that passes a secret to the store although the keys are in a file."""
    message = f"the keys are in {where}; add a line kid=SECRET there for every process, then move it to the top"
    return Refused("keys_kept_in_file", message, where=where)


def _lines(text: Secret) -> list[tuple[int, Secret]]:
    """Return the lines that are neither blank nor comments, with their numbers."""
    lines = enumerate(text.reveal().removeprefix("\ufeff").split("\n"), start=1)
    stripped = ((number, line.strip()) for number, line in lines)
    return [(number, Secret(line)) for number, line in stripped if line and not line.startswith("#")]


def _parse_line(line: Secret, where: str, number: int) -> FileKey:
    kid, _, secret = (Secret(part.strip()) for part in line.reveal().partition("="))
    try:
        return FileKey(parse_kid(kid.reveal()), parse_secret(secret))
    except InvalidRequest as error:
        message = f"{where}, line {number}: must be kid=SECRET; {error.message}"
        raise InvalidRequest("invalid_key_file", message, where=where, line=number) from None
