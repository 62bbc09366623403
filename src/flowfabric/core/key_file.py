"""A key ring that lives in a file or an environment variable: one `kid=64 hex` a line, the first one active.

    # blank lines and lines that begin with # are left out
    2031-05=9f…
    2030-11=04…

The store then keeps kids, windows and check values only; the secrets come from here. A first line that the ring does
not know becomes active; one that was retired does not become so again. No error shows a line, since any part of it may
be a secret.
"""

from __future__ import annotations

from dataclasses import dataclass

from flowfabric.core.errors import Conflict, InvalidRequest, Refused
from flowfabric.core.frozen import replace
from flowfabric.core.keyring import KeyRing, has_secret, parse_kid, parse_secret
from flowfabric.core.secret import Secret

FILE_CHARACTERS = 64 * 1024


@dataclass(frozen=True, slots=True)
class FileKey:
    """One line: a kid and its secret."""

    kid: str
    secret: Secret


def parse_key_file(text: Secret, where: str) -> tuple[FileKey, ...]:
    """The keys of a file or variable in their order; `where` names it in errors."""
    if len(text.reveal()) > FILE_CHARACTERS:
        raise InvalidRequest("invalid_key_file", f"{where} is larger than {FILE_CHARACTERS} characters", where=where)
    keys: dict[str, FileKey] = {}
    for number, line in _lines(text):
        key = _parse_line(line, where, number)
        if key.kid in keys:
            message = f"{where}, line {number}: kid {key.kid} stands there twice; each kid has one secret"
            raise InvalidRequest("invalid_key_file", message, where=where, line=number)
        keys[key.kid] = key
    if not keys:
        message = f"{where} holds no key; add a line kid=64 hex characters"
        raise InvalidRequest("invalid_key_file", message, where=where)
    return tuple(keys.values())


def with_secrets(ring: KeyRing, keys: tuple[FileKey, ...], where: str) -> KeyRing:
    """The ring with the secrets of the file, where it has them; one that is not the kid's own is refused."""
    secrets = {key.kid: key.secret for key in keys}
    for key in ring.keys:
        if key.kid in secrets and not has_secret(key, secrets[key.kid]):
            message = f"the secret of kid {key.kid} in {where} is not the one it had; restore it or take a new kid"
            raise Conflict("key_check_mismatch", message, kid=key.kid, where=where)
    return KeyRing(tuple(replace(key, secret=secrets.get(key.kid, key.secret)) for key in ring.keys))


def can_mint_with(ring: KeyRing, keys: tuple[FileKey, ...]) -> bool:
    """True if the ring has known the first key, and the file has the active one: files are edited one after another, so
    that the first line of an older file may have been retired by whoever has a newer one."""
    active = ring.active
    return ring.find(keys[0].kid) is not None and active is not None and active.kid in {key.kid for key in keys}


def active_key_missing(ring: KeyRing, where: str) -> Refused:
    """The answer to whoever must mint and has a file that is older than the ring."""
    assert ring.active is not None, "a key is retired only for another one"
    kid = ring.active.kid
    message = f"key {kid} is active, and {where} lacks it: add its line there, or one with a new kid at the top"
    return Refused("key_secret_missing", message, kid=kid, where=where)


def kept_in_file(where: str) -> Refused:
    """The answer to a seed or rotation with a secret where the ring lives in a file."""
    message = f"the keys are kept in {where}: add a line kid=64 hex there for every process, then move it to the top"
    return Refused("keys_kept_in_file", message, where=where)


def _lines(text: Secret) -> list[tuple[int, Secret]]:
    """The numbered lines that say something."""
    lines = enumerate(text.reveal().removeprefix("\ufeff").split("\n"), start=1)
    stripped = ((number, line.strip()) for number, line in lines)
    return [(number, Secret(line)) for number, line in stripped if line and not line.startswith("#")]


def _parse_line(line: Secret, where: str, number: int) -> FileKey:
    try:
        return _file_key(line)
    except InvalidRequest as error:
        message = f"{where}, line {number}: must be kid=64 hex characters; {error.message}"
        raise InvalidRequest("invalid_key_file", message, where=where, line=number) from None


def _file_key(line: Secret) -> FileKey:
    kid, _, secret = (Secret(part.strip()) for part in line.reveal().partition("="))
    return FileKey(parse_kid(kid.reveal()), parse_secret(secret))
