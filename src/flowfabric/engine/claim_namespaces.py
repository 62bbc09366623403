"""The namespaces from which an engine claims, if it claims from several: they take turns."""

from __future__ import annotations

import random
from collections.abc import Sequence

from flowfabric.core import validation
from flowfabric.core.executions.outcomes import Lease


class ClaimNamespaces:
    """Several namespaces in the order of their turns. The namespace that was served last comes last.

    Each process begins with a random one, so that many processes together favour none.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = validation.names(names, "claim_namespaces")
        self._next = random.randrange(len(self.names))

    def in_turn(self) -> tuple[str, ...]:
        """Return the namespaces, with the one whose turn it is first."""
        return self.names[self._next :] + self.names[: self._next]

    def note_claimed(self, leases: Sequence[Lease]) -> None:
        """Give the next turn to the namespace after that of the last lease."""
        if leases:
            self._next = (self.names.index(leases[-1].namespace) + 1) % len(self.names)
