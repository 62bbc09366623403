-- History and outbox in one append-only table; what depends on the order of events lives with the backends.

-- fragment: event
e.namespace, e.family, e.name, e.at, e.lane, e.execution_id, e.version, e.kind, e.state, e.epoch, e.generation,
e.attempt_index, e.lease_id, e.worker, e.instance, e.ends_lease, e.tags, e.principal, e.reason, e.details, e.flow_id

-- fragment: event_columns
namespace, family, name, at, lane, execution_id, version, kind, state, epoch, generation, attempt_index, lease_id,
worker, instance, ends_lease, tags, principal, reason, details, flow_id

-- fragment: event_values
:namespace, :family, :name, :at, :lane, :execution_id, :version, :kind, :state, :epoch, :generation, :attempt_index,
:lease_id, :worker, :instance, :ends_lease, :tags, :principal, :reason, :details, :flow_id

-- name: history_of
SELECT
{event}
FROM ff.event AS e
WHERE e.execution_id = :execution_id
    AND e.namespace = :namespace
    AND e.version > :after
ORDER BY e.version
LIMIT :limit
