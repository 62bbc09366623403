"""A tour of two minutes on one SQLite file: signed approvals, a worker that is killed, a race, a flow, and a history.

Run it with `python3 dev.py demo`. In a terminal you decide; without one it decides by itself and says so.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> int:
    """Plays the tour; 130 if somebody has enough of it."""
    try:
        # Ctrl-C is welcome from the first moment on, and imports take one.
        import asyncio

        from tour.chapters import tour
        from tour.stage import everything

        with everything() as stage:
            asyncio.run(tour(stage))
        print("\nThe store, the books and the workers of this tour are gone.")
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("\nInterrupted. Nothing is left behind.")
        return 130
    except BrokenPipeError:
        # Whoever reads has gone; Python would complain once more about what is left to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return 0


if __name__ == "__main__":
    sys.exit(main())
