-- History and outbox in one append-only table.

-- name: append_event
WITH item (
    namespace TEXT, family TEXT, name TEXT, at TIMESTAMPTZ, lane TEXT, execution_id UUID, version BIGINT, kind TEXT,
    state TEXT, epoch BIGINT, generation INTEGER, attempt_index INTEGER, lease_id UUID, worker TEXT, instance TEXT,
    ends_lease BOOLEAN, tags JSONB, principal TEXT, reason TEXT, details JSONB, flow_id UUID
) AS (
    VALUES :items
)
INSERT INTO ff.event (
    namespace, family, name, at, lane, execution_id, version, kind, state, epoch, generation, attempt_index,
    lease_id, worker, instance, ends_lease, tags, principal, reason, details, flow_id
)
SELECT
    item.namespace, item.family, item.name, item.at, item.lane, item.execution_id, item.version, item.kind,
    item.state, item.epoch, item.generation, item.attempt_index, item.lease_id, item.worker, item.instance,
    item.ends_lease, item.tags, item.principal, item.reason, item.details, item.flow_id
FROM item
WHERE item.namespace IS NOT NULL
RETURNING 1

-- name: history_of
SELECT
    namespace, family, name, at, lane, execution_id, version, kind, state, epoch, generation, attempt_index,
    lease_id, worker, instance, ends_lease, tags, principal, reason, details, flow_id
FROM ff.event
WHERE execution_id = :execution_id
    AND namespace = :namespace
    AND version > :after
ORDER BY version
LIMIT :limit
