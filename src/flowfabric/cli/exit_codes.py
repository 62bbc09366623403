"""What the exit code of a command means. These numbers do not change."""

from __future__ import annotations

from typing import Final

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
REFUSED: Final = 4
UNAVAILABLE: Final = 5
TIMED_OUT: Final = 6
INTERNAL: Final = 70
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141

MEANINGS: Final = {
    OK: "done as asked",
    FAILED: "what was asked for failed, or a check found something",
    USAGE: "the command or its input is wrong, whatever the store holds",
    NOT_FOUND: "there is no such thing in this namespace",
    REFUSED: "the state forbids it, it contradicts what is recorded, or nobody confirmed it",
    UNAVAILABLE: "the store could not be used; repeating the command is safe",
    TIMED_OUT: "the time of --timeout passed first",
    INTERNAL: "a fault of the program itself",
    INTERRUPTED: "interrupted from the keyboard",
    BROKEN_PIPE: "whoever read the output has gone",
}
