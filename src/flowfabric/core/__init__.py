"""Pure records and decisions: states, transitions, conditions, tokens and flows.

Nothing here does I/O, reads a clock or draws random numbers. Times, ids and random values are arguments.
"""
