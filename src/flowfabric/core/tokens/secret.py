"""Text that must not be shown by accident, and the keys that are derived from it."""

from __future__ import annotations

import hashlib
import hmac
from functools import lru_cache
from typing import Any, NoReturn, Self, final

_HIDDEN = "<secret>"


@final
class Secret:
    """A token or a key's secret.

    Printing, formatting and logging do not show the text, and the object cannot be pickled. `reveal()` is the only way
    to the text, so a search for that word finds every use.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            del text
            raise TypeError("a secret must be text")
        self._text = text

    def reveal(self) -> str:
        """Return the text."""
        return self._text

    def __repr__(self) -> str:
        return _HIDDEN

    def __format__(self, spec: str) -> str:
        return _HIDDEN

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(_bytes(self._text), _bytes(other._text))

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __getstate__(self) -> NoReturn:
        # Every pickle protocol calls this first.
        raise TypeError("a secret cannot be pickled; reveal() it if it must leave the process")


@lru_cache(maxsize=64)
def derive_key(secret: Secret, purpose: str) -> bytes:
    """Return the key that is derived from a secret for one purpose.

    The derived key reveals nothing about the secret or about the keys for other purposes.
    """
    return hkdf(bytes.fromhex(secret.reveal()), b"", f"flowfabric/v1/{purpose}".encode(), 32)


def hkdf(material: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    """Return derived key bytes: HKDF with SHA-256 as in RFC 5869."""
    extracted = hmac.digest(salt or bytes(hashlib.sha256().digest_size), material, "sha256")
    derived, block, number = b"", b"", 1
    while len(derived) < length:
        block = hmac.digest(extracted, block + info + bytes([number]), "sha256")
        derived, number = derived + block, number + 1
    return derived[:length]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
