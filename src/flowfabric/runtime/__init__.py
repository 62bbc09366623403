"""Durable functions: this package runs one task under one lease, with the journal, branches and waits of the task.

`run` calls a task's function from its top. Each durable call in `calls/` gets its identity from `journal`, and
`record_writer` stores the outcome of the call. When every branch waits, `suspension` gives up the lease in one commit.
A later run starts again from the top, and the journal returns the recorded outcomes. `runner` has the protocols between
a worker, a run and the app.
"""
