-- Fragments of shared statements: lists as rows, and times.

-- fragment: wanted
SELECT keys.value AS key, places.value AS place
FROM json_each(:keys) AS keys
JOIN json_each(:places) AS places
    ON places.key = keys.key

-- Pairs of ids, each as one text. Two lists would compare every execution with every suspension.
-- fragment: named
SELECT substr(pair.value, 1, 36) AS execution_id, substr(pair.value, 37) AS id
FROM json_each(:pairs) AS pair

-- fragment: time_of_look
:now

-- fragment: lease_term_from_now
:now + e.lease_ttl_us
