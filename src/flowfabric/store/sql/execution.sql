-- Statements on executions that both backends share. Hot statements work on batches and are in the backends.

-- fragment: execution
e.id, e.namespace, e.lane, e.kind, e.route_id, e.priority, e.payload, e.encoding, e.tags, e.policy,
e.idempotency_key, e.fingerprint,
e.state, e.blocking_reason, e.attempt_state, e.ownership, e.epoch, e.version, e.generation, e.plain,
e.created_at, e.changed_at, e.started_at, e.ended_at, e.ready_at, e.deadline_at, e.attempt_timeout_at,
e.attempt_timeout_left_us, e.purge_at,
e.lease_id, e.lease_worker, e.lease_instance, e.lease_ttl_us, e.lease_acquired_at, e.lease_expires_at,
e.lease_check_at, e.lease_resumed,
e.former_lease_id, e.former_epoch, e.former_worker, e.former_instance, e.former_end, e.former_digest,
e.former_until,
e.attempt_index, e.attempt_origin, e.attempt_started_at, e.retry_count, e.reclaim_count, e.replay_count,
e.progress_percent, e.progress_message, e.failure_message, e.failure_category, e.cancelled_by, e.cancel_reason,
e.hold_reason, e.signal_seq, e.suspension_count, e.resume_suspension_id, e.resume_trigger,
e.flow_id, e.member_name, e.parent_id, e.has_children, e.cancel_due_at, e.cancel_request,
e.creator

-- fragment: lease
e.id, e.lane, e.kind, e.priority, e.payload, e.encoding, e.tags, e.epoch, e.generation, e.plain,
e.lease_id, e.lease_ttl_us, e.lease_acquired_at, e.lease_expires_at, e.lease_resumed,
e.attempt_index, e.attempt_origin, e.deadline_at, e.attempt_timeout_at, e.resume_suspension_id, e.resume_trigger,
e.cancel_due_at

-- name: get_executions
SELECT
{execution}
FROM ff.execution AS e
WHERE e.id IN :ids
    AND e.namespace = COALESCE(:namespace, e.namespace)

-- name: execution_fingerprint
SELECT fingerprint
FROM ff.execution
WHERE id = :id
    AND namespace = :namespace

-- The time is read outside the locking subquery, once per row, so the time of the last row is later than all waits.

-- name: lock_executions
WITH e AS (
    SELECT
    {execution}
    FROM ff.execution AS e
    WHERE e.id IN :ids
        AND e.namespace = COALESCE(:namespace, e.namespace)
    ORDER BY e.id
    FOR NO KEY UPDATE
)
SELECT
{execution}, {told_time} AS now
FROM e

-- name: lock_free_executions
WITH e AS (
    SELECT
    {execution}
    FROM ff.execution AS e
    WHERE e.id IN :ids
    ORDER BY e.id
    FOR NO KEY UPDATE SKIP LOCKED
)
SELECT
{execution}, {told_time} AS now
FROM e

-- name: save_execution
WITH item (
    execution_id UUID, priority INTEGER, state TEXT, blocking_reason TEXT, attempt_state TEXT, ownership TEXT,
    epoch BIGINT, version BIGINT, generation INTEGER, plain BOOLEAN, changed_at TIMESTAMPTZ, started_at TIMESTAMPTZ,
    ended_at TIMESTAMPTZ, ready_at TIMESTAMPTZ, deadline_at TIMESTAMPTZ, attempt_timeout_at TIMESTAMPTZ,
    attempt_timeout_left_us BIGINT, purge_at TIMESTAMPTZ, lease_id UUID, lease_worker TEXT, lease_instance TEXT,
    lease_ttl_us BIGINT, lease_acquired_at TIMESTAMPTZ, lease_expires_at TIMESTAMPTZ, lease_check_at TIMESTAMPTZ,
    lease_resumed BOOLEAN, former_lease_id UUID, former_epoch BIGINT, former_worker TEXT, former_instance TEXT,
    former_end TEXT, former_digest TEXT, former_until TIMESTAMPTZ, attempt_index INTEGER, attempt_origin TEXT,
    attempt_started_at TIMESTAMPTZ, retry_count INTEGER, reclaim_count INTEGER, replay_count INTEGER,
    progress_percent INTEGER, progress_message TEXT, failure_message TEXT, failure_category TEXT,
    cancelled_by TEXT, cancel_reason TEXT, hold_reason TEXT, signal_seq BIGINT, suspension_count INTEGER,
    resume_suspension_id UUID, resume_trigger TEXT, has_children BOOLEAN, cancel_due_at TIMESTAMPTZ,
    cancel_request TEXT, payload BYTEA, encoding TEXT, old_epoch BIGINT, old_version BIGINT, old_state TEXT
) AS (
    VALUES :items
)
UPDATE ff.execution AS e
SET
    priority = item.priority,
    state = item.state,
    blocking_reason = item.blocking_reason,
    attempt_state = item.attempt_state,
    ownership = item.ownership,
    epoch = item.epoch,
    version = item.version,
    generation = item.generation,
    plain = item.plain,
    changed_at = item.changed_at,
    started_at = item.started_at,
    ended_at = item.ended_at,
    ready_at = item.ready_at,
    deadline_at = item.deadline_at,
    attempt_timeout_at = item.attempt_timeout_at,
    attempt_timeout_left_us = item.attempt_timeout_left_us,
    purge_at = item.purge_at,
    lease_id = item.lease_id,
    lease_worker = item.lease_worker,
    lease_instance = item.lease_instance,
    lease_ttl_us = item.lease_ttl_us,
    lease_acquired_at = item.lease_acquired_at,
    lease_expires_at = item.lease_expires_at,
    lease_check_at = item.lease_check_at,
    lease_resumed = item.lease_resumed,
    former_lease_id = item.former_lease_id,
    former_epoch = item.former_epoch,
    former_worker = item.former_worker,
    former_instance = item.former_instance,
    former_end = item.former_end,
    former_digest = item.former_digest,
    former_until = item.former_until,
    attempt_index = item.attempt_index,
    attempt_origin = item.attempt_origin,
    attempt_started_at = item.attempt_started_at,
    retry_count = item.retry_count,
    reclaim_count = item.reclaim_count,
    replay_count = item.replay_count,
    progress_percent = item.progress_percent,
    progress_message = item.progress_message,
    failure_message = item.failure_message,
    failure_category = item.failure_category,
    cancelled_by = item.cancelled_by,
    cancel_reason = item.cancel_reason,
    hold_reason = item.hold_reason,
    signal_seq = item.signal_seq,
    suspension_count = item.suspension_count,
    resume_suspension_id = item.resume_suspension_id,
    resume_trigger = item.resume_trigger,
    has_children = item.has_children,
    cancel_due_at = item.cancel_due_at,
    cancel_request = item.cancel_request,
    payload = item.payload,
    encoding = item.encoding{order_of_events}
FROM item
WHERE e.id = item.execution_id
    AND e.epoch = item.old_epoch
    AND e.version = item.old_version
    AND e.state = item.old_state
RETURNING id

-- Changes of anything attached to an execution are made under the lock of its row, and the row is written with them.
-- Optimistic readers detect the changes by that.

-- name: touch_executions
WITH item (execution_id UUID) AS (
    VALUES :items
)
UPDATE ff.execution AS e
SET version = e.version
FROM item
WHERE e.id = item.execution_id
RETURNING id

-- name: held_executions
SELECT
{execution}
FROM ff.execution AS e
WHERE e.lease_check_at IS NOT NULL
    AND e.lease_instance = :instance
    AND e.namespace IN :namespaces
    AND e.lease_expires_at > :now
ORDER BY e.lease_acquired_at, e.id

-- A live lease is checked at its first expiry, so the index on that time finds all that have expired. `|| ''`
-- and MATERIALIZED keep the planner from other indexes.

-- name: expired_leases
WITH expired AS MATERIALIZED (
    SELECT e.id
    FROM ff.execution AS e
    WHERE e.lease_check_at <= :now
        AND e.lease_expires_at <= :now
        AND e.namespace || '' = :namespace
)
SELECT
{execution}
FROM ff.execution AS e
WHERE e.id IN (
    SELECT x.id
    FROM expired AS x
    WHERE x.id < :before
    ORDER BY x.id DESC
    LIMIT :limit
)
ORDER BY e.id DESC

-- name: suspended_executions
SELECT
{execution}
FROM ff.execution AS e
WHERE e.namespace = :namespace
    AND e.state = 'suspended'
    AND e.id > :after
ORDER BY e.id
LIMIT :limit

-- name: held_for_operator
SELECT e.id
FROM ff.execution AS e
WHERE e.namespace = :namespace
    AND e.state = 'blocked'
    AND e.blocking_reason = 'paused_by_operator'
    AND e.kind = COALESCE(:kind, e.kind)
    AND e.hold_reason = COALESCE(:reason, e.hold_reason)
    AND e.id > :after
ORDER BY e.id
LIMIT :limit

-- name: next_held_kind
SELECT e.kind
FROM ff.execution AS e
WHERE e.namespace = :namespace
    AND e.hold_reason IS NOT NULL
    AND e.kind > :after
ORDER BY e.kind, e.id
LIMIT 1

-- name: held_of_kind
SELECT e.id, SUBSTR(e.hold_reason, 1, 256) AS hold_reason
FROM ff.execution AS e
WHERE e.namespace = :namespace
    AND e.hold_reason IS NOT NULL
    AND e.kind = :kind
ORDER BY e.id
LIMIT :limit

-- name: count_in_state
SELECT COUNT(*) AS count
FROM (
    SELECT 1
    FROM ff.execution AS e
    WHERE e.namespace = :namespace
        AND e.state = :state
    ORDER BY e.id
    LIMIT :limit
) AS counted

-- name: set_tags
UPDATE ff.execution
SET
    tags = :tags,
    changed_at = :now
WHERE id = :id
RETURNING id

-- name: lock_remains
WITH e AS (
    SELECT
        e.id, e.purge_at,
        2 + e.attempt_index + e.signal_seq + 2 * e.suspension_count
            + COALESCE((SELECT MAX(s.seq) FROM ff.step AS s WHERE s.execution_id = e.id), 0) AS belongings
    FROM ff.execution AS e
    WHERE e.id IN :ids
    ORDER BY e.id
    FOR NO KEY UPDATE SKIP LOCKED
)
SELECT e.id, e.purge_at, e.belongings, {told_time} AS now
FROM e

-- name: delete_executions
DELETE FROM ff.execution
WHERE id IN :ids

-- name: delete_attempts
DELETE FROM ff.attempt
WHERE execution_id IN :ids

-- name: delete_steps
DELETE FROM ff.step
WHERE execution_id IN :ids

-- name: delete_grants
DELETE FROM ff.reclaim_grant
WHERE execution_id IN :ids

-- name: list_members
SELECT
{execution}
FROM ff.execution AS e
WHERE e.namespace = :namespace
    AND e.flow_id = :flow
    AND e.state IN :states
{listing}
