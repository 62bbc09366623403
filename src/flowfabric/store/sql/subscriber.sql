-- Named subscribers, and queries for trimming. Each backend writes positions in its own way.

-- name: lock_store
SELECT s.id
FROM ff.store AS s
FOR NO KEY UPDATE

-- name: lock_subscriber
SELECT
{subscriber}
FROM ff.subscriber AS s
WHERE s.namespace = :namespace
    AND s.name = :name
FOR NO KEY UPDATE

-- name: list_subscribers
SELECT
{subscriber}
FROM ff.subscriber AS s
WHERE s.namespace = :namespace
    AND s.name > :after
ORDER BY s.name
LIMIT :limit

-- name: hold_subscriber
UPDATE ff.subscriber
SET
    holder = :holder,
    held_until = :held_until,
    seen_at = :now
WHERE namespace = :namespace
    AND name = :name

-- name: release_subscriber
UPDATE ff.subscriber
SET
    holder = NULL,
    held_until = NULL
WHERE namespace = :namespace
    AND name = :name
    AND holder = :holder

-- name: forget_subscriber
DELETE FROM ff.subscriber
WHERE namespace = :namespace
    AND name = :name
RETURNING name

-- name: expire_subscribers
UPDATE ff.subscriber
SET
    expired_at = :now,
    holder = NULL,
    held_until = NULL
WHERE expired_at IS NULL
    AND seen_at <= :silent_since
RETURNING namespace, name

-- name: bury_executions
INSERT INTO ff.purged (execution_id, trim_at)
SELECT e.id, :trim_at
FROM ff.execution AS e
WHERE e.id IN :ids
ON CONFLICT (execution_id) DO NOTHING

-- name: postpone_trimming
UPDATE ff.purged
SET trim_at = :trim_at
WHERE execution_id IN :ids

-- name: unbury_executions
DELETE FROM ff.purged
WHERE execution_id IN :ids

-- name: delete_all_events_of
DELETE FROM ff.event
WHERE execution_id IN :ids

-- name: delete_events_of
DELETE FROM ff.event
WHERE execution_id = :execution_id
    AND version <= :version
