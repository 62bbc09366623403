-- Only the conversion of parallel lists to rows differs from the shared statement.

-- fragment: wanted
SELECT keys.value AS key, places.value AS place
FROM json_each(:keys) AS keys
JOIN json_each(:places) AS places
    ON places.key = keys.key

-- fragment: time_of_look
:now
