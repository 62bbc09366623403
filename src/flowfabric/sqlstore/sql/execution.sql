-- Statements on executions that both backends share. Hot ones are batch statements and live with their backend.

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
e.attempt_index, e.attempt_origin, e.attempt_started_at, e.retry_count, e.reclaim_count, e.replay_count, e.step_seq,
e.progress_percent, e.progress_message, e.failure_message, e.failure_category, e.cancelled_by, e.cancel_reason,
e.hold_reason, e.signal_seq, e.suspension_count, e.resume_suspension_id, e.resume_trigger

-- fragment: lease
e.id, e.lane, e.kind, e.priority, e.payload, e.encoding, e.tags, e.epoch, e.generation, e.plain,
e.lease_id, e.lease_ttl_us, e.lease_acquired_at, e.lease_expires_at, e.lease_resumed,
e.attempt_index, e.attempt_origin, e.deadline_at, e.attempt_timeout_at, e.resume_suspension_id, e.resume_trigger

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

-- name: lock_executions
SELECT
{execution}
FROM ff.execution AS e
WHERE e.id IN :ids
    AND e.namespace = COALESCE(:namespace, e.namespace)
ORDER BY e.id
FOR NO KEY UPDATE

-- name: lock_free_executions
SELECT
{execution}
FROM ff.execution AS e
WHERE e.id IN :ids
ORDER BY e.id
FOR NO KEY UPDATE SKIP LOCKED

-- name: save_execution
UPDATE ff.execution
SET
    priority = :priority,
    state = :state,
    blocking_reason = :blocking_reason,
    attempt_state = :attempt_state,
    ownership = :ownership,
    epoch = :epoch,
    version = :version,
    generation = :generation,
    plain = :plain,
    changed_at = :changed_at,
    started_at = :started_at,
    ended_at = :ended_at,
    ready_at = :ready_at,
    deadline_at = :deadline_at,
    attempt_timeout_at = :attempt_timeout_at,
    attempt_timeout_left_us = :attempt_timeout_left_us,
    purge_at = :purge_at,
    lease_id = :lease_id,
    lease_worker = :lease_worker,
    lease_instance = :lease_instance,
    lease_ttl_us = :lease_ttl_us,
    lease_acquired_at = :lease_acquired_at,
    lease_expires_at = :lease_expires_at,
    lease_check_at = :lease_check_at,
    lease_resumed = :lease_resumed,
    former_lease_id = :former_lease_id,
    former_epoch = :former_epoch,
    former_worker = :former_worker,
    former_instance = :former_instance,
    former_end = :former_end,
    former_digest = :former_digest,
    former_until = :former_until,
    attempt_index = :attempt_index,
    attempt_origin = :attempt_origin,
    attempt_started_at = :attempt_started_at,
    retry_count = :retry_count,
    reclaim_count = :reclaim_count,
    replay_count = :replay_count,
    step_seq = :step_seq,
    progress_percent = :progress_percent,
    progress_message = :progress_message,
    failure_message = :failure_message,
    failure_category = :failure_category,
    cancelled_by = :cancelled_by,
    cancel_reason = :cancel_reason,
    hold_reason = :hold_reason,
    signal_seq = :signal_seq,
    suspension_count = :suspension_count,
    resume_suspension_id = :resume_suspension_id,
    resume_trigger = :resume_trigger{order_of_events}
WHERE id = :id
    AND epoch = :old_epoch
    AND version = :old_version
    AND state = :old_state
RETURNING id

-- name: held_executions
SELECT
{execution}
FROM ff.execution AS e
WHERE e.lease_check_at IS NOT NULL
    AND e.lease_instance = :instance
    AND e.namespace = :namespace
    AND e.lease_expires_at > :now
ORDER BY e.lease_acquired_at, e.id

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
SET tags = :tags
WHERE id = :id
RETURNING id

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
