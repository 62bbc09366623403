"""The pure heart: records, the state table and every decision. No I/O, no clock, no randomness."""
