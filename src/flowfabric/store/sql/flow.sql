-- Flows, edges and edge groups. The lock of the flow row covers all of them.

-- fragment: flow
f.id, f.namespace, f.name, f.implicit, f.tags, f.digest, f.sealed, f.revision, f.open_members, f.ended_badly,
f.created_at, f.changed_at, f.ended_at, f.finished, f.cancel_policy, f.cancel_reason, f.cancel_source,
f.cancel_principal, f.cancelled_at, f.sweep_at, f.purge_at, f.was_replayed

-- fragment: edge
d.flow_id, d.upstream_id, d.downstream_id, d.seq, d.input, d.state, d.resolved_at,
CASE WHEN d.or_skip THEN 'on_failure_or_skip' ELSE d.kind END AS kind

-- fragment: edge_group
g.downstream_id, g.seq, g.flow_id, g.join_kind, g.k, g.siblings, g.state AS group_state, g.draft, g.sweeping, g.n,
g.satisfied, g.impossible

-- fragment: edge_group_beside
g.join_kind, g.k, g.siblings, g.state AS group_state, g.draft, g.sweeping, g.n, g.satisfied, g.impossible

-- fragment: member
m.id AS member_id, m.flow_id AS member_flow_id, m.state AS member_state, m.blocking_reason, m.ready_at, m.parent_id,
m.has_children, m.started_at, m.member_name, m.failure_category AS member_failure_category

-- name: get_flows
SELECT
{flow}
FROM ff.flow AS f
WHERE f.id IN :ids
    AND f.namespace = COALESCE(:namespace, f.namespace)

-- name: lock_flows
SELECT
{flow}
FROM ff.flow AS f
WHERE f.id IN :ids
    AND f.namespace = COALESCE(:namespace, f.namespace)
ORDER BY f.id
FOR NO KEY UPDATE

-- name: lock_free_flows
SELECT
{flow}
FROM ff.flow AS f
WHERE f.id IN :ids
ORDER BY f.id
FOR NO KEY UPDATE SKIP LOCKED

-- name: lock_flows_of
SELECT
    e.id AS execution_id,
{flow}
FROM ff.execution AS e
JOIN ff.flow AS f ON f.id = COALESCE(e.flow_id, e.id)
WHERE e.id IN :ids
    AND (e.flow_id IS NOT NULL OR e.has_children)
ORDER BY f.id
FOR NO KEY UPDATE OF f

-- name: lock_free_flows_of
SELECT
    e.id AS execution_id,
{flow}
FROM ff.execution AS e
JOIN ff.flow AS f ON f.id = COALESCE(e.flow_id, e.id)
WHERE e.id IN :ids
    AND (e.flow_id IS NOT NULL OR e.has_children)
ORDER BY f.id
FOR NO KEY UPDATE OF f SKIP LOCKED

-- name: edges_from
SELECT
{edge},
{edge_group_beside},
{member}
FROM ff.edge AS d
JOIN ff.edge_group AS g
    ON g.downstream_id = d.downstream_id
    AND g.seq = d.seq
JOIN ff.execution AS m ON m.id = d.downstream_id
WHERE d.upstream_id IN :ids
    AND d.state = 'open'

-- name: edges_within
SELECT
{edge},
{edge_group_beside},
{member}
FROM ff.edge AS d
JOIN ff.edge_group AS g
    ON g.downstream_id = d.downstream_id
    AND g.seq = d.seq
JOIN ff.execution AS m ON m.id = d.downstream_id
WHERE d.flow_id IN :ids
    AND d.state = 'open'

-- name: all_edges_from
SELECT
{edge},
{edge_group_beside},
{member}
FROM ff.edge AS d
JOIN ff.edge_group AS g
    ON g.downstream_id = d.downstream_id
    AND g.seq = d.seq
JOIN ff.execution AS m ON m.id = d.downstream_id
WHERE d.upstream_id IN :ids
    AND d.seq = 0

-- name: all_edges_within
SELECT
{edge},
{edge_group_beside},
{member}
FROM ff.edge AS d
JOIN ff.edge_group AS g
    ON g.downstream_id = d.downstream_id
    AND g.seq = d.seq
JOIN ff.execution AS m ON m.id = d.downstream_id
WHERE d.flow_id = :flow_id
    AND d.seq = 0

-- name: open_edges_into
SELECT
{edge},
{member}
FROM ff.edge AS d
JOIN ff.execution AS m ON m.id = d.upstream_id
WHERE d.downstream_id IN :ids
    AND d.state = 'open'

-- fragment: is_given_up
m.state = 'cancelled' AND m.cancelled_by = 'flow_sibling' AND m.cancel_reason = 'sibling_group_impossible'

-- name: given_up_for
SELECT
{edge},
{member}
FROM ff.edge AS d
JOIN ff.execution AS m ON m.id = d.upstream_id
WHERE d.downstream_id IN :ids
    AND d.seq = 0
    AND d.state = 'impossible'
    AND {is_given_up}
ORDER BY d.downstream_id, d.upstream_id

-- name: edges_into
SELECT
{edge},
{member}
FROM ff.edge AS d
JOIN ff.execution AS m ON m.id = d.upstream_id
WHERE d.downstream_id IN :ids
    AND d.seq = :seq
ORDER BY d.downstream_id, d.upstream_id

-- name: edges_out_of
SELECT
{edge}
FROM ff.edge AS d
WHERE d.upstream_id IN :ids

-- name: edge_between
SELECT
{edge}
FROM ff.edge AS d
WHERE d.upstream_id = :upstream_id
    AND d.downstream_id = :downstream_id
    AND d.seq = 0

-- name: reaches
WITH RECURSIVE reached (id) AS (
    SELECT m.id
    FROM ff.execution AS m
    WHERE m.id = :start
    UNION
    SELECT d.downstream_id
    FROM reached
    JOIN ff.edge AS d ON d.upstream_id = reached.id
    WHERE d.flow_id = :flow_id
)
SELECT 1 AS found
FROM reached
WHERE reached.id = :end

-- name: list_edges
SELECT
{edge}
FROM ff.edge AS d
WHERE d.flow_id = :flow_id
ORDER BY d.upstream_id, d.downstream_id, d.seq
LIMIT :limit

-- name: list_groups
SELECT
{edge_group}
FROM ff.edge_group AS g
WHERE g.flow_id = :flow_id
ORDER BY g.downstream_id, g.seq
LIMIT :limit

-- name: groups_of
SELECT
{edge_group}
FROM ff.edge_group AS g
WHERE g.downstream_id IN :ids

-- name: get_members
SELECT
{member}
FROM ff.execution AS m
WHERE m.id IN :ids

-- name: lock_members
SELECT m.id
FROM ff.execution AS m
WHERE m.id IN :ids
ORDER BY m.id
FOR NO KEY UPDATE

-- name: members_page
SELECT
{execution}
FROM ff.execution AS e
WHERE e.flow_id = :flow_id
    AND e.id > :after
ORDER BY e.id
LIMIT :limit

-- name: count_members
SELECT e.flow_id, e.state, COUNT(*) AS count
FROM ff.execution AS e
WHERE e.flow_id IN :ids
GROUP BY e.flow_id, e.state

-- A replay of its parent started after this child was submitted, so that the parent submits the child again.
-- fragment: is_submitted_again
EXISTS (
    SELECT 1
    FROM ff.attempt AS a
    WHERE a.execution_id = e.parent_id
        AND a.origin = 'replayed'
        AND a.started_at > e.created_at
)

-- name: bad_ends
SELECT
    e.id, e.state, e.cancelled_by, e.parent_id,
    {is_submitted_again} AND EXISTS (
        SELECT 1
        FROM ff.execution AS p
        WHERE p.id = e.parent_id
            AND p.state = 'completed'
    ) AS submitted_again,
    EXISTS (
        SELECT 1
        FROM ff.edge AS d
        LEFT JOIN ff.edge_group AS g
            ON g.downstream_id = d.downstream_id
            AND g.seq = d.seq
        WHERE d.upstream_id = e.id
            -- An earlier generation of its upstream may have satisfied an edge, which took up how that one ended.
            AND (
                d.state = 'satisfied' AND (d.kind = 'on_completion' OR (d.kind = 'on_failure' AND e.state <> 'cancelled'))
                OR g.state = 'fired' AND g.join_kind <> 'all_of'
                OR d.seq > 0
            )
    ) AS taken_up,
    EXISTS (
        SELECT 1
        FROM ff.waitpoint AS w
        WHERE w.execution_id = e.parent_id
            AND w.child_id = e.id
    ) AS awaited
FROM ff.execution AS e
WHERE e.flow_id = :flow_id
    AND e.state IN :states

-- A child whose failure its parent received is left to its parent. So is a child whose parent has been replayed since,
-- still runs or is replayed too, because the next generation of the parent submits the child again.
-- name: failed_members
SELECT e.id
FROM ff.execution AS e
WHERE e.flow_id = :flow_id
    AND e.state IN :states
    AND e.id > :after
    AND e.ended_at <= :ended_until
    AND NOT EXISTS (
        SELECT 1
        FROM ff.edge AS d
        WHERE d.upstream_id = e.id
            AND d.seq > 0
    )
    AND NOT EXISTS (
        SELECT 1
        FROM ff.waitpoint AS w
        WHERE w.execution_id = e.parent_id
            AND w.child_id = e.id
    )
    AND NOT {is_submitted_again}
    AND NOT EXISTS (
        SELECT 1
        FROM ff.execution AS p
        WHERE p.id = e.parent_id
            AND p.state NOT IN :settled_states
            AND (p.flow_id IS NOT NULL OR p.replay_count > 0 AND p.state NOT IN :states)
    )
ORDER BY e.id
LIMIT :limit

-- Members that are still skipped although a replay repaired the failure, so that their groups could fire, if need be
-- with the members that were cancelled because of them.
-- name: left_behind
SELECT
{edge_group}
FROM ff.execution AS e
JOIN ff.edge_group AS g
    ON g.downstream_id = e.id
    AND g.seq = 0
WHERE e.flow_id = :flow_id
    AND e.state = 'skipped'
    AND g.state = 'impossible'
    AND g.n - g.impossible + (
        SELECT COUNT(*)
        FROM ff.edge AS d
        JOIN ff.execution AS m ON m.id = d.upstream_id
        WHERE d.downstream_id = e.id
            AND d.seq = 0
            AND d.state = 'impossible'
            AND {is_given_up}
    ) >= CASE g.join_kind WHEN 'all_of' THEN g.n WHEN 'any_of' THEN 1 ELSE g.k END
    AND EXISTS (
        SELECT 1
        FROM ff.edge AS d
        JOIN ff.execution AS u ON u.id = d.upstream_id
        WHERE d.downstream_id = e.id
            AND d.seq = 0
            AND u.generation > 0
    )
ORDER BY e.id
LIMIT :limit

-- name: due_members
SELECT e.id
FROM ff.execution AS e
WHERE e.flow_id = :flow_id
    AND e.state IN :states
    AND (NOT :only_unstarted OR e.started_at IS NULL)
ORDER BY e.id
LIMIT :limit

-- name: sweeping_groups
SELECT
{edge_group}
FROM ff.edge_group AS g
WHERE g.flow_id IN :ids
    AND g.sweeping

-- name: children_of
SELECT
{member}
FROM ff.execution AS m
WHERE m.parent_id IN :ids
ORDER BY m.id

-- name: request_cancel
UPDATE ff.execution
SET
    cancel_due_at = :cancel_due_at,
    cancel_request = :cancel_request
WHERE id IN :ids

-- name: list_flows
SELECT
{flow}
FROM ff.flow AS f
WHERE f.namespace = :namespace
    AND f.id < :before
ORDER BY f.id DESC
LIMIT :limit

-- name: list_live_flows
SELECT
{flow}
FROM ff.flow AS f
WHERE f.namespace = :namespace
    AND f.finished IS NULL
    AND f.id < :before
ORDER BY f.id DESC
LIMIT :limit

-- name: set_flow_tags
UPDATE ff.flow
SET
    tags = :tags,
    changed_at = :now
WHERE id = :id
RETURNING id

-- name: delete_edges
DELETE FROM ff.edge
WHERE flow_id IN :ids

-- name: delete_groups
DELETE FROM ff.edge_group
WHERE flow_id IN :ids

-- name: delete_flows
DELETE FROM ff.flow
WHERE id IN :ids
