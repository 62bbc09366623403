-- Only how lists side by side become rows differs.

-- fragment: wanted
SELECT wanted.key, wanted.place
FROM unnest(CAST(:keys AS TEXT[]), CAST(:places AS BIGINT[])) AS wanted (key, place)

-- fragment: time_of_look
COALESCE(:now, clock_timestamp())
