-- Writes over many members, edges, groups and flows. The locks of their flows cover all of them.

-- Members that may start now cause a notification.
-- fragment: ready_events
INSERT INTO ff.event (
    transaction_id, namespace, family, name, at, lane, execution_id, version, kind, state, epoch, generation,
    attempt_index, ends_lease, tags, flow_id
)
SELECT
    released.event_xid, released.namespace, 'lifecycle', 'ready', :now::TIMESTAMPTZ, released.lane, released.id,
    released.version, released.kind, released.state, released.epoch, released.generation, released.attempt_index, FALSE,
    NULLIF(released.tags, '{}'::JSONB), released.flow_id
FROM released

-- name: release_members
WITH item AS MATERIALIZED (
    SELECT i.id, i.state, i.blocking_reason, i.ready_at
    FROM unnest(:id::UUID[], :state::TEXT[], :blocking_reason::TEXT[], :ready_at::TIMESTAMPTZ[])
        AS i (id, state, blocking_reason, ready_at)
),
released AS (
    UPDATE ff.execution AS e
    SET
        state = item.state,
        blocking_reason = item.blocking_reason,
        ready_at = item.ready_at,
        version = e.version + 1,
        changed_at = :now::TIMESTAMPTZ{order_of_events}
    FROM item
    WHERE e.id = item.id
    RETURNING
        e.id, e.namespace, e.lane, e.kind, e.tags, e.state, e.version, e.epoch, e.generation, e.attempt_index,
        e.flow_id, e.event_xid
)
{ready_events}
RETURNING namespace, lane, state

-- Completes the consequences of members that completed, in flows where these only start members that wait for no
-- other upstream. There is no wait, join, bad end or cancellation in them. Returns the ends that need no more work.
-- name: pass_on
WITH ended AS MATERIALIZED (
    SELECT
        e.id, e.flow_id,
        (
            SELECT d.downstream_id
            FROM ff.edge AS d
            JOIN ff.edge_group AS g
                ON g.downstream_id = d.downstream_id
                AND g.seq = d.seq
            JOIN ff.execution AS m ON m.id = d.downstream_id
            WHERE d.upstream_id = e.id
                AND d.state = 'open'
                AND (
                    d.kind = 'on_failure' OR g.seq <> 0 OR g.n <> 1 OR g.draft OR g.state <> 'open'
                    OR m.blocking_reason <> 'waiting_for_children' OR m.ready_at > :now::TIMESTAMPTZ
                )
            -- EXISTS might be planned as a scan of all open edges.
            ORDER BY d.downstream_id
            LIMIT 1
        ) AS entangled_id
    FROM unnest(:ids::UUID[]) AS item (id)
    JOIN ff.execution AS e ON e.id = item.id
),
passing AS MATERIALIZED (
    SELECT f.id, ends.number, f.sealed AND f.open_members = ends.number AS is_last
    FROM (
        SELECT ended.flow_id, COUNT(*) AS number
        FROM ended
        GROUP BY ended.flow_id
        HAVING COUNT(ended.entangled_id) = 0
    ) AS ends
    JOIN ff.flow AS f ON f.id = ends.flow_id
    WHERE f.ended_at IS NULL
        AND f.ended_badly = 0
        AND f.cancel_policy IS NULL
        AND NOT f.was_replayed
),
resolved AS (
    UPDATE ff.edge AS d
    SET
        state = 'satisfied',
        resolved_at = :now::TIMESTAMPTZ
    FROM ended
    JOIN passing ON passing.id = ended.flow_id
    WHERE d.upstream_id = ended.id
        AND d.state = 'open'
    RETURNING d.downstream_id, d.seq
),
fired AS (
    UPDATE ff.edge_group AS g
    SET
        state = 'fired',
        satisfied = g.n
    FROM resolved
    WHERE g.downstream_id = resolved.downstream_id
        AND g.seq = resolved.seq
),
-- Locks rows in id order.
blocked AS MATERIALIZED (
    SELECT m.id
    FROM ff.execution AS m
    WHERE m.id = ANY(ARRAY(SELECT resolved.downstream_id FROM resolved))
    ORDER BY m.id
    FOR NO KEY UPDATE
),
released AS (
    UPDATE ff.execution AS e
    SET
        state = 'waiting',
        blocking_reason = 'waiting_for_worker',
        ready_at = NULL,
        version = e.version + 1,
        changed_at = :now::TIMESTAMPTZ{order_of_events}
    FROM blocked
    WHERE e.id = blocked.id
    RETURNING
        e.id, e.namespace, e.lane, e.kind, e.tags, e.state, e.version, e.epoch, e.generation, e.attempt_index,
        e.flow_id, e.event_xid
),
ready AS (
    {ready_events}
),
counted AS (
    UPDATE ff.flow AS f
    SET
        open_members = f.open_members - passing.number,
        changed_at = :now::TIMESTAMPTZ,
        ended_at = CASE WHEN passing.is_last THEN :now::TIMESTAMPTZ END,
        finished = CASE WHEN passing.is_last THEN 'completed' END,
        purge_at = CASE WHEN passing.is_last THEN GREATEST(
            (SELECT MAX(e.purge_at) FROM ff.execution AS e WHERE e.flow_id = passing.id),
            :now::TIMESTAMPTZ
        ) END
    FROM passing
    WHERE f.id = passing.id
    RETURNING f.id, f.namespace, f.name, f.tags, f.finished
),
finished AS (
    INSERT INTO ff.event (namespace, family, name, at, lane, ends_lease, tags, details, flow_id)
    SELECT
        counted.namespace, 'flow', 'finished', :now::TIMESTAMPTZ, '', FALSE, NULLIF(counted.tags, '{}'::JSONB),
        jsonb_build_object('name', counted.name, 'state', counted.finished), counted.id
    FROM counted
    WHERE counted.finished IS NOT NULL
)
SELECT ended.id, CASE WHEN passing.is_last THEN passing.id END AS finished_id, NULL AS lane
FROM ended
JOIN passing ON passing.id = ended.flow_id
UNION ALL
SELECT NULL, NULL, lanes.name
FROM (
    SELECT DISTINCT released.lane AS name
    FROM released
) AS lanes

-- name: end_members
WITH item AS MATERIALIZED (
    SELECT
        i.id, i.state, i.cancelled_by, i.principal, i.reason, i.details, i.failure_message, i.failure_category
    FROM unnest(
        :id::UUID[], :state::TEXT[], :cancelled_by::TEXT[], :principal::TEXT[], :reason::TEXT[], :details::TEXT[],
        :failure_message::TEXT[], :failure_category::TEXT[]
    ) AS i (id, state, cancelled_by, principal, reason, details, failure_message, failure_category)
),
ended AS (
    UPDATE ff.execution AS e
    SET
        state = item.state,
        blocking_reason = 'none',
        attempt_state = CASE WHEN e.started_at IS NULL THEN e.attempt_state ELSE 'attempt_terminal' END,
        ownership = NULL,
        epoch = e.epoch + 1,
        version = e.version + 1,
        changed_at = :now::TIMESTAMPTZ,
        ended_at = :now::TIMESTAMPTZ,
        purge_at = :now::TIMESTAMPTZ + e.retention_policy_us * INTERVAL '1 microsecond',
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
        lease_resumed = NULL{order_of_events}
    FROM item
    WHERE e.id = item.id
    RETURNING
        e.id, e.namespace, e.lane, e.kind, e.tags, e.state, e.version, e.epoch, e.generation, e.attempt_index,
        e.attempt_origin, e.attempt_started_at, e.former_lease_id, e.former_worker, e.former_instance,
        -- A lease that this statement ended had the previous epoch. Every earlier loss has already increased the epoch.
        COALESCE(e.former_epoch = e.epoch - 1, FALSE) AS ends_lease,
        item.principal, item.reason, item.details, e.flow_id, e.event_xid
),
kept AS (
    INSERT INTO ff.attempt (
        execution_id, attempt_index, generation, origin, worker, instance, started_at, ended_at, outcome
    )
    SELECT
        ended.id, ended.attempt_index, ended.generation, ended.attempt_origin, ended.former_worker,
        ended.former_instance, ended.attempt_started_at, :now::TIMESTAMPTZ, 'ended_cancelled'
    FROM ended
    WHERE ended.attempt_started_at IS NOT NULL
)
INSERT INTO ff.event (
    transaction_id, namespace, family, name, at, lane, execution_id, version, kind, state, epoch, generation,
    attempt_index, lease_id, worker, instance, ends_lease, tags, principal, reason, details, flow_id
)
SELECT
    ended.event_xid, ended.namespace, 'completion', ended.state, :now::TIMESTAMPTZ, ended.lane, ended.id, ended.version,
    ended.kind, ended.state, ended.epoch, ended.generation, ended.attempt_index,
    CASE WHEN ended.ends_lease THEN ended.former_lease_id END, CASE WHEN ended.ends_lease THEN ended.former_worker END,
    CASE WHEN ended.ends_lease THEN ended.former_instance END, ended.ends_lease,
    NULLIF(ended.tags, '{}'::JSONB), ended.principal, ended.reason, ended.details::JSONB, ended.flow_id
FROM ended
RETURNING namespace, execution_id AS id, instance

-- name: put_edges
UPDATE ff.edge AS d
SET
    state = item.state,
    resolved_at = item.resolved_at
FROM unnest(:upstream_id::UUID[], :downstream_id::UUID[], :seq::INTEGER[], :state::TEXT[], :resolved_at::TIMESTAMPTZ[])
    AS item (upstream_id, downstream_id, seq, state, resolved_at)
WHERE d.upstream_id = item.upstream_id
    AND d.downstream_id = item.downstream_id
    AND d.seq = item.seq

-- name: add_edges
INSERT INTO ff.edge (upstream_id, downstream_id, seq, flow_id, kind, input, state, resolved_at, or_skip)
SELECT
    item.upstream_id, item.downstream_id, item.seq, item.flow_id, item.kind, item.input, item.state, item.resolved_at,
    item.or_skip
FROM unnest(
    :upstream_id::UUID[], :downstream_id::UUID[], :seq::INTEGER[], :flow_id::UUID[], :kind::TEXT[], :input::TEXT[],
    :state::TEXT[], :resolved_at::TIMESTAMPTZ[], :or_skip::BOOLEAN[]
) AS item (upstream_id, downstream_id, seq, flow_id, kind, input, state, resolved_at, or_skip)

-- name: put_groups
INSERT INTO ff.edge_group AS g (
    downstream_id, seq, flow_id, join_kind, k, siblings, state, draft, sweeping, n, satisfied, impossible
)
SELECT
    item.downstream_id, item.seq, item.flow_id, item.join_kind, item.k, item.siblings, item.state, item.draft,
    item.sweeping, item.n, item.satisfied, item.impossible
FROM unnest(
    :downstream_id::UUID[], :seq::INTEGER[], :flow_id::UUID[], :join_kind::TEXT[], :k::INTEGER[], :siblings::TEXT[],
    :state::TEXT[], :draft::BOOLEAN[], :sweeping::BOOLEAN[], :n::INTEGER[], :satisfied::INTEGER[],
    :impossible::INTEGER[]
) AS item (downstream_id, seq, flow_id, join_kind, k, siblings, state, draft, sweeping, n, satisfied, impossible)
ON CONFLICT (downstream_id, seq) DO UPDATE
SET
    state = excluded.state,
    draft = excluded.draft,
    sweeping = excluded.sweeping,
    n = excluded.n,
    satisfied = excluded.satisfied,
    impossible = excluded.impossible

-- name: put_flows
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
    purge_at = CASE WHEN item.finished IS NOT NULL THEN GREATEST(
        (SELECT MAX(e.purge_at) FROM ff.execution AS e WHERE e.flow_id = item.id),
        (SELECT e.purge_at FROM ff.execution AS e WHERE e.id = item.id),
        item.ended_at
    ) END
FROM unnest(
    :id::UUID[], :sealed::BOOLEAN[], :revision::BIGINT[], :open_members::INTEGER[], :ended_badly::INTEGER[],
    :changed_at::TIMESTAMPTZ[], :ended_at::TIMESTAMPTZ[], :finished::TEXT[], :cancel_policy::TEXT[],
    :cancel_reason::TEXT[], :cancel_source::TEXT[], :cancel_principal::TEXT[], :cancelled_at::TIMESTAMPTZ[],
    :sweep_at::TIMESTAMPTZ[], :was_replayed::BOOLEAN[]
) AS item (
    id, sealed, revision, open_members, ended_badly, changed_at, ended_at, finished, cancel_policy, cancel_reason,
    cancel_source, cancel_principal, cancelled_at, sweep_at, was_replayed
)
WHERE f.id = item.id

-- name: add_flows
INSERT INTO ff.flow (
    id, namespace, name, implicit, tags, digest, sealed, revision, open_members, ended_badly, created_at, changed_at
)
SELECT
    item.id, item.namespace, item.name, item.implicit, item.tags::JSONB, item.digest, item.sealed, item.revision,
    item.open_members, item.ended_badly, item.created_at, item.changed_at
FROM unnest(
    :id::UUID[], :namespace::TEXT[], :name::TEXT[], :implicit::BOOLEAN[], :tags::TEXT[], :digest::TEXT[],
    :sealed::BOOLEAN[], :revision::BIGINT[], :open_members::INTEGER[], :ended_badly::INTEGER[],
    :created_at::TIMESTAMPTZ[], :changed_at::TIMESTAMPTZ[]
) AS item (
    id, namespace, name, implicit, tags, digest, sealed, revision, open_members, ended_badly, created_at, changed_at
)
ORDER BY item.id
ON CONFLICT (id) DO NOTHING
RETURNING id

-- name: change_groups
UPDATE ff.edge_group AS g
SET
    state = item.state,
    draft = item.draft,
    sweeping = item.sweeping,
    satisfied = item.satisfied,
    impossible = item.impossible
FROM unnest(
    :downstream_id::UUID[], :seq::INTEGER[], :state::TEXT[], :draft::BOOLEAN[], :sweeping::BOOLEAN[],
    :satisfied::INTEGER[], :impossible::INTEGER[]
) AS item (downstream_id, seq, state, draft, sweeping, satisfied, impossible)
WHERE g.downstream_id = item.downstream_id
    AND g.seq = item.seq

-- name: count_ends
UPDATE ff.flow AS f
SET
    sealed = item.sealed,
    open_members = item.open_members,
    ended_badly = item.ended_badly,
    changed_at = :now::TIMESTAMPTZ,
    ended_at = CASE WHEN item.finished IS NOT NULL THEN :now::TIMESTAMPTZ END,
    finished = item.finished,
    sweep_at = item.sweep_at,
    purge_at = CASE WHEN item.finished IS NOT NULL THEN GREATEST(
        (SELECT MAX(e.purge_at) FROM ff.execution AS e WHERE e.flow_id = item.id),
        (SELECT e.purge_at FROM ff.execution AS e WHERE e.id = item.id),
        :now::TIMESTAMPTZ
    ) END
FROM unnest(
    :id::UUID[], :sealed::BOOLEAN[], :open_members::INTEGER[], :ended_badly::INTEGER[], :finished::TEXT[],
    :sweep_at::TIMESTAMPTZ[]
) AS item (id, sealed, open_members, ended_badly, finished, sweep_at)
WHERE f.id = item.id
