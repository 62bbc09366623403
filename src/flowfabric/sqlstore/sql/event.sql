-- History and outbox in one append-only table.

-- name: append_event
INSERT INTO ff.event (
    namespace, family, name, at, lane, execution_id, version, kind, state, epoch, generation, attempt_index,
    lease_id, worker, instance, ends_lease, tags, principal, reason, details, flow_id
)
VALUES (
    :namespace, :family, :name, :at, :lane, :execution_id, :version, :kind, :state, :epoch, :generation, :attempt_index,
    :lease_id, :worker, :instance, :ends_lease, :tags, :principal, :reason, :details, :flow_id
)

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
