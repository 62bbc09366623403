-- The register of workers.

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

-- name: put_worker
INSERT INTO ff.worker (
    namespace, instance, name, lanes, capabilities, version, host, slots, busy, ttl_us, registered_at, seen_at, expires_at,
    kinds
)
VALUES (
    :namespace, :instance, :name, :lanes, :capabilities, :version, :host, :slots, :busy, :ttl_us, :registered_at,
    :seen_at, :expires_at, :kinds
)
ON CONFLICT (namespace, instance) DO UPDATE SET
    name = excluded.name,
    lanes = excluded.lanes,
    capabilities = excluded.capabilities,
    version = excluded.version,
    host = excluded.host,
    slots = excluded.slots,
    busy = excluded.busy,
    ttl_us = excluded.ttl_us,
    registered_at = excluded.registered_at,
    seen_at = excluded.seen_at,
    expires_at = excluded.expires_at,
    kinds = excluded.kinds

-- name: remove_worker
DELETE FROM ff.worker
WHERE namespace = :namespace
    AND instance = :instance

-- name: list_workers
SELECT
{worker}
FROM ff.worker AS w
WHERE w.namespace = :namespace
    AND w.instance > :after
ORDER BY w.instance
LIMIT :limit

-- name: lapsed_workers
SELECT
{worker}
FROM ff.worker AS w
WHERE w.expires_at <= :now
ORDER BY w.expires_at
LIMIT :limit
FOR NO KEY UPDATE SKIP LOCKED
