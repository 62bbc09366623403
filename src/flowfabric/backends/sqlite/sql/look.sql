-- Fragments of shared statements: lists as rows, and times.

-- fragment: wanted
SELECT keys.value AS key, places.value AS place
FROM json_each(:keys) AS keys
JOIN json_each(:places) AS places
    ON places.key = keys.key

-- fragment: time_of_look
:now

-- fragment: lease_term_from_now
:now + e.lease_ttl_us
