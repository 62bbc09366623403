-- Idempotency keys of submissions, scoped to their namespace and living for their window.

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
FOR NO KEY UPDATE SKIP LOCKED

-- name: drop_key
DELETE FROM ff.submission_key
WHERE namespace = :namespace
    AND key = :key

-- name: delete_keys
DELETE FROM ff.submission_key
WHERE execution_id IN :ids
