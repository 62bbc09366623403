-- History and outbox in one append-only table. Statements that depend on the order of events are in the backends.

-- fragment: event
e.namespace, e.family, e.name, e.at, e.lane, e.execution_id, e.version, e.kind, e.state, e.epoch, e.generation,
e.attempt_index, e.lease_id, e.worker, e.instance, e.ends_lease, e.tags, e.principal, e.reason, e.details, e.flow_id

-- fragment: event_columns
namespace, family, name, at, lane, execution_id, version, kind, state, epoch, generation, attempt_index, lease_id,
worker, instance, ends_lease, tags, principal, reason, details, flow_id

-- name: append_event
WITH item (
    namespace TEXT, family TEXT, name TEXT, at TIMESTAMPTZ, lane TEXT, execution_id UUID, version BIGINT, kind TEXT,
    state TEXT, epoch BIGINT, generation INTEGER, attempt_index INTEGER, lease_id UUID, worker TEXT, instance TEXT,
    ends_lease BOOLEAN, tags JSONB, principal TEXT, reason TEXT, details JSONB, flow_id UUID
) AS (
    VALUES :items
)
INSERT INTO ff.event (
    {event_columns}{place_column}
)
SELECT
    item.namespace, item.family, item.name, item.at, item.lane, item.execution_id, item.version, item.kind,
    item.state, item.epoch, item.generation, item.attempt_index, item.lease_id, item.worker, item.instance,
    item.ends_lease, item.tags, item.principal, item.reason, item.details, item.flow_id{place_of_event}
FROM item
WHERE item.namespace IS NOT NULL
RETURNING 1

-- name: history_of
SELECT
{event}
FROM ff.event AS e
WHERE e.execution_id = :execution_id
    AND e.namespace = :namespace
    AND e.version > :after
ORDER BY e.version
LIMIT :limit

-- name: last_event_named
SELECT
{event}
FROM ff.event AS e
WHERE e.execution_id = :execution_id
    AND e.family = :family
    AND e.name = :name
ORDER BY e.version DESC
LIMIT 1

-- name: postponements_of
SELECT
{event}
FROM ff.event AS e
WHERE e.execution_id = :execution_id
    AND ((e.family = 'lease' AND e.name = 'delayed' AND e.reason IS NOT NULL) OR (e.family = 'operator' AND e.name = 'held'))
ORDER BY e.version DESC
LIMIT :limit
