-- Statements on workers that differ: lanes are a JSON array.

-- name: beat_worker
UPDATE ff.worker
SET
    busy = :busy,
    seen_at = :now,
    expires_at = :now + ttl_us
WHERE namespace = :namespace
    AND instance = :instance
    AND expires_at > :now
RETURNING expires_at

-- name: list_workers
SELECT
{worker}
FROM ff.worker AS w
WHERE w.namespace = :namespace
    AND w.instance > :after
    AND w.expires_at > :now
    AND (:lane IS NULL OR EXISTS (
        SELECT 1
        FROM json_each(w.lanes) AS served
        WHERE served.value = :lane
    ))
ORDER BY w.instance
LIMIT :limit
