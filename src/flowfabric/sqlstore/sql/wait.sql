-- Suspensions, waitpoints and signals. The row of their execution is locked, and that lock covers them all.

-- fragment: suspension
s.id, s.execution_id, s.number, s.generation, s.epoch, s.lease_id, s.key, s.digest, s.condition, s.reason, s.rest,
s.opened_at, s.timeout_at, s.on_timeout, s.resume_delay_us, s.closed_at, s.closed_by

-- fragment: waitpoint
w.id, w.execution_id, w.key, w.kind, w.state, w.suspension, w.kid, w.nonce, w.token_hash, w.approver, w.token_ends_at,
w.child_id, w.fires_at, w.created_at, w.expires_at, w.closed_at, w.close_reason

-- fragment: signal
g.id, g.execution_id, g.seq, g.waitpoint_id, g.waitpoint, g.suspension, g.counts, g.name, g.category, g.source,
g.source_type, g.source_identity, g.correlation, g.payload, g.encoding, g.key, g.created_at, g.accepted_at, g.effect

-- name: open_suspensions
SELECT
{suspension}
FROM ff.suspension AS s
WHERE s.execution_id IN :execution_ids
    AND s.closed_at IS NULL

-- name: suspensions_of
SELECT
{suspension}
FROM ff.suspension AS s
WHERE s.execution_id = :execution_id
ORDER BY s.number DESC
LIMIT :limit

-- name: suspensions_named
SELECT
{suspension}
FROM ff.suspension AS s
WHERE s.execution_id IN :execution_ids
    AND s.key IN :keys

-- name: open_suspension
INSERT INTO ff.suspension (
    id, execution_id, number, generation, epoch, lease_id, key, digest, condition, reason, rest, opened_at, timeout_at,
    on_timeout, resume_delay_us, closed_at, closed_by
)
VALUES (
    :id, :execution_id, :number, :generation, :epoch, :lease_id, :key, :digest, :condition, :reason, :rest, :opened_at,
    :timeout_at, :on_timeout, :resume_delay_us, :closed_at, :closed_by
)

-- name: change_suspension
UPDATE ff.suspension
SET
    timeout_at = :timeout_at,
    closed_at = :closed_at,
    closed_by = :closed_by
WHERE execution_id = :execution_id
    AND number = :number
    AND closed_at IS NULL
RETURNING number

-- name: end_suspensions
UPDATE ff.suspension
SET
    closed_at = :now,
    closed_by = 'ended'
WHERE execution_id IN :execution_ids
    AND closed_at IS NULL

-- name: open_waitpoints
SELECT
{waitpoint}
FROM ff.waitpoint AS w
WHERE w.execution_id IN :execution_ids
    AND w.closed_at IS NULL
ORDER BY w.execution_id, w.key

-- name: bound_waitpoints
SELECT
{waitpoint}
FROM ff.waitpoint AS w
WHERE w.execution_id = :execution_id
    AND w.suspension = :number

-- name: get_waitpoints
SELECT
{waitpoint}
FROM ff.waitpoint AS w
WHERE w.id IN :ids

-- name: child_waitpoints
SELECT
{waitpoint}
FROM ff.waitpoint AS w
WHERE w.child_id IN :child_ids
    AND w.closed_at IS NULL
ORDER BY w.id

-- name: last_waitpoint
SELECT
{waitpoint}
FROM ff.waitpoint AS w
WHERE w.execution_id = :execution_id
    AND w.key = :key
    AND w.created_at <= :by
ORDER BY w.created_at DESC, w.id DESC
LIMIT 1

-- name: list_waitpoints
SELECT
{waitpoint}
FROM ff.waitpoint AS w
WHERE w.execution_id = :execution_id
    AND w.id > :after
ORDER BY w.id
LIMIT :limit

-- name: standing_waitpoints
SELECT w.key
FROM ff.waitpoint AS w
WHERE w.execution_id = :execution_id
    AND w.kind = 'standing'
GROUP BY w.key
ORDER BY w.key

-- name: add_waitpoint
INSERT INTO ff.waitpoint (
    id, execution_id, key, kind, state, suspension, kid, nonce, token_hash, approver, token_ends_at, child_id, fires_at,
    created_at, expires_at, closed_at, close_reason
)
VALUES (
    :id, :execution_id, :key, :kind, :state, :suspension, :kid, :nonce, :token_hash, :approver, :token_ends_at,
    :child_id, :fires_at, :created_at, :expires_at, :closed_at, :close_reason
)

-- name: move_waitpoint
UPDATE ff.waitpoint
SET
    state = :state,
    suspension = :suspension,
    kid = :kid,
    nonce = :nonce,
    token_hash = :token_hash,
    approver = :approver,
    token_ends_at = :token_ends_at,
    fires_at = :fires_at,
    expires_at = :expires_at,
    closed_at = :closed_at,
    close_reason = :close_reason
-- Not `closed_at IS NULL`, for which there is an index that would be walked.
WHERE id = :id
    AND state <> 'closed'
RETURNING id

-- name: end_waitpoints
UPDATE ff.waitpoint
SET
    state = 'closed',
    closed_at = :now,
    close_reason = 'ended'
WHERE execution_id IN :execution_ids
    AND closed_at IS NULL

-- name: add_signal
INSERT INTO ff.signal (
    id, execution_id, seq, waitpoint_id, waitpoint, suspension, counts, name, category, source, source_type,
    source_identity, correlation, payload, encoding, key, created_at, accepted_at, effect
)
VALUES (
    :id, :execution_id, :seq, :waitpoint_id, :waitpoint, :suspension, :counts, :name, :category, :source, :source_type,
    :source_identity, :correlation, :payload, :encoding, :key, :created_at, :accepted_at, :effect
)

-- name: bind_signals
UPDATE ff.signal
SET
    suspension = :number,
    counts = seq IN :counting
WHERE waitpoint_id IN :waitpoint_ids
    AND suspension IS NULL
    AND (NOT :only_counting OR seq IN :counting)

-- name: unbind_signals
UPDATE ff.signal
SET
    suspension = NULL,
    counts = FALSE
WHERE execution_id = :execution_id
    AND suspension = :number
    AND waitpoint_id IN :waitpoint_ids

-- name: unused_signals
SELECT g.id, g.waitpoint_id, g.waitpoint, g.name, g.source, g.seq
FROM ff.signal AS g
WHERE g.waitpoint_id IN :waitpoint_ids
    AND g.suspension IS NULL
ORDER BY g.seq

-- name: counting_signals
SELECT g.id, g.execution_id, g.waitpoint, g.name, g.source, g.seq
FROM ff.suspension AS s
JOIN ff.signal AS g
    ON g.execution_id = s.execution_id
    AND g.suspension = s.number
    AND g.counts
WHERE s.execution_id IN :execution_ids
    AND s.closed_at IS NULL
ORDER BY g.seq

-- name: accepted_signals
SELECT g.id, g.execution_id, g.waitpoint_id, g.waitpoint, g.key
FROM ff.signal AS g
WHERE g.execution_id IN :execution_ids
    AND g.id IN :ids
UNION ALL
SELECT g.id, g.execution_id, g.waitpoint_id, g.waitpoint, g.key
FROM ff.signal AS g
WHERE g.waitpoint_id IN :waitpoint_ids
    AND g.key IN :keys

-- name: signals_of
SELECT
{signal}
FROM ff.signal AS g
WHERE g.execution_id = :execution_id
    AND g.suspension = :number
    AND (g.counts OR :include_unmatched)
    AND g.seq > :after
ORDER BY g.seq
LIMIT :limit

-- name: delete_suspensions
DELETE FROM ff.suspension
WHERE execution_id IN :ids

-- name: delete_waitpoints
DELETE FROM ff.waitpoint
WHERE execution_id IN :ids

-- name: delete_signals
DELETE FROM ff.signal
WHERE execution_id IN :ids
