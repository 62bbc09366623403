-- Statements on workers that differ: a heartbeat is one statement, and lanes are an array.

-- name: beat_worker
UPDATE ff.worker AS w
SET
    busy = :busy,
    seen_at = clock.now,
    expires_at = clock.now + w.ttl_us * INTERVAL '1 microsecond'
FROM (
    SELECT COALESCE(:now, clock_timestamp()) AS now
) AS clock
WHERE w.namespace = :namespace
    AND w.instance = :instance
    AND w.expires_at > clock.now
RETURNING w.expires_at

-- name: list_workers
SELECT
{worker}
FROM ff.worker AS w
WHERE w.namespace = :namespace
    AND w.instance > :after
    AND w.expires_at > :now
    AND (:lane::TEXT IS NULL OR :lane = ANY(w.lanes))
ORDER BY w.instance
LIMIT :limit
