"""The exit codes of the commands. These numbers stay the same in all versions."""

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
    OK: "success",
    FAILED: "the execution failed, or a check found a problem",
    USAGE: "the command or its input is invalid",
    NOT_FOUND: "the object does not exist in this namespace",
    REFUSED: "the current state does not allow it, it conflicts with recorded data, or it was not confirmed",
    UNAVAILABLE: "the store is not available; repeating the command is safe",
    TIMED_OUT: "the --timeout passed first",
    INTERNAL: "an internal error of flowfabric",
    INTERRUPTED: "interrupted from the keyboard",
    BROKEN_PIPE: "the reader of the output closed the pipe",
}
