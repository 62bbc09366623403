-- Listings: the newest rows of each state, merged. Without filters, the cost of a page does not depend on the size of
-- the table. A selective filter has to read the rows that it skips.

-- name: list_executions
SELECT
{execution}
FROM json_each(:states) AS wanted
JOIN ff.execution AS e ON e.id IN (
    SELECT q.id
    FROM ff.execution AS q
    WHERE q.namespace = :namespace
        AND q.state = wanted.value
        AND q.id >= :first
        AND q.id < :before
        AND (:lane IS NULL OR q.lane = :lane)
        AND (:kind IS NULL OR q.kind = :kind)
        AND (:created_from IS NULL OR q.created_at >= :created_from)
        AND (:created_until IS NULL OR q.created_at < :created_until)
        AND (:tags IS NULL OR NOT EXISTS (
            SELECT 1
            FROM json_each(:tags) AS tag
            WHERE NOT EXISTS (
                SELECT 1
                FROM json_each(q.tags) AS own
                WHERE own.key = tag.key
                    AND own.value = tag.value
            )
        ))
    ORDER BY q.id DESC
    LIMIT :limit
)
ORDER BY e.id DESC
LIMIT :limit

-- name: estimate_in_state
SELECT COUNT(*) AS count
FROM ff.execution
WHERE namespace = :namespace
    AND state = :state
