-- Suspensions, waitpoints, signals and the keys that sign tokens.

ALTER TABLE ff.execution ADD COLUMN signal_seq BIGINT NOT NULL DEFAULT 0;
ALTER TABLE ff.execution ADD COLUMN suspension_count INTEGER NOT NULL DEFAULT 0;
ALTER TABLE ff.execution ADD COLUMN resume_suspension_id UUID;
ALTER TABLE ff.execution ADD COLUMN resume_trigger TEXT;

-- Every statement reads the checks of the tables that it writes anew, so they are few and short: lists of words as one
-- literal, and what belongs together as one check.
ALTER TABLE ff.execution
    DROP CONSTRAINT execution_state_check,
    DROP CONSTRAINT execution_ownership_check,
    DROP CONSTRAINT execution_attempt_origin_check,
    DROP CONSTRAINT execution_epoch_check,
    DROP CONSTRAINT execution_version_check,
    DROP CONSTRAINT execution_generation_check,
    DROP CONSTRAINT execution_attempt_index_check,
    DROP CONSTRAINT execution_retry_count_check,
    DROP CONSTRAINT execution_reclaim_count_check,
    DROP CONSTRAINT execution_replay_count_check,
    DROP CONSTRAINT execution_step_seq_check,
    DROP CONSTRAINT execution_progress_percent_check,
    DROP CONSTRAINT execution_check,
    DROP CONSTRAINT execution_check1,
    DROP CONSTRAINT execution_check2,
    DROP CONSTRAINT execution_check3,
    DROP CONSTRAINT execution_check4,
    DROP CONSTRAINT execution_check5,
    DROP CONSTRAINT execution_check6,
    DROP CONSTRAINT execution_check7,
    ADD CONSTRAINT execution_life CHECK (
        CASE
            WHEN ended_at IS NULL THEN purge_at IS NULL AND state = ANY ('{waiting,delayed,blocked,active,suspended}')
            ELSE purge_at IS NOT NULL AND state = ANY ('{completed,failed,cancelled,expired,skipped}')
        END
        AND (state <> 'delayed' OR ready_at IS NOT NULL)
    ),
    ADD CONSTRAINT execution_owner CHECK (
        CASE ownership
            WHEN 'leased' THEN lease_id IS NOT NULL
            ELSE lease_id IS NULL AND attempt_timeout_at IS NULL
                AND ownership = ANY ('{lease_expired_reclaimable,lease_revoked}')
        END
        AND (state = 'active') = (ownership IS NOT NULL)
    ),
    ADD CONSTRAINT execution_lease CHECK (num_nulls(lease_id, lease_instance, lease_expires_at, lease_check_at) % 4 = 0),
    ADD CONSTRAINT execution_former CHECK (num_nulls(former_lease_id, former_epoch, former_end) % 3 = 0),
    ADD CONSTRAINT execution_counts CHECK (LEAST(epoch, version, step_seq) >= 0);
ALTER TABLE ff.attempt
    DROP CONSTRAINT attempt_outcome_check,
    ADD CONSTRAINT attempt_outcome CHECK (
        outcome = ANY ('{ended_success,ended_failure,ended_cancelled,interrupted_reclaimed}')
    );
ALTER TABLE ff.step
    DROP CONSTRAINT step_status_check,
    ADD CONSTRAINT step_status CHECK (status = ANY ('{open,ok,failed,abandoned,cancelled}'));

-- A pause of an execution; `number` counts them. The condition is JSON, as it is shown.
CREATE TABLE ff.suspension (
    execution_id UUID NOT NULL,
    number INTEGER NOT NULL CHECK (number >= 1),
    id UUID NOT NULL,
    generation INTEGER NOT NULL,
    epoch BIGINT NOT NULL,
    lease_id UUID NOT NULL,
    key TEXT,
    digest TEXT NOT NULL,
    condition JSONB NOT NULL,
    reason TEXT NOT NULL,
    rest TEXT NOT NULL CHECK (rest = ANY ('{close,keep}')),
    opened_at TIMESTAMPTZ NOT NULL,
    timeout_at TIMESTAMPTZ,
    on_timeout TEXT NOT NULL CHECK (on_timeout = ANY ('{fail,cancel,expire,auto_resume,escalate}')),
    resume_delay_us BIGINT NOT NULL CHECK (resume_delay_us >= 0),
    closed_at TIMESTAMPTZ,
    closed_by TEXT CHECK (closed_by = ANY ('{signals,timeout,operator,ended}')),
    PRIMARY KEY (execution_id, number),
    CHECK ((closed_at IS NULL) = (closed_by IS NULL))
);
CREATE UNIQUE INDEX suspension_open ON ff.suspension (execution_id) WHERE closed_at IS NULL;
CREATE UNIQUE INDEX suspension_key ON ff.suspension (execution_id, generation, key) WHERE key IS NOT NULL;
CREATE INDEX suspension_timeout ON ff.suspension (timeout_at) WHERE timeout_at IS NOT NULL AND closed_at IS NULL;

-- Of a token the hash and the nonce are kept, from which only the key can make it again.
CREATE TABLE ff.waitpoint (
    id UUID NOT NULL PRIMARY KEY,
    execution_id UUID NOT NULL,
    key TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind = ANY ('{addressed,standing,child,timer}')),
    state TEXT NOT NULL CHECK (state = ANY ('{pending,active,closed}')),
    suspension INTEGER,
    kid TEXT,
    nonce BYTEA,
    token_hash BYTEA,
    approver TEXT,
    token_ends_at TIMESTAMPTZ,
    child_id UUID,
    fires_at TIMESTAMPTZ,
    created_at TIMESTAMPTZ NOT NULL,
    expires_at TIMESTAMPTZ,
    closed_at TIMESTAMPTZ,
    close_reason TEXT,
    CHECK ((kid IS NULL) = (nonce IS NULL) AND (kid IS NULL) = (token_hash IS NULL)),
    CHECK ((state = 'closed') = (closed_at IS NOT NULL)),
    CHECK (state <> 'active' OR suspension IS NOT NULL)
);
CREATE UNIQUE INDEX waitpoint_open_key ON ff.waitpoint (execution_id, key) WHERE closed_at IS NULL;
CREATE INDEX waitpoint_execution ON ff.waitpoint (execution_id, id);
CREATE INDEX waitpoint_expires ON ff.waitpoint (expires_at) WHERE state = 'pending' AND expires_at IS NOT NULL;
CREATE INDEX waitpoint_fires ON ff.waitpoint (fires_at) WHERE fires_at IS NOT NULL AND closed_at IS NULL;
CREATE INDEX waitpoint_child ON ff.waitpoint (child_id) WHERE child_id IS NOT NULL AND closed_at IS NULL;
CREATE INDEX waitpoint_kid ON ff.waitpoint (kid) WHERE kid IS NOT NULL AND closed_at IS NULL;

-- In order of acceptance within the execution. `suspension` is the wait that a signal belongs to; none: it is still unused.
CREATE TABLE ff.signal (
    execution_id UUID NOT NULL,
    seq BIGINT NOT NULL CHECK (seq >= 1),
    id UUID NOT NULL,
    waitpoint_id UUID,
    waitpoint TEXT NOT NULL,
    suspension INTEGER,
    counts BOOLEAN NOT NULL,
    name TEXT NOT NULL,
    category TEXT NOT NULL,
    source TEXT NOT NULL,
    source_type TEXT NOT NULL,
    source_identity TEXT NOT NULL,
    correlation TEXT,
    payload BYTEA NOT NULL,
    encoding TEXT NOT NULL,
    key TEXT,
    created_at TIMESTAMPTZ,
    accepted_at TIMESTAMPTZ NOT NULL,
    effect TEXT NOT NULL CHECK (effect = ANY ('{appended_to_waitpoint,resume_condition_satisfied,buffered_for_pending_waitpoint}')),
    PRIMARY KEY (execution_id, seq)
);
CREATE UNIQUE INDEX signal_id ON ff.signal (execution_id, id);
CREATE UNIQUE INDEX signal_key ON ff.signal (waitpoint_id, key) WHERE key IS NOT NULL;
CREATE INDEX signal_counting ON ff.signal (execution_id, suspension, seq) WHERE counts;
CREATE INDEX signal_unused ON ff.signal (waitpoint_id, seq) WHERE suspension IS NULL;

-- The key ring. A collected key keeps its kid, so that no kid is used twice; with a key file no secret is here at all.
CREATE TABLE ff.signing_key (
    kid TEXT NOT NULL PRIMARY KEY,
    check_value TEXT NOT NULL,
    secret TEXT,
    created_at TIMESTAMPTZ NOT NULL,
    retired_at TIMESTAMPTZ,
    verifies_until TIMESTAMPTZ,
    end_is_final BOOLEAN NOT NULL,
    collected_at TIMESTAMPTZ,
    -- True while the key is active: the unique index allows one such row.
    active BOOLEAN CHECK (active),
    CHECK ((active IS NULL) = (retired_at IS NOT NULL)),
    CHECK ((retired_at IS NULL) = (verifies_until IS NULL))
);
CREATE UNIQUE INDEX signing_key_active ON ff.signing_key (active) WHERE active;
