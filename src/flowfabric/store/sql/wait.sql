-- Suspensions, waitpoints and signals. The lock of their execution's row covers all of them.

-- fragment: suspension
s.id, s.execution_id, s.number, s.generation, s.epoch, s.lease_id, s.key, s.digest, s.condition, s.reason, s.rest,
s.opened_at, s.timeout_at, s.on_timeout, s.resume_delay_us, s.closed_at, s.closed_by

-- fragment: waitpoint
w.id, w.execution_id, w.key, w.kind, w.state, w.suspension, w.kid, w.nonce, w.token_hash, w.approver, w.token_ends_at,
w.child_id, w.fires_at, w.created_at, w.expires_at, w.closed_at, w.close_reason, w.generation, w.payload_schema,
w.prompt

-- fragment: signal
g.id, g.execution_id, g.seq, g.waitpoint_id, g.waitpoint, g.suspension, g.counts, g.name, g.category, g.source,
g.source_type, g.source_identity, g.correlation, g.payload, g.encoding, g.key, g.created_at, g.accepted_at, g.effect

-- name: open_suspensions
SELECT
{suspension}
FROM ff.suspension AS s
WHERE s.execution_id IN :execution_ids
    AND s.closed_at IS NULL

-- name: last_suspension
SELECT
{suspension}
FROM ff.suspension AS s
WHERE s.execution_id = :execution_id
    AND s.id = COALESCE(:id, s.id)
    AND s.lease_id = COALESCE(:lease_id, s.lease_id)
    AND s.number = COALESCE(:number, s.number)
ORDER BY s.number DESC
LIMIT 1

-- name: suspensions_named
SELECT
{suspension}
FROM ff.suspension AS s
WHERE s.execution_id IN :execution_ids
    AND s.key IN :keys
UNION ALL
SELECT
{suspension}
FROM (
    {named}
) AS named
JOIN ff.suspension AS s
    ON s.execution_id = named.execution_id
    AND s.id = named.id

-- name: open_suspension
WITH item (
    id UUID, execution_id UUID, number INTEGER, generation INTEGER, epoch BIGINT, lease_id UUID, key TEXT,
    digest TEXT, condition JSONB, reason TEXT, rest TEXT, opened_at TIMESTAMPTZ, timeout_at TIMESTAMPTZ,
    on_timeout TEXT, resume_delay_us BIGINT, closed_at TIMESTAMPTZ, closed_by TEXT
) AS (
    VALUES :items
)
INSERT INTO ff.suspension (
    id, execution_id, number, generation, epoch, lease_id, key, digest, condition, reason, rest, opened_at,
    timeout_at, on_timeout, resume_delay_us, closed_at, closed_by
)
SELECT
    item.id, item.execution_id, item.number, item.generation, item.epoch, item.lease_id, item.key, item.digest,
    item.condition, item.reason, item.rest, item.opened_at, item.timeout_at, item.on_timeout, item.resume_delay_us,
    item.closed_at, item.closed_by
FROM item
WHERE item.execution_id IS NOT NULL
RETURNING 1

-- name: change_suspension
WITH item (
    execution_id UUID, number INTEGER, timeout_at TIMESTAMPTZ, closed_at TIMESTAMPTZ, closed_by TEXT
) AS (
    VALUES :items
)
UPDATE ff.suspension AS s
SET
    timeout_at = item.timeout_at,
    closed_at = item.closed_at,
    closed_by = item.closed_by
FROM item
WHERE s.execution_id = item.execution_id
    AND s.number = item.number
    -- `closed_at IS NULL` would scan the index on open waitpoints.
    AND s.closed_by IS NULL
RETURNING id

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
SELECT w.execution_id, w.key, w.payload_schema
FROM ff.waitpoint AS w
WHERE w.execution_id IN :execution_ids
    AND w.kind = 'standing'
ORDER BY w.execution_id, w.generation, w.key

-- name: add_waitpoint
WITH item (
    id UUID, execution_id UUID, key TEXT, kind TEXT, state TEXT, suspension INTEGER, kid TEXT, nonce BYTEA,
    token_hash BYTEA, approver TEXT, token_ends_at TIMESTAMPTZ, child_id UUID, fires_at TIMESTAMPTZ,
    created_at TIMESTAMPTZ, expires_at TIMESTAMPTZ, closed_at TIMESTAMPTZ, close_reason TEXT, generation INTEGER,
    payload_schema TEXT, prompt TEXT
) AS (
    VALUES :items
)
INSERT INTO ff.waitpoint (
    id, execution_id, key, kind, state, suspension, kid, nonce, token_hash, approver, token_ends_at, child_id,
    fires_at, created_at, expires_at, closed_at, close_reason, generation, payload_schema, prompt
)
SELECT
    item.id, item.execution_id, item.key, item.kind, item.state, item.suspension, item.kid, item.nonce,
    item.token_hash, item.approver, item.token_ends_at, item.child_id, item.fires_at, item.created_at,
    item.expires_at, item.closed_at, item.close_reason, item.generation, item.payload_schema,
    item.prompt
FROM item
WHERE item.execution_id IS NOT NULL
RETURNING 1

-- name: move_waitpoint
WITH item (
    waitpoint_id UUID, execution_id UUID, state TEXT, suspension INTEGER, kid TEXT, nonce BYTEA, token_hash BYTEA,
    approver TEXT, token_ends_at TIMESTAMPTZ, fires_at TIMESTAMPTZ, expires_at TIMESTAMPTZ, closed_at TIMESTAMPTZ,
    close_reason TEXT
) AS (
    VALUES :items
)
UPDATE ff.waitpoint AS w
SET
    state = item.state,
    suspension = item.suspension,
    kid = item.kid,
    nonce = item.nonce,
    token_hash = item.token_hash,
    approver = item.approver,
    token_ends_at = item.token_ends_at,
    fires_at = item.fires_at,
    expires_at = item.expires_at,
    closed_at = item.closed_at,
    close_reason = item.close_reason
FROM item
-- `closed_at IS NULL` would scan the index on open waitpoints.
WHERE w.id = item.waitpoint_id
    AND w.state <> 'closed'
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
WITH item (
    id UUID, execution_id UUID, seq BIGINT, waitpoint_id UUID, waitpoint TEXT, suspension INTEGER, counts BOOLEAN,
    name TEXT, category TEXT, source TEXT, source_type TEXT, source_identity TEXT, correlation TEXT, payload BYTEA,
    encoding TEXT, key TEXT, created_at TIMESTAMPTZ, accepted_at TIMESTAMPTZ, effect TEXT
) AS (
    VALUES :items
)
INSERT INTO ff.signal (
    id, execution_id, seq, waitpoint_id, waitpoint, suspension, counts, name, category, source, source_type,
    source_identity, correlation, payload, encoding, key, created_at, accepted_at, effect
)
SELECT
    item.id, item.execution_id, item.seq, item.waitpoint_id, item.waitpoint, item.suspension, item.counts,
    item.name, item.category, item.source, item.source_type, item.source_identity, item.correlation, item.payload,
    item.encoding, item.key, item.created_at, item.accepted_at, item.effect
FROM item
WHERE item.execution_id IS NOT NULL
RETURNING 1

-- name: bind_signals
UPDATE ff.signal
SET
    suspension = :number,
    counts = seq IN :counting
WHERE waitpoint_id IN :waitpoint_ids
    AND suspension IS NULL

-- name: observe_signals
UPDATE ff.signal
SET
    suspension = CASE WHEN seq IN :counting THEN CAST(:number AS INTEGER) END,
    counts = seq IN :counting
WHERE execution_id = :execution_id
    AND seq IN :touched

-- name: unbind_signals
UPDATE ff.signal
SET
    suspension = NULL,
    counts = FALSE
WHERE execution_id = :execution_id
    AND suspension = :number
    AND waitpoint_id IN :waitpoint_ids

-- name: unbind_counting_signals
UPDATE ff.signal
SET
    suspension = NULL,
    counts = FALSE
WHERE execution_id = :execution_id
    AND suspension = :number
    AND counts
    AND waitpoint_id IN :waitpoint_ids

-- name: skip_signal
UPDATE ff.signal AS g
SET
    suspension = :skipped,
    counts = FALSE
WHERE g.execution_id = :execution_id
    AND g.seq = :seq
    AND COALESCE(g.suspension, -1) <> :skipped
RETURNING
    id, execution_id, seq, waitpoint_id, waitpoint, suspension, counts, name, category, source, source_type,
    source_identity, correlation, payload, encoding, key, created_at, accepted_at, effect

-- name: count_skipped_signals
SELECT COUNT(*) AS number
FROM ff.signal AS g
WHERE g.execution_id = :execution_id
    AND g.suspension = :skipped

-- name: restore_skipped_signals
UPDATE ff.signal
SET suspension = NULL
WHERE execution_id = :execution_id
    AND suspension = :skipped

-- name: available_signals
-- A queue may be long, so read only the first signals of each queue: step from one signal to the next in the index.
WITH RECURSIVE queue AS (
    {queues}
),
next_signal (waitpoint_id, most, number, seq) AS (
    SELECT
        queue.waitpoint_id, queue.most, 1,
        (
            SELECT MIN(g.seq)
            FROM ff.signal AS g
            WHERE g.waitpoint_id = queue.waitpoint_id
                AND g.suspension IS NULL
                AND g.seq > queue.place
        )
    FROM queue
    UNION ALL
    SELECT
        last.waitpoint_id, last.most, last.number + 1,
        (
            SELECT MIN(g.seq)
            FROM ff.signal AS g
            WHERE g.waitpoint_id = last.waitpoint_id
                AND g.suspension IS NULL
                AND g.seq > last.seq
        )
    FROM next_signal AS last
    WHERE last.seq IS NOT NULL
        AND last.number < last.most
)
SELECT g.id, g.waitpoint_id, g.waitpoint, g.name, g.source, g.seq, FALSE AS observed
FROM next_signal
{join_next_signal}
UNION
SELECT g.id, g.waitpoint_id, g.waitpoint, g.name, g.source, g.seq, FALSE
FROM ff.signal AS g
WHERE g.waitpoint_id IN :waitpoint_ids
    AND g.seq IN :skipped
    AND g.suspension IS NULL
UNION ALL
-- No earlier suspension has signals that the worker has not used: each suspension takes over those of the last one.
SELECT g.id, g.waitpoint_id, g.waitpoint, g.name, g.source, g.seq, TRUE
FROM ff.waitpoint AS w
JOIN ff.signal AS g
    ON g.execution_id = w.execution_id
    AND g.suspension = w.suspension
    AND g.waitpoint_id = w.id
    AND g.counts
WHERE w.execution_id IN :execution_ids
    AND w.id IN :positioned_ids
ORDER BY seq

-- name: waitpoints_with_signals
SELECT DISTINCT g.waitpoint_id
FROM ff.signal AS g
WHERE g.waitpoint_id IN :waitpoint_ids
    AND g.suspension IS NULL

-- name: counting_and_accepted_signals
SELECT g.id, g.execution_id, g.waitpoint_id, g.waitpoint, g.key, g.name, g.source, g.seq, TRUE AS counting
FROM ff.suspension AS s
JOIN ff.signal AS g
    ON g.execution_id = s.execution_id
    AND g.suspension = s.number
    AND g.counts
WHERE s.execution_id IN :execution_ids
    AND s.closed_at IS NULL
UNION ALL
SELECT g.id, g.execution_id, g.waitpoint_id, g.waitpoint, g.key, g.name, g.source, g.seq, FALSE
FROM ff.signal AS g
WHERE g.execution_id IN :execution_ids
    AND g.id IN :ids
UNION ALL
SELECT g.id, g.execution_id, g.waitpoint_id, g.waitpoint, g.key, g.name, g.source, g.seq, FALSE
FROM ff.signal AS g
WHERE g.waitpoint_id IN :waitpoint_ids
    AND g.key IN :keys
ORDER BY seq

-- name: signals_of
SELECT
{signal}
FROM ff.signal AS g
WHERE g.execution_id = :execution_id
    AND g.suspension = :number
    AND g.counts
    AND g.seq > :after
UNION ALL
-- A separate part, so that the first part can use the index of counting signals.
SELECT
{signal}
FROM ff.signal AS g
WHERE g.execution_id = :execution_id
    AND g.suspension = :number
    AND NOT g.counts
    AND :include_unmatched
    AND g.seq > :after
ORDER BY seq
LIMIT :limit

-- name: keyed_signals
SELECT
{signal}
FROM ff.signal AS g
WHERE g.waitpoint_id = :waitpoint_id
    AND g.key IS NOT NULL
    AND g.name IN :names
    AND g.id = COALESCE(:id, g.id)
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
