-- Writes over many members, edges, groups and flows. The locks of their flows cover all of them.

-- fragment: released_items
WITH item (id, state, blocking_reason, ready_at, now) AS (
    VALUES :items
)

-- name: release_members
{released_items}
UPDATE ff.execution AS e
SET
    state = item.state,
    blocking_reason = item.blocking_reason,
    ready_at = item.ready_at,
    version = e.version + 1,
    changed_at = item.now
FROM item
WHERE e.id = item.id
RETURNING id, namespace, lane, state;
{released_items}
INSERT INTO ff.event (
    namespace, family, name, at, lane, execution_id, version, kind, state, epoch, generation, attempt_index,
    ends_lease, tags, flow_id
)
SELECT
    e.namespace, 'lifecycle', 'ready', item.now, e.lane, e.id, e.version, e.kind, e.state, e.epoch, e.generation,
    e.attempt_index, FALSE, NULLIF(e.tags, '{}'), e.flow_id
FROM item
CROSS JOIN ff.execution AS e ON e.id = item.id

-- fragment: ended_items
WITH item (id, state, cancelled_by, principal, reason, details, failure_message, failure_category, now) AS (
    VALUES :items
)

-- name: end_members
{ended_items}
UPDATE ff.execution AS e
SET
    state = item.state,
    blocking_reason = 'none',
    attempt_state = CASE WHEN e.started_at IS NULL THEN e.attempt_state ELSE 'attempt_terminal' END,
    ownership = NULL,
    epoch = e.epoch + 1,
    version = e.version + 1,
    changed_at = item.now,
    ended_at = item.now,
    purge_at = item.now + e.retention_policy_us,
    ready_at = NULL,
    hold_reason = NULL,
    attempt_timeout_at = NULL,
    attempt_timeout_left_us = NULL,
    cancelled_by = item.cancelled_by,
    cancel_reason = CASE WHEN item.state = 'cancelled' THEN item.reason END,
    failure_message = COALESCE(item.failure_message, e.failure_message),
    failure_category = COALESCE(item.failure_category, e.failure_category),
    former_lease_id = COALESCE(e.lease_id, e.former_lease_id),
    former_epoch = CASE WHEN e.lease_id IS NULL THEN e.former_epoch ELSE e.epoch END,
    former_worker = COALESCE(e.lease_worker, e.former_worker),
    former_instance = COALESCE(e.lease_instance, e.former_instance),
    former_end = CASE WHEN e.lease_id IS NULL THEN e.former_end ELSE 'cancel' END,
    former_digest = CASE WHEN e.lease_id IS NULL THEN e.former_digest END,
    former_until = CASE WHEN e.lease_id IS NULL THEN e.former_until END,
    resume_suspension_id = CASE WHEN e.lease_id IS NULL THEN e.resume_suspension_id END,
    resume_trigger = CASE WHEN e.lease_id IS NULL THEN e.resume_trigger END,
    lease_id = NULL,
    lease_worker = NULL,
    lease_instance = NULL,
    lease_ttl_us = NULL,
    lease_acquired_at = NULL,
    lease_expires_at = NULL,
    lease_check_at = NULL,
    lease_resumed = NULL
FROM item
WHERE e.id = item.id
RETURNING id, namespace, CASE WHEN former_epoch = epoch - 1 THEN former_instance END AS instance;
{ended_items}
INSERT INTO ff.attempt (
    execution_id, attempt_index, generation, origin, worker, instance, started_at, ended_at, outcome
)
SELECT
    e.id, e.attempt_index, e.generation, e.attempt_origin, e.former_worker, e.former_instance, e.attempt_started_at,
    item.now, 'ended_cancelled'
FROM item
CROSS JOIN ff.execution AS e ON e.id = item.id
WHERE e.attempt_started_at IS NOT NULL;
{ended_items}
INSERT INTO ff.event (
    namespace, family, name, at, lane, execution_id, version, kind, state, epoch, generation, attempt_index,
    lease_id, worker, instance, ends_lease, tags, principal, reason, details, flow_id
)
SELECT
    e.namespace, 'completion', e.state, item.now, e.lane, e.id, e.version, e.kind, e.state, e.epoch, e.generation,
    e.attempt_index,
    -- A lease that this script ended had the previous epoch. Every earlier loss has already increased the epoch.
    CASE WHEN e.former_epoch = e.epoch - 1 THEN e.former_lease_id END,
    CASE WHEN e.former_epoch = e.epoch - 1 THEN e.former_worker END,
    CASE WHEN e.former_epoch = e.epoch - 1 THEN e.former_instance END,
    COALESCE(e.former_epoch = e.epoch - 1, FALSE), NULLIF(e.tags, '{}'), item.principal, item.reason, item.details,
    e.flow_id
FROM item
CROSS JOIN ff.execution AS e ON e.id = item.id

-- name: put_edges
WITH item (upstream_id, downstream_id, seq, state, resolved_at) AS (
    VALUES :items
)
UPDATE ff.edge AS d
SET
    state = item.state,
    resolved_at = item.resolved_at
FROM item
WHERE d.upstream_id = item.upstream_id
    AND d.downstream_id = item.downstream_id
    AND d.seq = item.seq

-- name: add_edges
WITH item (upstream_id, downstream_id, seq, flow_id, kind, input, state, resolved_at, or_skip) AS (
    VALUES :items
)
INSERT INTO ff.edge (upstream_id, downstream_id, seq, flow_id, kind, input, state, resolved_at, or_skip)
SELECT
    item.upstream_id, item.downstream_id, item.seq, item.flow_id, item.kind, item.input, item.state, item.resolved_at,
    item.or_skip
FROM item
WHERE item.upstream_id IS NOT NULL

-- name: put_groups
WITH item (
    downstream_id, seq, flow_id, join_kind, k, siblings, state, draft, sweeping, n, satisfied, impossible
) AS (
    VALUES :items
)
INSERT INTO ff.edge_group AS g (
    downstream_id, seq, flow_id, join_kind, k, siblings, state, draft, sweeping, n, satisfied, impossible
)
SELECT
    item.downstream_id, item.seq, item.flow_id, item.join_kind, item.k, item.siblings, item.state, item.draft,
    item.sweeping, item.n, item.satisfied, item.impossible
FROM item
WHERE item.downstream_id IS NOT NULL
ON CONFLICT (downstream_id, seq) DO UPDATE
SET
    state = excluded.state,
    draft = excluded.draft,
    sweeping = excluded.sweeping,
    n = excluded.n,
    satisfied = excluded.satisfied,
    impossible = excluded.impossible

-- name: put_flows
WITH item (
    id, sealed, revision, open_members, ended_badly, changed_at, ended_at, finished, cancel_policy, cancel_reason,
    cancel_source, cancel_principal, cancelled_at, sweep_at, was_replayed
) AS (
    VALUES :items
)
UPDATE ff.flow AS f
SET
    sealed = item.sealed,
    revision = item.revision,
    open_members = item.open_members,
    ended_badly = item.ended_badly,
    changed_at = item.changed_at,
    ended_at = item.ended_at,
    finished = item.finished,
    cancel_policy = item.cancel_policy,
    cancel_reason = item.cancel_reason,
    cancel_source = item.cancel_source,
    cancel_principal = item.cancel_principal,
    cancelled_at = item.cancelled_at,
    sweep_at = item.sweep_at,
    was_replayed = item.was_replayed,
    purge_at = CASE WHEN item.finished IS NOT NULL THEN MAX(
        COALESCE((SELECT MAX(e.purge_at) FROM ff.execution AS e WHERE e.flow_id = item.id), item.ended_at),
        COALESCE((SELECT e.purge_at FROM ff.execution AS e WHERE e.id = item.id), item.ended_at)
    ) END
FROM item
WHERE f.id = item.id

-- name: add_flows
WITH item (
    id, namespace, name, implicit, tags, digest, sealed, revision, open_members, ended_badly, created_at, changed_at
) AS (
    VALUES :items
)
INSERT INTO ff.flow (
    id, namespace, name, implicit, tags, digest, sealed, revision, open_members, ended_badly, created_at, changed_at
)
SELECT
    item.id, item.namespace, item.name, item.implicit, item.tags, item.digest, item.sealed, item.revision,
    item.open_members, item.ended_badly, item.created_at, item.changed_at
FROM item
WHERE item.id IS NOT NULL
ON CONFLICT (id) DO NOTHING
RETURNING id

-- name: change_groups
WITH item (downstream_id, seq, state, draft, sweeping, satisfied, impossible) AS (
    VALUES :items
)
UPDATE ff.edge_group AS g
SET
    state = item.state,
    draft = item.draft,
    sweeping = item.sweeping,
    satisfied = item.satisfied,
    impossible = item.impossible
FROM item
WHERE g.downstream_id = item.downstream_id
    AND g.seq = item.seq

-- name: count_ends
WITH item (id, sealed, open_members, ended_badly, finished, sweep_at, now) AS (
    VALUES :items
)
UPDATE ff.flow AS f
SET
    sealed = item.sealed,
    open_members = item.open_members,
    ended_badly = item.ended_badly,
    changed_at = item.now,
    ended_at = CASE WHEN item.finished IS NOT NULL THEN item.now END,
    finished = item.finished,
    sweep_at = item.sweep_at,
    purge_at = CASE WHEN item.finished IS NOT NULL THEN MAX(
        COALESCE((SELECT MAX(e.purge_at) FROM ff.execution AS e WHERE e.flow_id = item.id), item.now),
        COALESCE((SELECT e.purge_at FROM ff.execution AS e WHERE e.id = item.id), item.now)
    ) END
FROM item
WHERE f.id = item.id
