-- Fragments of shared statements: lists as rows, and times.

-- fragment: wanted
SELECT wanted.key, wanted.place
FROM unnest(CAST(:keys AS TEXT[]), CAST(:places AS BIGINT[])) AS wanted (key, place)

-- Pairs of ids. Two lists would compare every execution with every suspension.
-- fragment: named
SELECT named.execution_id, named.id
FROM unnest(CAST(:execution_ids AS UUID[]), CAST(:ids AS UUID[])) AS named (execution_id, id)

-- fragment: time_of_look
COALESCE(:now, clock_timestamp())

-- fragment: lease_term_from_now
CAST(:now AS TIMESTAMPTZ) + e.lease_ttl_us * INTERVAL '1 microsecond'
