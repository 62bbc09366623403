-- Only the conversion of parallel lists to rows differs from the shared statement.

-- fragment: wanted
SELECT wanted.key, wanted.place
FROM unnest(CAST(:keys AS TEXT[]), CAST(:places AS BIGINT[])) AS wanted (key, place)

-- fragment: time_of_look
COALESCE(:now, clock_timestamp())
