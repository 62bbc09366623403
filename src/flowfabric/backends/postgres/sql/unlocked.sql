-- Reads executions to be signalled without a lock, and guards the write that follows. Anything attached to a row is
-- unchanged while the row is, because transactions that change it write the row too. `xmin` identifies the
-- transaction that wrote a row last.

-- fragment: waitpoints_seen
(
    SELECT json_agg(found)
    FROM (
        SELECT
        {waitpoint}
        FROM ff.waitpoint AS w
        WHERE w.execution_id = e.id
            AND w.closed_at IS NULL
        ORDER BY w.key
    ) AS found
) AS waitpoints

-- fragment: ring_seen
(
    SELECT json_agg(found)
    FROM (
        SELECT
        {signing_key}
        FROM ff.signing_key AS k
        ORDER BY k.created_at, k.kid
    ) AS found
) AS ring

-- name: seen_before_signalling
SELECT
    {execution}, e.xmin::TEXT AS mark, clock_timestamp() AS now,
    {waitpoints_seen},
    (
        SELECT json_agg(found)
        FROM (
            SELECT
            {suspension}
            FROM ff.suspension AS s
            WHERE s.execution_id = e.id
                AND s.closed_at IS NULL
        ) AS found
    ) AS suspensions,
    (
        SELECT json_agg(found)
        FROM (
            SELECT g.id, g.execution_id, g.waitpoint_id, g.waitpoint, g.key, g.name, g.source, g.seq, TRUE AS counting
            FROM ff.suspension AS s
            JOIN ff.signal AS g
                ON g.execution_id = s.execution_id
                AND g.suspension = s.number
                AND g.counts
            WHERE s.execution_id = e.id
                AND s.closed_at IS NULL
            UNION ALL
            SELECT g.id, g.execution_id, g.waitpoint_id, g.waitpoint, g.key, g.name, g.source, g.seq, FALSE
            FROM ff.signal AS g
            WHERE g.execution_id = e.id
                AND g.id = item.signal_id
            UNION ALL
            SELECT g.id, g.execution_id, g.waitpoint_id, g.waitpoint, g.key, g.name, g.source, g.seq, FALSE
            FROM ff.signal AS g
            WHERE g.waitpoint_id = item.waitpoint_id
                AND g.key = item.key
            ORDER BY seq
        ) AS found
    ) AS signals,
    {ring_seen}
FROM unnest(:execution_id::UUID[], :id::UUID[], :waitpoint_id::UUID[], :key::TEXT[])
    AS item (execution_id, signal_id, waitpoint_id, key)
JOIN ff.execution AS e ON e.id = item.execution_id

-- Rows that may be written are free and unchanged. A row that was written after this statement began is read again
-- when it is locked, and then has another mark. A transaction that mints tokens waits for key rotations before it
-- locks anything else.

-- name: held_as_seen
SELECT e.id
FROM unnest(:id::UUID[], :mark::TEXT[]::XID[]) AS seen (id, mark)
JOIN ff.execution AS e ON e.id = seen.id
WHERE e.xmin = seen.mark
FOR NO KEY UPDATE OF e SKIP LOCKED
