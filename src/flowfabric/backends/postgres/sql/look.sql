-- Fragments of shared statements: lists as rows, and times.

-- fragment: wanted
SELECT wanted.key, wanted.place, wanted.most
FROM unnest(CAST(:keys AS TEXT[]), CAST(:places AS BIGINT[]), CAST(:limits AS BIGINT[])) AS wanted (key, place, most)

-- fragment: queues
SELECT wanted.waitpoint_id, wanted.place, wanted.most
FROM unnest(CAST(:waitpoint_ids AS UUID[]), CAST(:places AS BIGINT[]), CAST(:limits AS BIGINT[]))
    AS wanted (waitpoint_id, place, most)

-- The LIMIT makes PostgreSQL find each signal by the index. Otherwise it may read all unused signals of the store.
-- fragment: join_next_signal
CROSS JOIN LATERAL (
    SELECT s.id, s.waitpoint_id, s.waitpoint, s.name, s.source, s.seq
    FROM ff.signal AS s
    WHERE s.waitpoint_id = next_signal.waitpoint_id
        AND s.seq = next_signal.seq
        AND s.suspension IS NULL
    ORDER BY s.seq
    LIMIT 1
) AS g

-- Pairs of ids. Two lists would compare every execution with every suspension.
-- fragment: named
SELECT named.execution_id, named.id
FROM unnest(CAST(:execution_ids AS UUID[]), CAST(:ids AS UUID[])) AS named (execution_id, id)

-- fragment: time_of_look
COALESCE(:now, clock_timestamp())

-- fragment: lease_term_from_now
CAST(:now AS TIMESTAMPTZ) + e.lease_ttl_us * INTERVAL '1 microsecond'
