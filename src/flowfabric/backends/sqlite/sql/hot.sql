-- The hot operations, once per item inside the writer's transaction. A script goes on only if its first statement
-- returned a row, which is where the guard stands.

-- name: insert_executions
INSERT INTO ff.execution (
    id, namespace, lane, kind, route_id, priority, payload, encoding, tags, policy, idempotency_key, fingerprint,
    lease_ttl_policy_us, attempt_timeout_policy_us, retention_policy_us,
    state, blocking_reason, attempt_state, epoch, version, generation, plain,
    created_at, changed_at, ready_at, deadline_at,
    attempt_index, attempt_origin, retry_count, reclaim_count, replay_count, step_seq
)
SELECT
    :id, :namespace, :lane, :kind, :route_id, :priority, :payload, :encoding, :tags, :policy, :idempotency_key,
    :fingerprint, :lease_ttl_policy_us, :attempt_timeout_policy_us, :retention_policy_us,
    :state, :blocking_reason, 'pending_first_attempt', 0, 0, 0, TRUE,
    :now, :now, :ready_at, COALESCE(:deadline_at, :now + :deadline_us),
    0, 'fresh', 0, 0, 0, 0
WHERE NOT EXISTS (
    SELECT 1
    FROM ff.lane AS l
    WHERE l.namespace = :namespace
        AND l.name = :lane
        AND l.state = 'draining'
)
    -- The history of an execution outlives it, so its id is never used for another.
    AND NOT EXISTS (
        SELECT 1
        FROM ff.event AS past
        WHERE past.execution_id = :id
    )
ON CONFLICT (id) DO NOTHING
RETURNING id

-- name: claim_candidates
SELECT e.id
FROM ff.route AS r
JOIN ff.execution AS e ON e.id IN (
    SELECT q.id
    FROM ff.execution AS q
    WHERE q.route_id = r.id
        AND q.state = 'waiting'
    ORDER BY q.priority DESC, (q.attempt_state <> 'attempt_interrupted'), q.created_at, q.id
    LIMIT :limit
)
WHERE r.namespace = :namespace
    AND r.lane IN :lanes
    AND (:kinds IS NULL OR r.kind IN :kinds)
    AND NOT EXISTS (
        SELECT 1
        FROM json_each(r.requires) AS required
        WHERE required.value NOT IN :capabilities
    )
    AND NOT EXISTS (
        SELECT 1
        FROM ff.lane AS l
        WHERE l.namespace = r.namespace
            AND l.name = r.lane
            AND l.state = 'paused'
    )
ORDER BY e.priority DESC, (e.attempt_state <> 'attempt_interrupted'), e.created_at, e.id
LIMIT :limit

-- name: take_waiting
UPDATE ff.execution AS e
SET
    state = 'active',
    blocking_reason = 'none',
    attempt_state = 'running_attempt',
    ownership = 'leased',
    epoch = e.epoch + 1,
    version = e.version + 1,
    changed_at = :now,
    started_at = COALESCE(e.started_at, :now),
    attempt_started_at = COALESCE(e.attempt_started_at, :now),
    attempt_timeout_at = :now + COALESCE(e.attempt_timeout_left_us, e.attempt_timeout_policy_us),
    attempt_timeout_left_us = NULL,
    lease_id = :lease_id,
    lease_worker = :worker,
    lease_instance = :instance,
    lease_ttl_us = COALESCE(:ttl_us, e.lease_ttl_policy_us),
    lease_acquired_at = :now,
    lease_expires_at = :now + COALESCE(:ttl_us, e.lease_ttl_policy_us),
    lease_check_at = :now + COALESCE(:ttl_us, e.lease_ttl_policy_us),
    lease_resumed = (e.attempt_state = 'attempt_interrupted')
WHERE e.id = :id
    AND e.state = 'waiting'
RETURNING id;
INSERT INTO ff.event (
    namespace, family, name, at, lane, execution_id, version, kind, state, epoch, generation, attempt_index,
    lease_id, worker, instance, ends_lease, tags, details
)
SELECT
    e.namespace, 'lease', 'acquired', e.changed_at, e.lane, e.id, e.version, e.kind, e.state, e.epoch, e.generation,
    e.attempt_index, e.lease_id, e.lease_worker, e.lease_instance, FALSE, NULLIF(e.tags, '{}'),
    json_object('origin', CASE WHEN e.lease_resumed THEN 'resumed' ELSE e.attempt_origin END)
FROM ff.execution AS e
WHERE e.id = :id

-- name: renew_if_owned
UPDATE ff.execution AS e
SET lease_expires_at = MAX(e.lease_expires_at, :now + e.lease_ttl_us)
WHERE e.id = :execution_id
    AND e.namespace = :namespace
    AND e.epoch = :epoch
    AND e.lease_id = :lease_id
    AND e.state = 'active'
    AND e.lease_expires_at > :now
RETURNING id, lease_expires_at

-- name: progress_if_owned
UPDATE ff.execution AS e
SET
    progress_percent = COALESCE(:percent, e.progress_percent),
    progress_message = COALESCE(:message, e.progress_message),
    changed_at = :now
WHERE e.id = :execution_id
    AND e.namespace = :namespace
    AND e.epoch = :epoch
    AND e.lease_id = :lease_id
    AND e.state = 'active'
    AND e.lease_expires_at > :now
RETURNING id

-- name: complete_if_owned
UPDATE ff.execution AS e
SET
    state = 'completed',
    blocking_reason = 'none',
    attempt_state = 'attempt_terminal',
    ownership = NULL,
    version = e.version + 1,
    changed_at = :now,
    ended_at = :now,
    purge_at = :now + e.retention_policy_us,
    ready_at = NULL,
    hold_reason = NULL,
    attempt_timeout_at = NULL,
    former_lease_id = e.lease_id,
    former_epoch = e.epoch,
    former_worker = e.lease_worker,
    former_instance = e.lease_instance,
    former_end = 'complete',
    former_digest = :digest,
    former_until = NULL,
    lease_id = NULL,
    lease_worker = NULL,
    lease_instance = NULL,
    lease_ttl_us = NULL,
    lease_acquired_at = NULL,
    lease_expires_at = NULL,
    lease_check_at = NULL,
    lease_resumed = NULL
WHERE e.id = :execution_id
    AND e.namespace = :namespace
    AND e.epoch = :epoch
    AND e.lease_id = :lease_id
    AND e.state = 'active'
    AND e.lease_expires_at > :now
    AND e.plain
RETURNING id;
INSERT INTO ff.attempt (
    execution_id, attempt_index, generation, origin, worker, instance, started_at, ended_at, outcome, result, encoding
)
SELECT
    e.id, e.attempt_index, e.generation, e.attempt_origin, e.former_worker, e.former_instance, e.attempt_started_at,
    e.ended_at, 'ended_success', :result, :encoding
FROM ff.execution AS e
WHERE e.id = :execution_id;
INSERT INTO ff.event (
    namespace, family, name, at, lane, execution_id, version, kind, state, epoch, generation, attempt_index,
    lease_id, worker, instance, ends_lease, tags
)
SELECT
    e.namespace, 'completion', 'completed', e.ended_at, e.lane, e.id, e.version, e.kind, e.state, e.epoch, e.generation,
    e.attempt_index, e.former_lease_id, e.former_worker, e.former_instance, TRUE, NULLIF(e.tags, '{}')
FROM ff.execution AS e
WHERE e.id = :execution_id

-- name: record_steps_if_owned
INSERT INTO ff.step AS step (
    execution_id, seq, name, status, payload, encoding, digest, attempt_index, generation, recorded_at
)
SELECT
    e.id, e.step_seq + 1, :name, :status, :payload, :encoding, :digest, e.attempt_index, e.generation, :now
FROM ff.execution AS e
WHERE e.id = :execution_id
    AND e.namespace = :namespace
    AND e.epoch = :epoch
    AND e.lease_id = :lease_id
    AND e.state = 'active'
    AND e.lease_expires_at > :now
    AND e.step_seq < :most
ON CONFLICT (execution_id, name) WHERE struck_by IS NULL
DO UPDATE SET
    status = excluded.status,
    payload = excluded.payload,
    encoding = excluded.encoding,
    digest = excluded.digest,
    attempt_index = CASE step.status WHEN 'open' THEN excluded.attempt_index ELSE step.attempt_index END,
    recorded_at = CASE step.status WHEN 'open' THEN excluded.recorded_at ELSE step.recorded_at END
WHERE step.status = 'open' OR step.digest = excluded.digest
RETURNING execution_id, 1 AS recorded;
UPDATE ff.execution
SET step_seq = step_seq + 1
WHERE id = :execution_id
