-- The current schema, for readers. Tests check that it equals the result of all migrations.
-- Durations are integers in microseconds. An INTERVAL of days would depend on the time zone of the session.

-- The applied migrations.
CREATE TABLE ff.migration (
    version INTEGER NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    sha256 TEXT NOT NULL
);

CREATE TABLE ff.route (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace TEXT NOT NULL,
    lane TEXT NOT NULL,
    kind TEXT NOT NULL,
    requires TEXT[] NOT NULL,
    -- SHA-256 over the other columns, which together may exceed the size limit of an index entry.
    digest TEXT NOT NULL UNIQUE
);
CREATE INDEX route_lane ON ff.route (namespace, lane);

CREATE TABLE ff.lane (
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('active', 'paused', 'draining')),
    changed_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (namespace, name)
);

CREATE TABLE ff.execution (
    id UUID PRIMARY KEY,
    namespace TEXT NOT NULL,
    lane TEXT NOT NULL,
    kind TEXT NOT NULL,
    route_id BIGINT NOT NULL,
    priority INTEGER NOT NULL,
    payload BYTEA NOT NULL,
    encoding TEXT NOT NULL,
    tags JSONB NOT NULL,
    policy JSONB NOT NULL,
    idempotency_key TEXT,
    fingerprint BYTEA NOT NULL,
    lease_ttl_policy_us BIGINT NOT NULL,
    attempt_timeout_policy_us BIGINT,
    retention_policy_us BIGINT NOT NULL,

    state TEXT NOT NULL,
    blocking_reason TEXT NOT NULL,
    attempt_state TEXT NOT NULL,
    ownership TEXT,
    epoch BIGINT NOT NULL,
    version BIGINT NOT NULL,
    generation INTEGER NOT NULL,
    -- True until a flow, child, waitpoint or grant is attached. Then false permanently, and ending the execution
    -- must also update what is attached.
    plain BOOLEAN NOT NULL,

    created_at TIMESTAMPTZ NOT NULL,
    changed_at TIMESTAMPTZ NOT NULL,
    started_at TIMESTAMPTZ,
    ended_at TIMESTAMPTZ,
    ready_at TIMESTAMPTZ,
    deadline_at TIMESTAMPTZ,
    attempt_timeout_at TIMESTAMPTZ,
    attempt_timeout_left_us BIGINT,
    purge_at TIMESTAMPTZ,

    lease_id UUID,
    lease_worker TEXT,
    lease_instance TEXT,
    lease_ttl_us BIGINT,
    lease_acquired_at TIMESTAMPTZ,
    lease_expires_at TIMESTAMPTZ,
    lease_check_at TIMESTAMPTZ,
    lease_resumed BOOLEAN,

    former_lease_id UUID,
    former_epoch BIGINT,
    former_worker TEXT,
    former_instance TEXT,
    former_end TEXT,
    former_digest TEXT,
    former_until TIMESTAMPTZ,

    attempt_index INTEGER NOT NULL,
    attempt_origin TEXT NOT NULL,
    attempt_started_at TIMESTAMPTZ,
    retry_count INTEGER NOT NULL,
    reclaim_count INTEGER NOT NULL,
    replay_count INTEGER NOT NULL,
    step_seq BIGINT NOT NULL,

    progress_percent INTEGER,
    progress_message TEXT,
    failure_message TEXT,
    failure_category TEXT,
    cancelled_by TEXT,
    cancel_reason TEXT,
    hold_reason TEXT,
    signal_seq BIGINT NOT NULL DEFAULT 0,
    suspension_count INTEGER NOT NULL DEFAULT 0,
    resume_suspension_id UUID,
    resume_trigger TEXT,
    flow_id UUID,
    member_name TEXT,
    parent_id UUID,
    has_children BOOLEAN NOT NULL DEFAULT FALSE,
    cancel_due_at TIMESTAMPTZ,
    cancel_request TEXT,
    -- The largest transaction id among the events of this execution. See event.transaction_id.
    event_xid XID8 NOT NULL DEFAULT '0',

    -- PostgreSQL parses the CHECK expressions of a table for every statement that writes to it, so there are few and
    -- they are short.
    CONSTRAINT execution_life CHECK (
        CASE
            WHEN ended_at IS NULL THEN purge_at IS NULL AND state = ANY ('{waiting,delayed,blocked,active,suspended}')
            ELSE purge_at IS NOT NULL AND state = ANY ('{completed,failed,cancelled,expired,skipped}')
        END
        AND (state <> 'delayed' OR ready_at IS NOT NULL)
    ),
    CONSTRAINT execution_owner CHECK (
        CASE ownership
            WHEN 'leased' THEN lease_id IS NOT NULL
            ELSE lease_id IS NULL AND attempt_timeout_at IS NULL
                AND ownership = ANY ('{lease_expired_reclaimable,lease_revoked}')
        END
        AND (state = 'active') = (ownership IS NOT NULL)
    ),
    CONSTRAINT execution_lease CHECK (num_nulls(lease_id, lease_instance, lease_expires_at, lease_check_at) % 4 = 0),
    CONSTRAINT execution_former CHECK (num_nulls(former_lease_id, former_epoch, former_end) % 3 = 0),
    CONSTRAINT execution_counts CHECK (LEAST(epoch, version, step_seq) >= 0)
    -- The leases of a batch share pages and are renewed together. Half-empty pages keep these updates inside the page.
) WITH (fillfactor = 50);

-- The queue of each route. Within one priority, resumed executions come before new ones.
CREATE INDEX execution_queue ON ff.execution
    (route_id, priority DESC, (attempt_state <> 'attempt_interrupted'), created_at, id)
    WHERE state = 'waiting';
CREATE INDEX execution_by_state ON ff.execution (namespace, state, id);
CREATE INDEX execution_ready ON ff.execution (ready_at) WHERE state = 'delayed';
-- A renewal changes lease_expires_at. No index contains that column, so the update can stay inside its page.
CREATE INDEX execution_lease_check ON ff.execution (lease_check_at) WHERE lease_check_at IS NOT NULL;
CREATE INDEX execution_attempt_timeout ON ff.execution (attempt_timeout_at) WHERE attempt_timeout_at IS NOT NULL;
CREATE INDEX execution_deadline ON ff.execution (deadline_at) WHERE deadline_at IS NOT NULL AND ended_at IS NULL;
CREATE INDEX execution_flow ON ff.execution (flow_id, state, id) WHERE flow_id IS NOT NULL;
CREATE INDEX execution_parent ON ff.execution (parent_id, id) WHERE parent_id IS NOT NULL;
CREATE INDEX execution_cancel_due ON ff.execution (cancel_due_at) WHERE cancel_due_at IS NOT NULL AND ended_at IS NULL;
-- Flow members and parents are purged together with their flow, so this index leaves them out.
CREATE INDEX execution_purge ON ff.execution (purge_at) WHERE purge_at IS NOT NULL AND flow_id IS NULL AND NOT has_children;

CREATE TABLE ff.submission_key (
    namespace TEXT NOT NULL,
    key TEXT NOT NULL,
    execution_id UUID NOT NULL,
    fingerprint BYTEA NOT NULL,
    expires_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (namespace, key)
);
CREATE INDEX submission_key_expires ON ff.submission_key (expires_at);
CREATE INDEX submission_key_execution ON ff.submission_key (execution_id);

CREATE TABLE ff.attempt (
    execution_id UUID NOT NULL,
    attempt_index INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    origin TEXT NOT NULL,
    worker TEXT,
    instance TEXT,
    started_at TIMESTAMPTZ NOT NULL,
    ended_at TIMESTAMPTZ NOT NULL,
    outcome TEXT NOT NULL,
    result BYTEA,
    encoding TEXT,
    failure_class TEXT,
    failure_category TEXT,
    failure_message TEXT,
    failure_detail BYTEA,
    PRIMARY KEY (execution_id, attempt_index),
    CONSTRAINT attempt_outcome CHECK (
        outcome = ANY ('{ended_success,ended_failure,ended_cancelled,interrupted_reclaimed}')
    )
);

CREATE TABLE ff.step (
    execution_id UUID NOT NULL,
    seq BIGINT NOT NULL,
    name TEXT NOT NULL,
    status TEXT NOT NULL,
    payload BYTEA NOT NULL,
    encoding TEXT NOT NULL,
    digest TEXT NOT NULL,
    attempt_index INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    recorded_at TIMESTAMPTZ NOT NULL,
    struck_by INTEGER,
    PRIMARY KEY (execution_id, seq),
    CONSTRAINT step_status CHECK (status = ANY ('{open,ok,failed,abandoned,cancelled}'))
);
-- A replay keeps the steps that it strikes out. Step names are unique among the others.
CREATE UNIQUE INDEX step_name ON ff.step (execution_id, name) WHERE struck_by IS NULL;

CREATE TABLE ff.reclaim_grant (
    id UUID PRIMARY KEY,
    execution_id UUID NOT NULL,
    worker TEXT NOT NULL,
    instance TEXT NOT NULL,
    granted_at TIMESTAMPTZ NOT NULL,
    expires_at TIMESTAMPTZ NOT NULL,
    consumed_by UUID
);
CREATE INDEX reclaim_grant_execution ON ff.reclaim_grant (execution_id);

CREATE TABLE ff.event (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    -- The id of the writing transaction, or the larger id of an earlier event of the same execution. A transaction can
    -- get its id before it waits for a row lock, so its own id alone would not keep these events in order.
    transaction_id XID8 NOT NULL DEFAULT pg_current_xact_id(),
    namespace TEXT NOT NULL,
    family TEXT NOT NULL,
    name TEXT NOT NULL,
    at TIMESTAMPTZ NOT NULL,
    lane TEXT NOT NULL,
    execution_id UUID,
    version BIGINT,
    kind TEXT,
    state TEXT,
    epoch BIGINT,
    generation INTEGER,
    attempt_index INTEGER,
    lease_id UUID,
    worker TEXT,
    instance TEXT,
    ends_lease BOOLEAN NOT NULL,
    tags JSONB,
    principal TEXT,
    reason TEXT,
    details JSONB,
    flow_id UUID,
    -- Subscribers read events in this order.
    PRIMARY KEY (transaction_id, id),
    CHECK ((execution_id IS NULL) = (version IS NULL))
);
CREATE UNIQUE INDEX event_version ON ff.event (execution_id, version) WHERE execution_id IS NOT NULL;
CREATE INDEX event_apart ON ff.event (at) WHERE execution_id IS NULL;

-- One suspension of an execution, numbered from 1. The condition is stored as the JSON that views show.
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

-- A waitpoint stores the hash and the nonce of its token, not the token. Recreating the token needs the signing key.
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
    -- The generation that created the waitpoint. A later generation does not use its signals.
    generation INTEGER NOT NULL DEFAULT 0,
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

-- Signals of an execution in the order of acceptance. `suspension` is the number of the suspension that uses the
-- signal, or null while the signal is unused.
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

-- The key ring. A collected key keeps its row, so that its kid is never used again. With a key file, `secret` is null.
CREATE TABLE ff.signing_key (
    kid TEXT NOT NULL PRIMARY KEY,
    check_value TEXT NOT NULL,
    secret TEXT,
    created_at TIMESTAMPTZ NOT NULL,
    retired_at TIMESTAMPTZ,
    verifies_until TIMESTAMPTZ,
    end_is_final BOOLEAN NOT NULL,
    collected_at TIMESTAMPTZ,
    -- True for the active key, otherwise null. The unique index allows one active key.
    active BOOLEAN CHECK (active),
    CHECK ((active IS NULL) = (retired_at IS NOT NULL)),
    CHECK ((retired_at IS NULL) = (verifies_until IS NULL))
);
CREATE UNIQUE INDEX signing_key_active ON ff.signing_key (active) WHERE active;

-- Operations that end, block, release or add a member lock the flow row. This lock also covers edges and groups.
CREATE TABLE ff.flow (
    id UUID NOT NULL PRIMARY KEY,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    -- True for the flow that holds the children of an execution. Its id is the id of that execution.
    implicit BOOLEAN NOT NULL,
    tags JSONB NOT NULL,
    digest TEXT NOT NULL,
    sealed BOOLEAN NOT NULL,
    revision BIGINT NOT NULL CHECK (revision >= 0),
    open_members INTEGER NOT NULL CHECK (open_members >= 0),
    ended_badly INTEGER NOT NULL CHECK (ended_badly >= 0),
    created_at TIMESTAMPTZ NOT NULL,
    changed_at TIMESTAMPTZ NOT NULL,
    ended_at TIMESTAMPTZ,
    finished TEXT CHECK (finished = ANY ('{completed,failed,cancelled}')),
    cancel_policy TEXT CHECK (cancel_policy = ANY ('{cancel_all,cancel_pending,flow_only}')),
    cancel_reason TEXT,
    cancel_source TEXT,
    cancel_principal TEXT,
    cancelled_at TIMESTAMPTZ,
    -- Set while members or siblings remain to be cancelled.
    sweep_at TIMESTAMPTZ,
    purge_at TIMESTAMPTZ,
    CHECK ((ended_at IS NULL) = (finished IS NULL)),
    CHECK (num_nulls(cancel_policy, cancel_reason, cancel_source, cancel_principal, cancelled_at) IN (0, 5))
) WITH (fillfactor = 50);
CREATE INDEX flow_by_namespace ON ff.flow (namespace, id);
CREATE INDEX flow_live ON ff.flow (namespace, id) WHERE finished IS NULL;
CREATE INDEX flow_sweep ON ff.flow (sweep_at) WHERE sweep_at IS NOT NULL;
CREATE INDEX flow_purge ON ff.flow (purge_at) WHERE purge_at IS NOT NULL;

-- Each edge is inserted and later resolved by one update. The pages keep room for that update, since a race resolves
-- all its edges together.
CREATE TABLE ff.edge (
    upstream_id UUID NOT NULL,
    downstream_id UUID NOT NULL,
    seq INTEGER NOT NULL CHECK (seq >= 0),
    flow_id UUID NOT NULL,
    kind TEXT NOT NULL CHECK (kind = ANY ('{on_success,on_failure,on_completion}')),
    input TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state = ANY ('{open,satisfied,impossible}')),
    resolved_at TIMESTAMPTZ,
    PRIMARY KEY (upstream_id, downstream_id, seq),
    CHECK ((state = 'open') = (resolved_at IS NULL))
) WITH (fillfactor = 45);
CREATE INDEX edge_into ON ff.edge (downstream_id, seq, upstream_id);
CREATE INDEX edge_flow ON ff.edge (flow_id, upstream_id, downstream_id, seq);

-- A group of inbound edges of one member. The counters can be recomputed from the edges.
CREATE TABLE ff.edge_group (
    downstream_id UUID NOT NULL,
    seq INTEGER NOT NULL CHECK (seq >= 0),
    flow_id UUID NOT NULL,
    join_kind TEXT NOT NULL CHECK (join_kind = ANY ('{all_of,any_of,quorum}')),
    k INTEGER CHECK (k >= 1),
    siblings TEXT NOT NULL CHECK (siblings = ANY ('{let_run,cancel_remaining}')),
    state TEXT NOT NULL CHECK (state = ANY ('{open,fired,impossible,closed}')),
    draft BOOLEAN NOT NULL,
    sweeping BOOLEAN NOT NULL,
    n INTEGER NOT NULL,
    satisfied INTEGER NOT NULL CHECK (satisfied >= 0),
    impossible INTEGER NOT NULL CHECK (impossible >= 0),
    PRIMARY KEY (downstream_id, seq),
    CHECK (satisfied + impossible <= n),
    CHECK ((join_kind = 'quorum') = (k IS NOT NULL))
) WITH (fillfactor = 50);
CREATE INDEX edge_group_flow ON ff.edge_group (flow_id, downstream_id, seq);

-- One row with the identity of the store and the position up to which events were trimmed.
CREATE TABLE ff.store (
    id UUID NOT NULL PRIMARY KEY,
    trimmed_xid XID8 NOT NULL,
    trimmed_id BIGINT NOT NULL,
    -- True if a testing kit created the store, so that its time may move as a test demands.
    is_test BOOLEAN NOT NULL DEFAULT FALSE
);

-- The position of each named subscriber, which has processed all events up to it. One process holds it at a time.
CREATE TABLE ff.subscriber (
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    transaction_id XID8 NOT NULL,
    event_id BIGINT NOT NULL,
    holder UUID,
    held_until TIMESTAMPTZ,
    created_at TIMESTAMPTZ NOT NULL,
    seen_at TIMESTAMPTZ NOT NULL,
    expired_at TIMESTAMPTZ,
    PRIMARY KEY (namespace, name),
    CHECK ((holder IS NULL) = (held_until IS NULL))
);

-- Purged executions whose events are still stored.
CREATE TABLE ff.purged (
    execution_id UUID NOT NULL PRIMARY KEY,
    trim_at TIMESTAMPTZ NOT NULL
);
CREATE INDEX purged_trim ON ff.purged (trim_at);

CREATE TABLE ff.worker (
    namespace TEXT NOT NULL,
    instance TEXT NOT NULL,
    name TEXT NOT NULL,
    lanes TEXT[] NOT NULL,
    capabilities TEXT[] NOT NULL,
    version TEXT NOT NULL,
    host TEXT NOT NULL,
    slots INTEGER NOT NULL CHECK (slots >= 0),
    busy INTEGER NOT NULL CHECK (busy >= 0),
    ttl_us BIGINT NOT NULL,
    registered_at TIMESTAMPTZ NOT NULL,
    seen_at TIMESTAMPTZ NOT NULL,
    expires_at TIMESTAMPTZ NOT NULL,
    -- The task kinds that the worker runs, or null if it takes every kind.
    kinds TEXT[],
    PRIMARY KEY (namespace, instance)
) WITH (fillfactor = 50);
CREATE INDEX worker_expires ON ff.worker (expires_at);
