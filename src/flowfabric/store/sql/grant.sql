-- Grants to take over an execution that is reserved for a hand-off.

-- name: add_grant
INSERT INTO ff.reclaim_grant (id, execution_id, worker, instance, granted_at, expires_at)
VALUES (:id, :execution_id, :worker, :instance, :granted_at, :expires_at)

-- name: get_grant
SELECT id, execution_id, worker, instance, granted_at, expires_at, consumed_by
FROM ff.reclaim_grant
WHERE id = :id

-- name: open_grants
SELECT id, execution_id, worker, instance, granted_at, expires_at, consumed_by
FROM ff.reclaim_grant
WHERE execution_id = :execution_id
    AND consumed_by IS NULL
    AND expires_at > :now
ORDER BY granted_at, id

-- name: end_grants
UPDATE ff.reclaim_grant
SET expires_at = granted_at
WHERE execution_id = :execution_id
    AND consumed_by IS NULL

-- name: consume_grant
UPDATE ff.reclaim_grant
SET consumed_by = :lease_id
WHERE id = :id
    AND consumed_by IS NULL
RETURNING id
