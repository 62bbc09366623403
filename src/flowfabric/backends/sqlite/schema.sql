-- The current schema, for readers. Tests check that it equals the result of all migrations.
-- Times are integers in microseconds since 1970 UTC, durations are in microseconds. Ids and JSON are text.

-- The applied migrations.
CREATE TABLE ff.migration (
    version INTEGER NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    sha256 TEXT NOT NULL
);

CREATE TABLE ff.route (
    -- Follows from the digest. Routes from before have small ids, which were counted.
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace TEXT NOT NULL,
    lane TEXT NOT NULL,
    kind TEXT NOT NULL,
    requires TEXT NOT NULL,
    -- SHA-256 over the other columns, which together may exceed the size limit of an index entry.
    digest TEXT NOT NULL UNIQUE
) STRICT;
CREATE INDEX ff_route_lane ON ff.route (namespace, lane);

CREATE TABLE ff.lane (
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('active', 'paused', 'draining')),
    changed_at INTEGER NOT NULL,
    -- Who changed the state, and why. Null if an earlier release changed it.
    principal TEXT,
    reason TEXT,
    PRIMARY KEY (namespace, name)
) STRICT;

CREATE TABLE ff.execution (
    id TEXT NOT NULL PRIMARY KEY,
    namespace TEXT NOT NULL,
    lane TEXT NOT NULL,
    kind TEXT NOT NULL,
    route_id INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    payload BLOB NOT NULL,
    encoding TEXT NOT NULL,
    tags TEXT NOT NULL,
    policy TEXT NOT NULL,
    idempotency_key TEXT,
    fingerprint BLOB NOT NULL,
    lease_ttl_policy_us INTEGER NOT NULL,
    attempt_timeout_policy_us INTEGER,
    retention_policy_us INTEGER NOT NULL,

    state TEXT NOT NULL CHECK (state IN (
        'waiting', 'delayed', 'blocked', 'active', 'suspended', 'completed', 'failed', 'cancelled', 'expired', 'skipped'
    )),
    blocking_reason TEXT NOT NULL,
    attempt_state TEXT NOT NULL,
    ownership TEXT CHECK (ownership IN ('leased', 'lease_expired_reclaimable', 'lease_revoked')),
    epoch INTEGER NOT NULL CHECK (epoch >= 0),
    version INTEGER NOT NULL CHECK (version >= 0),
    generation INTEGER NOT NULL CHECK (generation >= 0),
    -- True until a flow, child, waitpoint or grant is attached. Then false permanently, and ending the execution
    -- must also update what is attached.
    plain INTEGER NOT NULL,

    created_at INTEGER NOT NULL,
    changed_at INTEGER NOT NULL,
    started_at INTEGER,
    ended_at INTEGER,
    ready_at INTEGER,
    deadline_at INTEGER,
    attempt_timeout_at INTEGER,
    attempt_timeout_left_us INTEGER,
    purge_at INTEGER,

    lease_id TEXT,
    lease_worker TEXT,
    lease_instance TEXT,
    lease_ttl_us INTEGER,
    lease_acquired_at INTEGER,
    lease_expires_at INTEGER,
    lease_check_at INTEGER,
    lease_resumed INTEGER,

    former_lease_id TEXT,
    former_epoch INTEGER,
    former_worker TEXT,
    former_instance TEXT,
    former_end TEXT,
    former_digest TEXT,
    former_until INTEGER,

    attempt_index INTEGER NOT NULL CHECK (attempt_index >= 0),
    attempt_origin TEXT NOT NULL CHECK (attempt_origin IN ('fresh', 'retry', 'reclaimed', 'replayed')),
    attempt_started_at INTEGER,
    retry_count INTEGER NOT NULL CHECK (retry_count >= 0),
    reclaim_count INTEGER NOT NULL CHECK (reclaim_count >= 0),
    replay_count INTEGER NOT NULL CHECK (replay_count >= 0),
    step_seq INTEGER NOT NULL CHECK (step_seq >= 0),

    progress_percent INTEGER CHECK (progress_percent BETWEEN 0 AND 100),
    progress_message TEXT,
    failure_message TEXT,
    failure_category TEXT,
    cancelled_by TEXT,
    cancel_reason TEXT,
    hold_reason TEXT,
    signal_seq INTEGER NOT NULL DEFAULT 0,
    suspension_count INTEGER NOT NULL DEFAULT 0,
    resume_suspension_id TEXT,
    resume_trigger TEXT,
    flow_id TEXT,
    member_name TEXT,
    parent_id TEXT,
    has_children INTEGER NOT NULL DEFAULT FALSE,
    cancel_due_at INTEGER,
    cancel_request TEXT,
    -- Who submitted the execution. Null if the submission did not say.
    creator TEXT,

    CHECK ((state = 'active') = (ownership IS NOT NULL)),
    CHECK ((ownership IS 'leased') = (lease_id IS NOT NULL)),
    CHECK ((
        (lease_id IS NULL) + (lease_worker IS NULL) + (lease_instance IS NULL) + (lease_ttl_us IS NULL)
        + (lease_acquired_at IS NULL) + (lease_expires_at IS NULL) + (lease_check_at IS NULL) + (lease_resumed IS NULL)
    ) IN (0, 8)),
    CHECK ((
        (former_lease_id IS NULL) + (former_epoch IS NULL) + (former_worker IS NULL) + (former_instance IS NULL)
        + (former_end IS NULL)
    ) IN (0, 5)),
    CHECK ((state IN ('completed', 'failed', 'cancelled', 'expired', 'skipped')) = (ended_at IS NOT NULL)),
    CHECK ((ended_at IS NOT NULL) = (purge_at IS NOT NULL)),
    CHECK (state <> 'delayed' OR ready_at IS NOT NULL),
    CHECK (attempt_timeout_at IS NULL OR lease_id IS NOT NULL)
) STRICT;

-- The queue of each route. Within one priority, resumed executions come before new ones.
CREATE INDEX ff_execution_queue ON ff.execution
    (route_id, priority DESC, (attempt_state <> 'attempt_interrupted'), created_at, id)
    WHERE state = 'waiting';
CREATE INDEX ff_execution_by_state ON ff.execution (namespace, state, id);
CREATE INDEX ff_execution_ready ON ff.execution (ready_at) WHERE state = 'delayed';
-- A renewal changes lease_expires_at. No index contains that column, so the update can stay inside its page.
CREATE INDEX ff_execution_lease_check ON ff.execution (lease_check_at) WHERE lease_check_at IS NOT NULL;
CREATE INDEX ff_execution_attempt_timeout ON ff.execution (attempt_timeout_at) WHERE attempt_timeout_at IS NOT NULL;
CREATE INDEX ff_execution_deadline ON ff.execution (deadline_at) WHERE deadline_at IS NOT NULL AND ended_at IS NULL;
CREATE INDEX ff_execution_flow ON ff.execution (flow_id, state, id) WHERE flow_id IS NOT NULL;
CREATE INDEX ff_execution_parent ON ff.execution (parent_id, id) WHERE parent_id IS NOT NULL;
CREATE INDEX ff_execution_cancel_due ON ff.execution (cancel_due_at) WHERE cancel_due_at IS NOT NULL AND ended_at IS NULL;
-- The held executions, by kind. A hold reason may be too long for an index entry, so it is not in the index.
CREATE INDEX ff_execution_held ON ff.execution (namespace, kind, id) WHERE hold_reason IS NOT NULL;
-- Flow members and parents are purged together with their flow, so this index leaves them out.
CREATE INDEX ff_execution_purge ON ff.execution (purge_at) WHERE purge_at IS NOT NULL AND flow_id IS NULL AND NOT has_children;

CREATE TABLE ff.submission_key (
    namespace TEXT NOT NULL,
    key TEXT NOT NULL,
    execution_id TEXT NOT NULL,
    fingerprint BLOB NOT NULL,
    expires_at INTEGER NOT NULL,
    -- When to drop a key whose execution was purged before the window passed. Null while the execution is kept.
    drop_at INTEGER,
    PRIMARY KEY (namespace, key)
) STRICT;
-- Only processes of the previous release use this index.
CREATE INDEX ff_submission_key_expires ON ff.submission_key (expires_at);
CREATE INDEX ff_submission_key_execution ON ff.submission_key (execution_id);
CREATE INDEX ff_submission_key_drop ON ff.submission_key (drop_at) WHERE drop_at IS NOT NULL;

CREATE TABLE ff.attempt (
    execution_id TEXT NOT NULL,
    attempt_index INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    origin TEXT NOT NULL,
    worker TEXT,
    instance TEXT,
    started_at INTEGER NOT NULL,
    ended_at INTEGER NOT NULL,
    outcome TEXT NOT NULL CHECK (outcome IN ('ended_success', 'ended_failure', 'ended_cancelled', 'interrupted_reclaimed')),
    result BLOB,
    encoding TEXT,
    failure_class TEXT,
    failure_category TEXT,
    failure_message TEXT,
    failure_detail BLOB,
    PRIMARY KEY (execution_id, attempt_index)
) STRICT;

CREATE TABLE ff.step (
    execution_id TEXT NOT NULL,
    seq INTEGER NOT NULL,
    name TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('open', 'ok', 'failed', 'abandoned', 'cancelled')),
    payload BLOB NOT NULL,
    encoding TEXT NOT NULL,
    digest TEXT NOT NULL,
    attempt_index INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    recorded_at INTEGER NOT NULL,
    struck_by INTEGER,
    PRIMARY KEY (execution_id, seq)
) STRICT;
-- A replay keeps the steps that it strikes out. Step names are unique among the others.
CREATE UNIQUE INDEX ff_step_name ON ff.step (execution_id, name) WHERE struck_by IS NULL;

CREATE TABLE ff.reclaim_grant (
    id TEXT NOT NULL PRIMARY KEY,
    execution_id TEXT NOT NULL,
    worker TEXT NOT NULL,
    instance TEXT NOT NULL,
    granted_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    consumed_by TEXT
) STRICT;
CREATE INDEX ff_reclaim_grant_execution ON ff.reclaim_grant (execution_id);

CREATE TABLE ff.event (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace TEXT NOT NULL,
    family TEXT NOT NULL,
    name TEXT NOT NULL,
    at INTEGER NOT NULL,
    lane TEXT NOT NULL,
    execution_id TEXT,
    version INTEGER,
    kind TEXT,
    state TEXT,
    epoch INTEGER,
    generation INTEGER,
    attempt_index INTEGER,
    lease_id TEXT,
    worker TEXT,
    instance TEXT,
    ends_lease INTEGER NOT NULL,
    tags TEXT,
    principal TEXT,
    reason TEXT,
    details TEXT,
    flow_id TEXT,
    CHECK ((execution_id IS NULL) = (version IS NULL))
) STRICT;
CREATE UNIQUE INDEX ff_event_version ON ff.event (execution_id, version) WHERE execution_id IS NOT NULL;
CREATE INDEX ff_event_apart ON ff.event (at) WHERE execution_id IS NULL;

-- One suspension of an execution, numbered from 1. The condition is stored as the JSON that views show.
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
CREATE UNIQUE INDEX ff_suspension_id ON ff.suspension (execution_id, id);
CREATE UNIQUE INDEX ff_suspension_open ON ff.suspension (execution_id) WHERE closed_at IS NULL;
CREATE UNIQUE INDEX ff_suspension_key ON ff.suspension (execution_id, generation, key) WHERE key IS NOT NULL;
CREATE INDEX ff_suspension_timeout ON ff.suspension (timeout_at) WHERE timeout_at IS NOT NULL AND closed_at IS NULL;

-- A waitpoint stores the hash and the nonce of its token, not the token. Recreating the token needs the signing key.
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
    -- The generation that created the waitpoint. A later generation does not use its signals.
    generation INTEGER NOT NULL DEFAULT 0,
    -- The schema of the payloads that the waiting code can read, as JSON text. Null if it is not known.
    payload_schema TEXT,
    -- The title, details and values that an approver sees, as JSON text. Null without any of them.
    prompt TEXT,
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

-- Signals of an execution in the order of acceptance. `suspension` is the number of the suspension that uses or
-- observes the signal, or null.
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

-- The key ring. A collected key keeps its row, so that its kid is never used again. With a key file, `secret` is null.
CREATE TABLE ff.signing_key (
    kid TEXT NOT NULL PRIMARY KEY,
    check_value TEXT NOT NULL,
    secret TEXT,
    created_at INTEGER NOT NULL,
    retired_at INTEGER,
    verifies_until INTEGER,
    end_is_final INTEGER NOT NULL,
    collected_at INTEGER,
    -- True for the active key, otherwise null. The unique index allows one active key.
    active INTEGER CHECK (active = 1),
    CHECK ((active IS NULL) = (retired_at IS NOT NULL)),
    CHECK ((retired_at IS NULL) = (verifies_until IS NULL))
) STRICT;
CREATE UNIQUE INDEX ff_signing_key_active ON ff.signing_key (active) WHERE active = 1;

-- The latest time that any writer of this file used. The clock of a writer never goes back behind it.
-- `previous_at` is the value before the last transaction. It proves that a log belongs to the database next to it.
CREATE TABLE ff.clock (
    only_row INTEGER NOT NULL PRIMARY KEY CHECK (only_row = 1),
    newest_at INTEGER NOT NULL,
    previous_at INTEGER,
    -- The boot of the host in which the time was stored, and the time minus the time since that boot.
    boot_id TEXT NOT NULL DEFAULT '',
    boot_offset_us INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO ff.clock (only_row, newest_at) VALUES (1, 0);

-- Operations that end, block, release or add a member lock the flow row. This lock also covers edges and groups.
CREATE TABLE ff.flow (
    id TEXT NOT NULL PRIMARY KEY,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    -- True for the flow that holds the children of an execution. Its id is the id of that execution.
    implicit INTEGER NOT NULL,
    tags TEXT NOT NULL,
    digest TEXT NOT NULL,
    sealed INTEGER NOT NULL,
    revision INTEGER NOT NULL CHECK (revision >= 0),
    open_members INTEGER NOT NULL CHECK (open_members >= 0),
    ended_badly INTEGER NOT NULL CHECK (ended_badly >= 0),
    created_at INTEGER NOT NULL,
    changed_at INTEGER NOT NULL,
    ended_at INTEGER,
    finished TEXT CHECK (finished IN ('completed', 'failed', 'cancelled')),
    cancel_policy TEXT CHECK (cancel_policy IN ('cancel_all', 'cancel_pending', 'flow_only')),
    cancel_reason TEXT,
    cancel_source TEXT,
    cancel_principal TEXT,
    cancelled_at INTEGER,
    -- Set while members or siblings remain to be cancelled.
    sweep_at INTEGER,
    purge_at INTEGER,
    -- True if any member was ever replayed. Then a member may still be skipped because of a failure that was repaired.
    was_replayed INTEGER NOT NULL DEFAULT 0,
    CHECK ((ended_at IS NULL) = (finished IS NULL)),
    CHECK ((cancel_policy IS NULL) + (cancel_reason IS NULL) + (cancel_source IS NULL) + (cancel_principal IS NULL)
        + (cancelled_at IS NULL) IN (0, 5))
) STRICT;
CREATE INDEX ff_flow_by_namespace ON ff.flow (namespace, id);
CREATE INDEX ff_flow_live ON ff.flow (namespace, id) WHERE finished IS NULL;
CREATE INDEX ff_flow_sweep ON ff.flow (sweep_at) WHERE sweep_at IS NOT NULL;
CREATE INDEX ff_flow_purge ON ff.flow (purge_at) WHERE purge_at IS NOT NULL;

CREATE TABLE ff.edge (
    upstream_id TEXT NOT NULL,
    downstream_id TEXT NOT NULL,
    seq INTEGER NOT NULL CHECK (seq >= 0),
    flow_id TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('on_success', 'on_failure', 'on_completion')),
    input TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('open', 'satisfied', 'impossible')),
    resolved_at INTEGER,
    -- True for an on_failure edge that is also satisfied if its upstream was skipped because of a failure.
    or_skip INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (upstream_id, downstream_id, seq),
    CHECK ((state = 'open') = (resolved_at IS NULL))
) STRICT;
CREATE INDEX ff_edge_into ON ff.edge (downstream_id, seq, upstream_id);
CREATE INDEX ff_edge_flow ON ff.edge (flow_id, upstream_id, downstream_id, seq);

-- A group of inbound edges of one member. The counters can be recomputed from the edges.
CREATE TABLE ff.edge_group (
    downstream_id TEXT NOT NULL,
    seq INTEGER NOT NULL CHECK (seq >= 0),
    flow_id TEXT NOT NULL,
    join_kind TEXT NOT NULL CHECK (join_kind IN ('all_of', 'any_of', 'quorum')),
    k INTEGER CHECK (k >= 1),
    siblings TEXT NOT NULL CHECK (siblings IN ('let_run', 'cancel_remaining')),
    state TEXT NOT NULL CHECK (state IN ('open', 'fired', 'impossible', 'closed')),
    draft INTEGER NOT NULL,
    sweeping INTEGER NOT NULL,
    n INTEGER NOT NULL,
    satisfied INTEGER NOT NULL CHECK (satisfied >= 0),
    impossible INTEGER NOT NULL CHECK (impossible >= 0),
    PRIMARY KEY (downstream_id, seq),
    CHECK (satisfied + impossible <= n),
    CHECK ((join_kind = 'quorum') = (k IS NOT NULL))
) STRICT;
CREATE INDEX ff_edge_group_flow ON ff.edge_group (flow_id, downstream_id, seq);

-- One row with the identity of the store and the position up to which events were trimmed. `file` is the file that the
-- store was last written in, as `device:inode`.
CREATE TABLE ff.store (
    id TEXT NOT NULL PRIMARY KEY,
    trimmed_id INTEGER NOT NULL,
    -- The era of event positions. It advances when the store went back to an earlier state.
    era INTEGER NOT NULL DEFAULT 0,
    -- A position that subscribers have read in this era. Events of a new era come after it.
    known_id INTEGER NOT NULL DEFAULT 0,
    file TEXT,
    -- True if a testing kit created the store, so that its time may move as a test demands.
    is_test INTEGER NOT NULL DEFAULT 0
) STRICT;

-- Each era begins when the store went back to an earlier state. Events after the start may differ from those that
-- subscribers of earlier eras have read.
CREATE TABLE ff.era (
    number INTEGER NOT NULL PRIMARY KEY,
    start_id INTEGER NOT NULL,
    noted_at INTEGER NOT NULL
) STRICT;

-- The position of each named subscriber, which has processed all events up to it. One process holds it at a time.
CREATE TABLE ff.subscriber (
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    event_id INTEGER NOT NULL,
    holder TEXT,
    held_until INTEGER,
    created_at INTEGER NOT NULL,
    seen_at INTEGER NOT NULL,
    expired_at INTEGER,
    PRIMARY KEY (namespace, name),
    CHECK ((holder IS NULL) = (held_until IS NULL))
) STRICT;

-- Purged executions whose events are still stored.
CREATE TABLE ff.purged (
    execution_id TEXT NOT NULL PRIMARY KEY,
    trim_at INTEGER NOT NULL
) STRICT;
CREATE INDEX ff_purged_trim ON ff.purged (trim_at);

CREATE TABLE ff.worker (
    namespace TEXT NOT NULL,
    instance TEXT NOT NULL,
    name TEXT NOT NULL,
    lanes TEXT NOT NULL,
    capabilities TEXT NOT NULL,
    version TEXT NOT NULL,
    host TEXT NOT NULL,
    slots INTEGER NOT NULL CHECK (slots >= 0),
    busy INTEGER NOT NULL CHECK (busy >= 0),
    ttl_us INTEGER NOT NULL,
    registered_at INTEGER NOT NULL,
    seen_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    -- The task kinds that the worker runs, or null if it takes every kind.
    kinds TEXT,
    PRIMARY KEY (namespace, instance)
) STRICT;
CREATE INDEX ff_worker_expires ON ff.worker (expires_at);
