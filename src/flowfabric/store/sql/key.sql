-- Idempotency keys of submissions. They belong to a namespace and expire after their window.

-- name: take_key
INSERT INTO ff.submission_key AS submission_key (namespace, key, execution_id, fingerprint, expires_at)
VALUES (:namespace, :key, :execution_id, :fingerprint, :expires_at)
ON CONFLICT (namespace, key)
DO UPDATE SET
    execution_id = excluded.execution_id,
    fingerprint = excluded.fingerprint,
    expires_at = excluded.expires_at
WHERE submission_key.expires_at <= :now
RETURNING execution_id

-- name: key_holder
SELECT execution_id, fingerprint
FROM ff.submission_key
WHERE namespace = :namespace
    AND key = :key

-- name: extend_key
UPDATE ff.submission_key
SET expires_at = :expires_at
WHERE namespace = :namespace
    AND key = :key

-- name: expired_keys
SELECT namespace, key
FROM ff.submission_key
WHERE expires_at <= :now
ORDER BY expires_at
LIMIT :limit

-- name: drop_key
DELETE FROM ff.submission_key
WHERE (namespace, key) IN (
    SELECT k.namespace, k.key
    FROM ff.submission_key AS k
    WHERE k.namespace = :namespace
        AND k.key = :key
        AND k.expires_at <= :now
    FOR NO KEY UPDATE SKIP LOCKED
)
RETURNING key

-- name: delete_keys
DELETE FROM ff.submission_key
WHERE execution_id IN :ids
