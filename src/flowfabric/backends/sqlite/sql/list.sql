-- Listings: the newest rows of each state, merged. Without filters, the cost of a page does not depend on the size of
-- the table. A selective filter has to read the rows that it skips.

-- fragment: listing
    AND e.id >= :first
    AND e.id < :before
    AND (:lane IS NULL OR e.lane = :lane)
    AND (:kind IS NULL OR e.kind = :kind)
    AND (:created_from IS NULL OR e.created_at >= :created_from)
    AND (:created_until IS NULL OR e.created_at < :created_until)
    AND (:tags IS NULL OR NOT EXISTS (
        SELECT 1
        FROM json_each(:tags) AS tag
        WHERE NOT EXISTS (
            SELECT 1
            FROM json_each(e.tags) AS own
            WHERE own.key = tag.key
                AND own.value = tag.value
        )
    ))
ORDER BY e.id DESC
LIMIT :limit

-- name: list_executions
SELECT
{execution}
FROM json_each(:states) AS wanted
JOIN ff.execution AS e ON e.id IN (
    SELECT e.id
    FROM ff.execution AS e
    WHERE e.namespace = :namespace
        AND e.state = wanted.value
    {listing}
)
ORDER BY e.id DESC
LIMIT :limit

-- name: estimate_in_state
SELECT COUNT(*) AS count
FROM ff.execution
WHERE namespace = :namespace
    AND state = :state
