-- One look at executions that are to be suspended or signalled, without a lock, and the guard of the write that follows.
-- All that was seen with a row is as it was while the row is, since whoever changes it writes the row too. `xmin` tells
-- who wrote a row last.

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

-- name: seen_before_suspending
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
                AND s.generation = e.generation
                AND s.key = item.key
        ) AS found
    ) AS suspensions,
    {ring_seen}
FROM unnest(:id::UUID[], :key::TEXT[]) AS item (id, key)
JOIN ff.execution AS e ON e.id = item.id

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

-- What may be written: rows that are free and as they were seen. A row that was written after this statement began is
-- looked at again when it is locked, and its mark is another one then. Whoever mints waits for whoever rotates keys, and
-- has locked nothing else by then.

-- name: held_as_seen
SELECT e.id
FROM unnest(:id::UUID[], :mark::TEXT[]::XID[], :owned::BOOLEAN[]) AS seen (id, mark, owned)
JOIN ff.execution AS e ON e.id = seen.id
WHERE e.xmin = seen.mark
    AND (NOT seen.owned OR e.lease_expires_at > COALESCE(:now, clock_timestamp()))
    AND (
        :kid::TEXT IS NULL OR EXISTS (
            SELECT 1
            FROM minting
        )
    )
FOR NO KEY UPDATE OF e SKIP LOCKED

-- name: minting
SELECT k.kid
FROM ff.signing_key AS k
WHERE k.active
    AND k.kid = :kid::TEXT
FOR SHARE
