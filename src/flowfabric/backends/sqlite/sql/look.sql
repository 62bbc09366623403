-- Fragments of shared statements: lists as rows, and times.

-- fragment: wanted
SELECT keys.value AS key, places.value AS place, limits.value AS most
FROM json_each(:keys) AS keys
JOIN json_each(:places) AS places
    ON places.key = keys.key
JOIN json_each(:limits) AS limits
    ON limits.key = keys.key

-- fragment: queues
SELECT ids.value AS waitpoint_id, places.value AS place, limits.value AS most
FROM json_each(:waitpoint_ids) AS ids
JOIN json_each(:places) AS places
    ON places.key = ids.key
JOIN json_each(:limits) AS limits
    ON limits.key = ids.key

-- fragment: join_next_signal
JOIN ff.signal AS g
    ON g.waitpoint_id = next_signal.waitpoint_id
    AND g.seq = next_signal.seq
    AND g.suspension IS NULL

-- Pairs of ids, each as one text. Two lists would compare every execution with every suspension.
-- fragment: named
SELECT substr(pair.value, 1, 36) AS execution_id, substr(pair.value, 37) AS id
FROM json_each(:pairs) AS pair

-- fragment: time_of_look
:now

-- fragment: lease_term_from_now
:now + e.lease_ttl_us
