-- Suspensions, waitpoints, signals and the keys that sign tokens.

ALTER TABLE ff.execution ADD COLUMN signal_seq INTEGER NOT NULL DEFAULT 0;
ALTER TABLE ff.execution ADD COLUMN suspension_count INTEGER NOT NULL DEFAULT 0;
ALTER TABLE ff.execution ADD COLUMN resume_suspension_id TEXT;
ALTER TABLE ff.execution ADD COLUMN resume_trigger TEXT;

-- A pause of an execution; `number` counts them. The condition is JSON, as it is shown.
CREATE TABLE ff.suspension (
    execution_id TEXT NOT NULL,
    number INTEGER NOT NULL CHECK (number >= 1),
    id TEXT NOT NULL,
    generation INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    lease_id TEXT NOT NULL,
    key TEXT,
    digest TEXT NOT NULL,
    condition TEXT NOT NULL,
    reason TEXT NOT NULL,
    rest TEXT NOT NULL CHECK (rest IN ('close', 'keep')),
    opened_at INTEGER NOT NULL,
    timeout_at INTEGER,
    on_timeout TEXT NOT NULL CHECK (on_timeout IN ('fail', 'cancel', 'expire', 'auto_resume', 'escalate')),
    resume_delay_us INTEGER NOT NULL CHECK (resume_delay_us >= 0),
    closed_at INTEGER,
    closed_by TEXT CHECK (closed_by IN ('signals', 'timeout', 'operator', 'ended')),
    PRIMARY KEY (execution_id, number),
    CHECK ((closed_at IS NULL) = (closed_by IS NULL))
) STRICT;
CREATE UNIQUE INDEX ff_suspension_open ON ff.suspension (execution_id) WHERE closed_at IS NULL;
CREATE UNIQUE INDEX ff_suspension_key ON ff.suspension (execution_id, generation, key) WHERE key IS NOT NULL;
CREATE INDEX ff_suspension_timeout ON ff.suspension (timeout_at) WHERE timeout_at IS NOT NULL AND closed_at IS NULL;

-- Of a token the hash and the nonce are kept, from which only the key can make it again.
CREATE TABLE ff.waitpoint (
    id TEXT NOT NULL PRIMARY KEY,
    execution_id TEXT NOT NULL,
    key TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('addressed', 'standing', 'child', 'timer')),
    state TEXT NOT NULL CHECK (state IN ('pending', 'active', 'closed')),
    suspension INTEGER,
    kid TEXT,
    nonce BLOB,
    token_hash BLOB,
    approver TEXT,
    token_ends_at INTEGER,
    child_id TEXT,
    fires_at INTEGER,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    closed_at INTEGER,
    close_reason TEXT,
    CHECK ((kid IS NULL) = (nonce IS NULL) AND (kid IS NULL) = (token_hash IS NULL)),
    CHECK ((state = 'closed') = (closed_at IS NOT NULL)),
    CHECK (state <> 'active' OR suspension IS NOT NULL)
) STRICT;
CREATE UNIQUE INDEX ff_waitpoint_open_key ON ff.waitpoint (execution_id, key) WHERE closed_at IS NULL;
CREATE INDEX ff_waitpoint_execution ON ff.waitpoint (execution_id, id);
CREATE INDEX ff_waitpoint_expires ON ff.waitpoint (expires_at) WHERE state = 'pending' AND expires_at IS NOT NULL;
CREATE INDEX ff_waitpoint_fires ON ff.waitpoint (fires_at) WHERE fires_at IS NOT NULL AND closed_at IS NULL;
CREATE INDEX ff_waitpoint_child ON ff.waitpoint (child_id) WHERE child_id IS NOT NULL AND closed_at IS NULL;
CREATE INDEX ff_waitpoint_kid ON ff.waitpoint (kid) WHERE kid IS NOT NULL AND closed_at IS NULL;

-- In order of acceptance within the execution. `suspension` is the wait that a signal belongs to; none: it is still unused.
CREATE TABLE ff.signal (
    execution_id TEXT NOT NULL,
    seq INTEGER NOT NULL CHECK (seq >= 1),
    id TEXT NOT NULL,
    waitpoint_id TEXT,
    waitpoint TEXT NOT NULL,
    suspension INTEGER,
    counts INTEGER NOT NULL,
    name TEXT NOT NULL,
    category TEXT NOT NULL,
    source TEXT NOT NULL,
    source_type TEXT NOT NULL,
    source_identity TEXT NOT NULL,
    correlation TEXT,
    payload BLOB NOT NULL,
    encoding TEXT NOT NULL,
    key TEXT,
    created_at INTEGER,
    accepted_at INTEGER NOT NULL,
    effect TEXT NOT NULL CHECK (
        effect IN ('appended_to_waitpoint', 'resume_condition_satisfied', 'buffered_for_pending_waitpoint')
    ),
    PRIMARY KEY (execution_id, seq)
) STRICT;
CREATE UNIQUE INDEX ff_signal_id ON ff.signal (execution_id, id);
CREATE UNIQUE INDEX ff_signal_key ON ff.signal (waitpoint_id, key) WHERE key IS NOT NULL;
CREATE INDEX ff_signal_counting ON ff.signal (execution_id, suspension, seq) WHERE counts;
CREATE INDEX ff_signal_unused ON ff.signal (waitpoint_id, seq) WHERE suspension IS NULL;

-- The key ring. A collected key keeps its kid, so that no kid is used twice; with a key file no secret is here at all.
CREATE TABLE ff.signing_key (
    kid TEXT NOT NULL PRIMARY KEY,
    check_value TEXT NOT NULL,
    secret TEXT,
    created_at INTEGER NOT NULL,
    retired_at INTEGER,
    verifies_until INTEGER,
    end_is_final INTEGER NOT NULL,
    collected_at INTEGER,
    -- True while the key is active: the unique index allows one such row.
    active INTEGER CHECK (active = 1),
    CHECK ((active IS NULL) = (retired_at IS NOT NULL)),
    CHECK ((retired_at IS NULL) = (verifies_until IS NULL))
) STRICT;
CREATE UNIQUE INDEX ff_signing_key_active ON ff.signing_key (active) WHERE active = 1;
