-- Idempotency keys of submissions. A key belongs to a namespace. It holds as long as its execution is kept, and at least
-- until its window has passed.

-- A key that is in use is not changed, but its row is locked, so that later statements see how its owner ended.

-- name: take_key
INSERT INTO ff.submission_key AS submission_key (namespace, key, execution_id, fingerprint, expires_at)
VALUES (:namespace, :key, :execution_id, :fingerprint, :expires_at)
ON CONFLICT (namespace, key)
DO UPDATE SET
    fingerprint = submission_key.fingerprint
WHERE FALSE
RETURNING execution_id

-- name: key_holder
SELECT k.execution_id, k.fingerprint, k.expires_at, {told_time} AS now
FROM ff.submission_key AS k
WHERE k.namespace = :namespace
    AND k.key = :key

-- name: replace_key
UPDATE ff.submission_key AS k
SET
    execution_id = :execution_id,
    fingerprint = :fingerprint,
    expires_at = :expires_at,
    drop_at = NULL
WHERE k.namespace = :namespace
    AND k.key = :key
    AND k.expires_at <= :now
    AND NOT EXISTS (
        SELECT 1
        FROM ff.execution AS e
        WHERE e.id = k.execution_id
    )
RETURNING execution_id

-- name: extend_key
UPDATE ff.submission_key
SET expires_at = :expires_at
WHERE namespace = :namespace
    AND key = :key

-- name: keys_to_drop
SELECT namespace, key
FROM ff.submission_key
WHERE drop_at <= :now
ORDER BY drop_at
LIMIT :limit

-- name: drop_key
DELETE FROM ff.submission_key
WHERE (namespace, key) IN (
    SELECT k.namespace, k.key
    FROM ff.submission_key AS k
    WHERE k.namespace = :namespace
        AND k.key = :key
        AND k.drop_at <= :now
    FOR NO KEY UPDATE SKIP LOCKED
)
RETURNING key

-- name: delete_keys
DELETE FROM ff.submission_key
WHERE execution_id IN :ids
    AND expires_at <= :now

-- name: keep_keys
UPDATE ff.submission_key
SET drop_at = expires_at
WHERE execution_id IN :ids
    AND expires_at > :now
