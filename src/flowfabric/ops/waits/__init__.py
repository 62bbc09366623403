"""Operations on waits: suspend, waitpoints, signals, resume and timers."""
