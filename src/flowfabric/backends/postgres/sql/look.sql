-- Fragments of shared statements: lists as rows, and times.

-- fragment: wanted
SELECT wanted.key, wanted.place, wanted.most
FROM unnest(CAST(:keys AS TEXT[]), CAST(:places AS BIGINT[]), CAST(:limits AS BIGINT[])) AS wanted (key, place, most)

-- fragment: queues
SELECT wanted.waitpoint_id, wanted.place, wanted.most
FROM unnest(CAST(:waitpoint_ids AS UUID[]), CAST(:places AS BIGINT[]), CAST(:limits AS BIGINT[]))
    AS wanted (waitpoint_id, place, most)

-- Pairs of ids. Two lists would compare every execution with every suspension.
-- fragment: named
SELECT named.execution_id, named.id
FROM unnest(CAST(:execution_ids AS UUID[]), CAST(:ids AS UUID[])) AS named (execution_id, id)

-- fragment: time_of_look
COALESCE(:now, clock_timestamp())

-- fragment: lease_term_from_now
CAST(:now AS TIMESTAMPTZ) + e.lease_ttl_us * INTERVAL '1 microsecond'
