-- The hot operations, one script per batch. `VALUES :items` becomes one row per item, including shared values.
-- The first part of a script contains the guard and returns the items that passed. The others run over these.

-- The time that a statement returns: none, since a transaction has a fixed time.

-- fragment: told_time
NULL

-- name: insert_executions
WITH item (
    id, namespace, lane, kind, route, priority, payload, encoding, tags, policy, idempotency_key, fingerprint,
    lease_ttl_policy_us, attempt_timeout_policy_us, retention_policy_us, state, blocking_reason, plain, ready_at,
    deadline_at, deadline_us, flow_id, member_name, parent_id, creator, now
) AS (
    VALUES :items
)
INSERT INTO ff.execution (
    id, namespace, lane, kind, route_id, priority, payload, encoding, tags, policy, idempotency_key, fingerprint,
    lease_ttl_policy_us, attempt_timeout_policy_us, retention_policy_us,
    state, blocking_reason, attempt_state, epoch, version, generation, plain,
    created_at, changed_at, ready_at, deadline_at,
    attempt_index, attempt_origin, retry_count, reclaim_count, replay_count, step_seq,
    flow_id, member_name, parent_id, creator
)
SELECT
    item.id, item.namespace, item.lane, item.kind, r.id, item.priority, item.payload, item.encoding, item.tags,
    item.policy, item.idempotency_key, item.fingerprint,
    item.lease_ttl_policy_us, item.attempt_timeout_policy_us, item.retention_policy_us,
    item.state, item.blocking_reason, 'pending_first_attempt', 0, 0, 0, item.plain,
    item.now, item.now, item.ready_at, COALESCE(item.deadline_at, item.now + item.deadline_us),
    0, 'fresh', 0, 0, 0, 0,
    item.flow_id, item.member_name, item.parent_id, item.creator
FROM item
-- An item without a route is left out. The caller creates the route and repeats the item.
CROSS JOIN ff.route AS r ON r.digest = item.route
WHERE item.id IS NOT NULL
    AND NOT EXISTS (
        SELECT 1
        FROM ff.lane AS l
        WHERE l.namespace = item.namespace
            AND l.name = item.lane
            AND l.state = 'draining'
    )
    -- Events outlive their execution, so its id is never used again.
    AND NOT EXISTS (
        SELECT 1
        FROM ff.event AS past
        WHERE past.execution_id = item.id
    )
ON CONFLICT (id) DO NOTHING
RETURNING id

-- A claim compares namespace, lane and kind with the row as well, so that a row with a wrong route never reaches another
-- worker.

-- name: claim_candidates
SELECT e.id
FROM ff.route AS r
JOIN ff.execution AS e ON e.id IN (
    SELECT q.id
    FROM ff.execution AS q
    WHERE q.route_id = r.id
        AND q.state = 'waiting'
        AND q.kind = r.kind
        AND q.lane = r.lane
        AND +q.namespace = r.namespace
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

-- A claim over several namespaces. At equal priority the namespaces take turns, in the order of the parameter.

-- name: claim_candidates_across
SELECT turns.id, turns.namespace
FROM (
    SELECT
        e.id, e.namespace, e.priority, (e.attempt_state <> 'attempt_interrupted') AS fresh, e.created_at,
        served.key AS turn_place,
        ROW_NUMBER() OVER (
            PARTITION BY e.namespace, e.priority
            ORDER BY (e.attempt_state <> 'attempt_interrupted'), e.created_at, e.id
        ) AS turn
    FROM json_each(:namespaces) AS served
    JOIN ff.route AS r ON r.namespace = served.value
    JOIN ff.execution AS e ON e.id IN (
        SELECT q.id
        FROM ff.execution AS q
        WHERE q.route_id = r.id
            AND q.state = 'waiting'
            AND q.kind = r.kind
            AND q.lane = r.lane
            AND +q.namespace = r.namespace
        ORDER BY q.priority DESC, (q.attempt_state <> 'attempt_interrupted'), q.created_at, q.id
        LIMIT :limit
    )
    WHERE r.lane IN :lanes
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
) AS turns
ORDER BY turns.priority DESC, turns.turn, turns.turn_place, turns.fresh, turns.created_at, turns.id
LIMIT :limit

-- fragment: taken_items
WITH item (id, lease_id, worker, instance, ttl_us, now) AS (
    VALUES :items
)

-- name: take_waiting
{taken_items}
UPDATE ff.execution AS e
SET
    state = 'active',
    blocking_reason = 'none',
    attempt_state = 'running_attempt',
    ownership = 'leased',
    epoch = e.epoch + 1,
    version = e.version + 1,
    changed_at = item.now,
    started_at = COALESCE(e.started_at, item.now),
    attempt_started_at = COALESCE(e.attempt_started_at, item.now),
    attempt_timeout_at = item.now + COALESCE(e.attempt_timeout_left_us, e.attempt_timeout_policy_us),
    attempt_timeout_left_us = NULL,
    lease_id = item.lease_id,
    lease_worker = item.worker,
    lease_instance = item.instance,
    lease_ttl_us = COALESCE(item.ttl_us, e.lease_ttl_policy_us),
    lease_acquired_at = item.now,
    lease_expires_at = item.now + COALESCE(item.ttl_us, e.lease_ttl_policy_us),
    lease_check_at = item.now + COALESCE(item.ttl_us, e.lease_ttl_policy_us),
    lease_resumed = (e.attempt_state = 'attempt_interrupted')
FROM item
WHERE e.id = item.id
    AND +e.state = 'waiting'
RETURNING id;
{taken_items}
INSERT INTO ff.event (
    namespace, family, name, at, lane, execution_id, version, kind, state, epoch, generation, attempt_index,
    lease_id, worker, instance, ends_lease, tags, details, flow_id
)
SELECT
    e.namespace, 'lease', 'acquired', e.changed_at, e.lane, e.id, e.version, e.kind, e.state, e.epoch, e.generation,
    e.attempt_index, e.lease_id, e.lease_worker, e.lease_instance, FALSE, NULLIF(e.tags, '{}'),
    json_object('origin', CASE WHEN e.lease_resumed THEN 'resumed' ELSE e.attempt_origin END), e.flow_id
FROM item
CROSS JOIN ff.execution AS e ON e.id = item.id

-- name: get_leases
SELECT
(SELECT s.era FROM ff.store AS s) AS era,
{lease}
FROM ff.execution AS e
WHERE e.id IN :ids

-- name: renew_if_owned
WITH item (execution_id, namespace, epoch, lease_id, now) AS (
    VALUES :items
)
UPDATE ff.execution AS e
SET lease_expires_at = MAX(e.lease_expires_at, item.now + e.lease_ttl_us)
FROM item
WHERE e.id = item.execution_id
    AND +e.namespace = item.namespace
    AND e.epoch = item.epoch
    AND e.lease_id = item.lease_id
    AND +e.state = 'active'
    AND e.lease_expires_at > item.now
RETURNING id, lease_expires_at, cancel_due_at

-- fragment: renewed_items
WITH item (execution_id, namespace, epoch, lease_id, now) AS (
    VALUES :items
)

-- name: renew_noted_if_owned
{renewed_items}
UPDATE ff.execution AS e
SET
    version = e.version + 1,
    changed_at = item.now,
    lease_expires_at = MAX(e.lease_expires_at, item.now + e.lease_ttl_us)
FROM item
WHERE e.id = item.execution_id
    AND +e.namespace = item.namespace
    AND e.epoch = item.epoch
    AND e.lease_id = item.lease_id
    AND +e.state = 'active'
    AND e.lease_expires_at > item.now
RETURNING id, lease_expires_at, cancel_due_at;
{renewed_items}
INSERT INTO ff.event (
    namespace, family, name, at, lane, execution_id, version, kind, state, epoch, generation, attempt_index,
    lease_id, worker, instance, ends_lease, tags, flow_id
)
SELECT
    e.namespace, 'lease', 'renewed', e.changed_at, e.lane, e.id, e.version, e.kind, e.state, e.epoch, e.generation,
    e.attempt_index, e.lease_id, e.lease_worker, e.lease_instance, FALSE, NULLIF(e.tags, '{}'), e.flow_id
FROM item
CROSS JOIN ff.execution AS e ON e.id = item.execution_id

-- name: progress_if_owned
WITH item (execution_id, namespace, epoch, lease_id, percent, message, now) AS (
    VALUES :items
)
UPDATE ff.execution AS e
SET
    progress_percent = COALESCE(item.percent, e.progress_percent),
    progress_message = COALESCE(item.message, e.progress_message),
    changed_at = item.now
FROM item
WHERE e.id = item.execution_id
    AND +e.namespace = item.namespace
    AND e.epoch = item.epoch
    AND e.lease_id = item.lease_id
    AND +e.state = 'active'
    AND e.lease_expires_at > item.now
RETURNING id

-- fragment: completed_items
WITH item (execution_id, namespace, epoch, lease_id, result, encoding, digest, now) AS (
    VALUES :items
)

-- fragment: linked_items
WITH item (execution_id, namespace, epoch, lease_id, result, encoding, digest, flow_id, now) AS (
    VALUES :items
)

-- fragment: completing
UPDATE ff.execution AS e
SET
    state = 'completed',
    blocking_reason = 'none',
    attempt_state = 'attempt_terminal',
    ownership = NULL,
    version = e.version + 1,
    changed_at = item.now,
    ended_at = item.now,
    purge_at = item.now + e.retention_policy_us,
    ready_at = NULL,
    hold_reason = NULL,
    attempt_timeout_at = NULL,
    former_lease_id = e.lease_id,
    former_epoch = e.epoch,
    former_worker = e.lease_worker,
    former_instance = e.lease_instance,
    former_end = 'complete',
    former_digest = item.digest,
    former_until = NULL,
    resume_suspension_id = NULL,
    resume_trigger = NULL,
    lease_id = NULL,
    lease_worker = NULL,
    lease_instance = NULL,
    lease_ttl_us = NULL,
    lease_acquired_at = NULL,
    lease_expires_at = NULL,
    lease_check_at = NULL,
    lease_resumed = NULL
FROM item
WHERE e.id = item.execution_id
    AND +e.namespace = item.namespace
    AND e.epoch = item.epoch
    AND e.lease_id = item.lease_id
    AND +e.state = 'active'
    AND e.lease_expires_at > item.now

-- name: complete_if_owned
{completed_items}
{completing}
    AND e.plain
RETURNING id, ended_at;
{completed_items}
INSERT INTO ff.attempt (
    execution_id, attempt_index, generation, origin, worker, instance, started_at, ended_at, outcome, result, encoding
)
SELECT
    e.id, e.attempt_index, e.generation, e.attempt_origin, e.former_worker, e.former_instance, e.attempt_started_at,
    e.ended_at, 'ended_success', item.result, item.encoding
FROM item
CROSS JOIN ff.execution AS e ON e.id = item.execution_id;
{completed_items}
INSERT INTO ff.event (
    namespace, family, name, at, lane, execution_id, version, kind, state, epoch, generation, attempt_index,
    lease_id, worker, instance, ends_lease, tags, flow_id
)
SELECT
    e.namespace, 'completion', 'completed', e.ended_at, e.lane, e.id, e.version, e.kind, e.state, e.epoch, e.generation,
    e.attempt_index, e.former_lease_id, e.former_worker, e.former_instance, TRUE, NULLIF(e.tags, '{}'), e.flow_id
FROM item
CROSS JOIN ff.execution AS e ON e.id = item.execution_id

-- name: complete_linked_if_owned
{linked_items}
{completing}
    AND COALESCE(e.flow_id, CASE WHEN e.has_children THEN e.id END) IS item.flow_id
RETURNING id, ended_at, flow_id, parent_id, has_children, plain;
{linked_items}
INSERT INTO ff.attempt (
    execution_id, attempt_index, generation, origin, worker, instance, started_at, ended_at, outcome, result, encoding
)
SELECT
    e.id, e.attempt_index, e.generation, e.attempt_origin, e.former_worker, e.former_instance, e.attempt_started_at,
    e.ended_at, 'ended_success', item.result, item.encoding
FROM item
CROSS JOIN ff.execution AS e ON e.id = item.execution_id;
{linked_items}
INSERT INTO ff.event (
    namespace, family, name, at, lane, execution_id, version, kind, state, epoch, generation, attempt_index,
    lease_id, worker, instance, ends_lease, tags, flow_id
)
SELECT
    e.namespace, 'completion', 'completed', e.ended_at, e.lane, e.id, e.version, e.kind, e.state, e.epoch, e.generation,
    e.attempt_index, e.former_lease_id, e.former_worker, e.former_instance, TRUE, NULLIF(e.tags, '{}'), e.flow_id
FROM item
CROSS JOIN ff.execution AS e ON e.id = item.execution_id

-- Returns one row per recorded step. An execution without any row is not owned, or has a final step with other content.

-- name: record_steps_if_owned
WITH item (execution_id, namespace, epoch, lease_id, place, name, status, payload, encoding, digest, most, now) AS (
    VALUES :items
)
INSERT INTO ff.step AS step (
    execution_id, seq, name, status, payload, encoding, digest, attempt_index, generation, recorded_at
)
SELECT
    e.id, numbered.last_seq + 1 + item.place - numbered.first, item.name, item.status, item.payload, item.encoding,
    item.digest, e.attempt_index, e.generation, item.now
FROM item
CROSS JOIN (
    SELECT
        i.execution_id, MIN(i.place) AS first, COUNT(*) AS steps,
        COALESCE((SELECT MAX(s.seq) FROM ff.step AS s WHERE s.execution_id = i.execution_id), 0) AS last_seq
    FROM item AS i
    GROUP BY i.execution_id
) AS numbered ON numbered.execution_id = item.execution_id
CROSS JOIN ff.execution AS e ON e.id = item.execution_id
WHERE +e.namespace = item.namespace
    AND e.epoch = item.epoch
    AND e.lease_id = item.lease_id
    AND +e.state = 'active'
    AND e.lease_expires_at > item.now
    AND numbered.last_seq + numbered.steps <= item.most
ON CONFLICT (execution_id, name) WHERE struck_by IS NULL
DO UPDATE SET
    status = excluded.status,
    payload = excluded.payload,
    encoding = excluded.encoding,
    digest = excluded.digest,
    attempt_index = CASE step.status WHEN 'open' THEN excluded.attempt_index ELSE step.attempt_index END,
    recorded_at = CASE step.status WHEN 'open' THEN excluded.recorded_at ELSE step.recorded_at END
WHERE step.status = 'open' OR step.digest = excluded.digest
RETURNING execution_id, 1 AS recorded
