-- When to drop a key whose execution was purged before the key's window passed. Null while the execution is kept. The
-- index submission_key_expires stays for processes of the previous release.
ALTER TABLE ff.submission_key ADD COLUMN drop_at TIMESTAMPTZ;
CREATE INDEX submission_key_drop ON ff.submission_key (drop_at) WHERE drop_at IS NOT NULL;

-- Who changed the state of a lane, and why. Null if an earlier release changed it.
ALTER TABLE ff.lane ADD COLUMN principal TEXT;
ALTER TABLE ff.lane ADD COLUMN reason TEXT;

-- Who submitted an execution. Null if the submission did not say.
ALTER TABLE ff.execution ADD COLUMN creator TEXT;

-- The held executions, by kind. A hold reason may be too long for an index entry, so it is not in the index.
CREATE INDEX execution_held ON ff.execution (namespace, kind, id) WHERE hold_reason IS NOT NULL;

-- The title, details and values that an approver sees, as JSON text. Null without any of them.
ALTER TABLE ff.waitpoint ADD COLUMN prompt TEXT;

-- True if any member was ever replayed. Then a member may still be skipped because of a failure that was repaired.
ALTER TABLE ff.flow ADD COLUMN was_replayed BOOLEAN NOT NULL DEFAULT FALSE;

-- True for an on_failure edge that is also satisfied if its upstream was skipped because of a failure. Processes of the
-- previous release treat it as on_failure.
ALTER TABLE ff.edge ADD COLUMN or_skip BOOLEAN NOT NULL DEFAULT FALSE;

-- The engine vacuums the tables that claims read. Autovacuum does it when no worker runs: soon, and without pauses.
ALTER TABLE ff.execution SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE ff.purged SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0);
