-- Reads for several callers in one statement. Every row names the execution it is for. `namespace || ''` makes SQLite,
-- which has no statistics, use the index on the id. Otherwise it would read all executions of the namespace.

-- name: look
-- Four kinds of rows in the columns of a signal: signals, outcomes of children, overridden waits, and the time.
WITH RECURSIVE wanted AS (
    {wanted}
),
mine AS (
    SELECT e.id, e.generation
    FROM ff.execution AS e
    WHERE e.id = :execution_id
        AND e.namespace = :namespace
),
queue AS (
    SELECT
        w.id, w.execution_id, w.key, w.suspension, w.generation < mine.generation AS is_old, wanted.place, wanted.most,
        ROW_NUMBER() OVER (PARTITION BY w.key ORDER BY w.created_at DESC, w.id DESC) AS age
    FROM mine
    JOIN ff.waitpoint AS w
        ON w.execution_id = mine.id
        AND (w.kind = 'standing' OR w.generation = mine.generation)
    JOIN wanted
        ON wanted.key = w.key
),
-- A queue may be long, so read only the first signals of each queue: step from one signal to the next in the index.
next_signal (waitpoint_id, most, number, seq) AS (
    SELECT
        queue.id, queue.most, 1,
        (
            SELECT MIN(g.seq)
            FROM ff.signal AS g
            WHERE g.waitpoint_id = queue.id
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
),
-- A replayed execution may also use signals that an earlier generation has used.
used_before AS (
    SELECT g.seq, queue.most, ROW_NUMBER() OVER (PARTITION BY g.waitpoint ORDER BY g.seq) AS number
    FROM queue
    JOIN ff.signal AS g
        ON g.execution_id = queue.execution_id
        AND g.waitpoint_id = queue.id
        AND g.suspension > 0
        AND g.seq > queue.place
    WHERE queue.is_old
),
found AS (
    SELECT next_signal.seq AS place
    FROM next_signal
    WHERE next_signal.seq IS NOT NULL
    UNION
    -- The signals that the last suspension at the waitpoint has observed.
    SELECT g.seq
    FROM queue
    JOIN ff.signal AS g
        ON g.execution_id = queue.execution_id
        AND g.suspension = queue.suspension
        AND g.waitpoint_id = queue.id
        AND g.counts
        AND g.seq > queue.place
    UNION
    SELECT used_before.seq
    FROM used_before
    WHERE used_before.number <= used_before.most
    UNION
    SELECT g.seq
    FROM mine
    JOIN ff.signal AS g
        ON g.execution_id = mine.id
        AND g.seq IN :skipped
        AND COALESCE(g.suspension, 1) > 0
)
SELECT
    'signal' AS part,
    {signal}
FROM found
JOIN ff.signal AS g
    ON g.execution_id = :execution_id
    AND g.seq = found.place
UNION ALL
SELECT
    'child', e.id, mine.id, NULL, NULL, NULL, NULL, NULL, e.state, e.failure_category, e.failure_message,
    e.cancelled_by, e.cancel_reason, NULL, COALESCE(a.result, a.failure_detail), a.encoding, NULL, NULL, e.ended_at, NULL
FROM mine
JOIN ff.execution AS e
    ON e.id IN :children
    AND e.namespace || '' = :namespace
    AND e.ended_at IS NOT NULL
LEFT JOIN ff.attempt AS a
    ON a.execution_id = e.id
    AND a.attempt_index = e.attempt_index
UNION ALL
SELECT
    'override', s.id, latest.execution_id, NULL, NULL, latest.key, NULL, NULL, NULL, NULL, v.reason, NULL, v.principal,
    NULL, NULL, NULL, NULL, NULL, v.at, NULL
FROM queue AS latest
JOIN ff.suspension AS s
    ON s.execution_id = latest.execution_id
    AND s.number = latest.suspension
    AND s.closed_by = 'operator'
-- A cancel request also ends a wait, but writes another event.
JOIN ff.event AS v
    ON v.execution_id = latest.execution_id
    AND v.family = 'operator'
    AND v.name = 'resumed'
    AND v.details ->> 'suspension' = CAST(s.id AS TEXT)
WHERE latest.age = 1
UNION ALL
SELECT
    'time', mine.id, mine.id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    {time_of_look}, NULL
FROM mine
ORDER BY seq

-- name: journal
-- An execution without steps has one empty row. One of another namespace has no row.
SELECT
    e.id AS execution_id, s.seq, s.name, s.status, s.payload, s.encoding, s.attempt_index, s.generation, s.recorded_at
FROM ff.execution AS e
LEFT JOIN ff.step AS s
    ON s.execution_id = e.id
    AND s.struck_by IS NULL
WHERE e.id = :execution_id
    AND e.namespace = :namespace
ORDER BY s.seq
LIMIT :limit

-- name: glances
SELECT
    e.id, e.state, e.hold_reason, e.failure_category, e.failure_message, e.cancelled_by, e.cancel_reason, e.ended_at,
    a.result, a.encoding, a.failure_detail
FROM ff.execution AS e
LEFT JOIN ff.attempt AS a
    ON a.execution_id = e.id
    AND a.attempt_index = e.attempt_index
    AND e.ended_at IS NOT NULL
WHERE e.id IN :ids
    AND e.namespace || '' = :namespace

-- name: peek_leases
SELECT e.id, e.lease_id, e.cancel_due_at
FROM ff.execution AS e
WHERE e.id IN :ids
    AND e.namespace IN :namespaces

-- name: inputs
-- A member without upstreams has one empty row. One of another namespace has no row.
SELECT m.id AS member_id, d.upstream_id, d.input, e.state, e.ended_at, a.result, a.encoding
FROM ff.execution AS m
LEFT JOIN ff.edge AS d
    ON d.downstream_id = m.id
    AND d.seq = 0
LEFT JOIN ff.execution AS e
    ON e.id = d.upstream_id
LEFT JOIN ff.attempt AS a
    ON a.execution_id = e.id
    AND a.attempt_index = e.attempt_index
    AND e.ended_at IS NOT NULL
WHERE m.id IN :ids
    AND m.namespace = :namespace
ORDER BY m.id, d.upstream_id
