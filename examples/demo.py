"""A two-minute tour on one SQLite file: signed approvals, a killed worker, a race, a flow, and a history.

Run it with `python3 dev.py demo`. In a terminal it asks you to decide; otherwise it decides automatically.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> int:
    """Run the tour and return the exit code, which is 130 after an interrupt."""
    try:
        # Imports take a moment. Inside the try block, Ctrl-C is handled during that time too.
        import asyncio

        from tour.chapters import tour
        from tour.stage import everything

        with everything() as stage:
            asyncio.run(tour(stage))
        print("\nThe demo has removed its store, its files and its workers.")
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("\nInterrupted. Nothing is left behind.")
        return 130
    except BrokenPipeError:
        # The reader closed the pipe. Without the next lines, Python would report the unwritten output when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return 0


if __name__ == "__main__":
    sys.exit(main())
