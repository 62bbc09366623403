"""Durable functions: running one task under one lease, with its journal, branches and waits.

`run` drives a task's function from its top. Each durable call in `calls/` gets its identity from `journal`, and
`record_writer` stores its outcome. When every branch waits, `suspension` gives up the lease in one commit. A later run
starts again from the top, and the journal returns the recorded outcomes. `runner` has the protocols between a worker, a
run and its app.
"""
