-- Queries of the reconcilers. Each uses its own due-time index.

-- name: next_due
SELECT
    (SELECT MIN(lease_check_at) FROM ff.execution WHERE lease_check_at IS NOT NULL AND lease_check_at > :after) AS lease_expiry,
    (SELECT MIN(ready_at) FROM ff.execution WHERE state = 'delayed' AND ready_at > :after) AS delayed_work,
    (SELECT MIN(attempt_timeout_at) FROM ff.execution WHERE attempt_timeout_at IS NOT NULL AND attempt_timeout_at > :after) AS attempt_timeout,
    (SELECT MIN(deadline_at) FROM ff.execution WHERE deadline_at IS NOT NULL AND ended_at IS NULL AND deadline_at > :after) AS deadline,
    (
        SELECT MIN(purge_at)
        FROM ff.execution
        WHERE purge_at IS NOT NULL
            AND flow_id IS NULL
            AND NOT has_children
            AND purge_at > :after
    ) AS retention,
    (SELECT MIN(purge_at) FROM ff.flow WHERE purge_at IS NOT NULL AND purge_at > :after) AS flow_retention,
    (SELECT MIN(sweep_at) FROM ff.flow WHERE sweep_at IS NOT NULL AND sweep_at > :after) AS flow_cancellation,
    (
        SELECT MIN(cancel_due_at)
        FROM ff.execution
        WHERE cancel_due_at IS NOT NULL
            AND ended_at IS NULL
            AND cancel_due_at > :after
    ) AS cancel_grace,
    (SELECT MIN(timeout_at) FROM ff.suspension WHERE timeout_at IS NOT NULL AND closed_at IS NULL AND timeout_at > :after) AS suspension_timeout,
    (SELECT MIN(fires_at) FROM ff.waitpoint WHERE fires_at IS NOT NULL AND closed_at IS NULL AND fires_at > :after) AS timers,
    (SELECT MIN(expires_at) FROM ff.waitpoint WHERE state = 'pending' AND expires_at IS NOT NULL AND expires_at > :after) AS waitpoint_expiry,
    (
        SELECT MIN(k.verifies_until)
        FROM ff.signing_key AS k
        WHERE k.collected_at IS NULL
            AND k.verifies_until > :after
            -- EXISTS might be planned as a scan of all open waitpoints.
            AND (k.end_is_final OR (
                SELECT w.kid
                FROM ff.waitpoint AS w
                WHERE w.kid = k.kid
                    AND w.closed_at IS NULL
                ORDER BY w.kid
                LIMIT 1
            ) IS NULL)
    ) AS key_collection,
    (SELECT MIN(drop_at) FROM ff.submission_key WHERE drop_at IS NOT NULL AND drop_at > :after) AS submission_keys,
    (SELECT MIN(trim_at) FROM ff.purged WHERE trim_at > :after) AS event_trimming,
    (SELECT MIN(at) FROM ff.event WHERE execution_id IS NULL AND at > :events_after) AS events_apart,
    (SELECT MIN(seen_at) FROM ff.subscriber WHERE expired_at IS NULL AND seen_at > :subscribers_after) AS silent_subscribers,
    (SELECT MIN(expires_at) FROM ff.worker WHERE expires_at > :after) AS worker_liveness,
    -- Whether a claim on these lanes could find work. The claim itself checks exactly.
    EXISTS (
        SELECT 1
        FROM ff.route AS r
        WHERE r.namespace IN :namespaces
            AND r.lane IN :lanes
            AND {offered}
            AND NOT EXISTS (
                SELECT 1
                FROM ff.lane AS l
                WHERE l.namespace = r.namespace
                    AND l.name = r.lane
                    AND l.state = 'paused'
            )
            AND (
                SELECT e.id
                FROM ff.execution AS e
                WHERE e.route_id = r.id
                    AND e.state = 'waiting'
                    AND e.kind = r.kind
                ORDER BY e.priority DESC
                LIMIT 1
            ) IS NOT NULL
    ) AS work,
    {time_of_look} AS now

-- name: due_for_lease_expiry
SELECT e.id
FROM ff.execution AS e
WHERE e.lease_check_at <= :now
ORDER BY e.lease_check_at
LIMIT :limit

-- name: due_for_lease_terms
SELECT e.id
FROM ff.execution AS e
WHERE e.lease_check_at > :now
    AND e.lease_expires_at > {lease_term_from_now}
ORDER BY e.lease_check_at DESC
LIMIT :limit

-- name: due_for_delayed_work
SELECT e.id
FROM ff.execution AS e
WHERE e.state = 'delayed'
    AND e.ready_at <= :now
ORDER BY e.ready_at
LIMIT :limit

-- name: due_for_attempt_timeout
SELECT e.id
FROM ff.execution AS e
WHERE e.attempt_timeout_at <= :now
ORDER BY e.attempt_timeout_at
LIMIT :limit

-- name: due_for_deadline
SELECT e.id
FROM ff.execution AS e
WHERE e.deadline_at <= :now
    AND e.ended_at IS NULL
ORDER BY e.deadline_at
LIMIT :limit

-- name: due_for_retention
SELECT e.id
FROM ff.execution AS e
WHERE e.purge_at <= :now
    AND e.flow_id IS NULL
    AND NOT e.has_children
ORDER BY e.purge_at
LIMIT :limit

-- name: due_for_flow_retention
SELECT f.id
FROM ff.flow AS f
WHERE f.purge_at <= :now
ORDER BY f.purge_at
LIMIT :limit

-- name: due_for_flow_cancellation
SELECT f.id
FROM ff.flow AS f
WHERE f.sweep_at <= :now
ORDER BY f.sweep_at
LIMIT :limit

-- name: due_for_cancel_grace
SELECT e.id
FROM ff.execution AS e
WHERE e.cancel_due_at <= :now
    AND e.ended_at IS NULL
ORDER BY e.cancel_due_at
LIMIT :limit

-- name: due_for_suspension_timeout
SELECT s.execution_id AS id
FROM ff.suspension AS s
WHERE s.timeout_at <= :now
    AND s.closed_at IS NULL
ORDER BY s.timeout_at
LIMIT :limit

-- name: due_for_timers
SELECT w.execution_id AS id
FROM ff.waitpoint AS w
WHERE w.fires_at <= :now
    AND w.closed_at IS NULL
ORDER BY w.fires_at
LIMIT :limit

-- name: due_for_waitpoint_expiry
SELECT w.execution_id AS id
FROM ff.waitpoint AS w
WHERE w.state = 'pending'
    AND w.expires_at <= :now
ORDER BY w.expires_at
LIMIT :limit

-- name: due_for_event_trimming
SELECT p.execution_id AS id
FROM ff.purged AS p
WHERE p.trim_at <= :now
ORDER BY p.trim_at
LIMIT :limit
