"""Operations on the event log: subscribe and trim."""
