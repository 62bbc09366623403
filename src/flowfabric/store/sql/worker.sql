-- Registered workers.

-- fragment: worker
w.namespace, w.instance, w.name, w.lanes, w.capabilities, w.version, w.host, w.slots, w.busy, w.ttl_us,
w.registered_at, w.seen_at, w.expires_at, w.kinds

-- name: lock_worker
SELECT
{worker}
FROM ff.worker AS w
WHERE w.namespace = :namespace
    AND w.instance = :instance
FOR NO KEY UPDATE

-- name: add_worker
INSERT INTO ff.worker (
    namespace, instance, name, lanes, capabilities, version, host, slots, busy, ttl_us, registered_at, seen_at, expires_at,
    kinds
)
VALUES (
    :namespace, :instance, :name, :lanes, :capabilities, :version, :host, :slots, :busy, :ttl_us, :registered_at,
    :seen_at, :expires_at, :kinds
)
ON CONFLICT (namespace, instance) DO NOTHING
RETURNING instance

-- name: change_worker
UPDATE ff.worker
SET
    name = :name,
    lanes = :lanes,
    capabilities = :capabilities,
    version = :version,
    host = :host,
    slots = :slots,
    busy = :busy,
    ttl_us = :ttl_us,
    registered_at = :registered_at,
    seen_at = :seen_at,
    expires_at = :expires_at,
    kinds = :kinds
WHERE namespace = :namespace
    AND instance = :instance

-- name: remove_worker
DELETE FROM ff.worker
WHERE namespace = :namespace
    AND instance = :instance

-- name: lapsed_workers
SELECT w.namespace, w.instance
FROM ff.worker AS w
WHERE w.expires_at <= :now
ORDER BY w.expires_at
LIMIT :limit

-- name: lock_lapsed_worker
SELECT
{worker}
FROM ff.worker AS w
WHERE w.namespace = :namespace
    AND w.instance = :instance
    AND w.expires_at <= :now
FOR NO KEY UPDATE SKIP LOCKED
