-- Invariants of a store. Each statement returns the ids of rows that violate one. They read whole tables.

-- name: check_versions
SELECT e.id AS id
FROM ff.execution AS e
WHERE e.version <> (SELECT COUNT(*) FROM ff.event AS v WHERE v.execution_id = e.id)
    OR e.version <> COALESCE((SELECT MAX(v.version) FROM ff.event AS v WHERE v.execution_id = e.id), 0)
ORDER BY e.id
LIMIT :limit;

-- name: check_events
SELECT DISTINCT v.execution_id AS id
FROM ff.event AS v
WHERE v.execution_id IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM ff.execution AS e WHERE e.id = v.execution_id)
    AND NOT EXISTS (SELECT 1 FROM ff.purged AS p WHERE p.execution_id = v.execution_id)
ORDER BY v.execution_id
LIMIT :limit;

-- name: check_leases
SELECT e.id AS id
FROM ff.execution AS e
WHERE (e.state = 'active' AND e.ownership IS NULL)
    OR (e.state <> 'active' AND e.ownership IS NOT NULL)
    OR (e.lease_id IS NULL AND COALESCE(e.ownership, '') = 'leased')
    OR (e.lease_id IS NOT NULL AND COALESCE(e.ownership, '') <> 'leased')
    OR (e.lease_id IS NOT NULL AND (e.lease_expires_at IS NULL OR e.lease_check_at IS NULL OR e.lease_instance IS NULL))
ORDER BY e.id
LIMIT :limit;

-- name: check_routes
SELECT e.id AS id
FROM ff.execution AS e
LEFT JOIN ff.route AS r ON r.id = e.route_id
WHERE e.ended_at IS NULL
    AND (r.id IS NULL OR r.namespace <> e.namespace OR r.lane <> e.lane OR r.kind <> e.kind)
ORDER BY e.id
LIMIT :limit;

-- name: check_results
SELECT e.id AS id
FROM ff.execution AS e
WHERE e.state = 'completed'
    AND NOT EXISTS (
        SELECT 1
        FROM ff.attempt AS a
        WHERE a.execution_id = e.id
            AND a.attempt_index = e.attempt_index
            AND a.outcome = 'ended_success'
    )
ORDER BY e.id
LIMIT :limit;

-- name: check_attempts
SELECT DISTINCT a.execution_id AS id
FROM ff.attempt AS a
WHERE NOT EXISTS (SELECT 1 FROM ff.execution AS e WHERE e.id = a.execution_id)
ORDER BY a.execution_id
LIMIT :limit;

-- name: check_steps
SELECT DISTINCT s.execution_id AS id
FROM ff.step AS s
WHERE NOT EXISTS (SELECT 1 FROM ff.execution AS e WHERE e.id = s.execution_id)
ORDER BY s.execution_id
LIMIT :limit;

-- name: check_suspensions
SELECT e.id AS id
FROM ff.execution AS e
WHERE e.state = 'suspended'
    AND NOT EXISTS (SELECT 1 FROM ff.suspension AS s WHERE s.execution_id = e.id AND s.closed_at IS NULL)
UNION
SELECT s.execution_id AS id
FROM ff.suspension AS s
WHERE s.closed_at IS NULL
    AND NOT EXISTS (SELECT 1 FROM ff.execution AS e WHERE e.id = s.execution_id AND e.state = 'suspended')
ORDER BY id
LIMIT :limit;

-- name: check_waitpoints
SELECT DISTINCT w.execution_id AS id
FROM ff.waitpoint AS w
WHERE w.closed_at IS NULL
    AND NOT EXISTS (SELECT 1 FROM ff.execution AS e WHERE e.id = w.execution_id AND e.ended_at IS NULL)
ORDER BY w.execution_id
LIMIT :limit;

-- name: check_signals
SELECT e.id AS id
FROM ff.execution AS e
WHERE e.signal_seq <> (SELECT COUNT(*) FROM ff.signal AS s WHERE s.execution_id = e.id)
ORDER BY e.id
LIMIT :limit;

-- name: check_edges
SELECT DISTINCT g.flow_id AS id
FROM ff.edge AS g
JOIN ff.flow AS f ON f.id = g.flow_id AND f.finished IS NULL
WHERE NOT EXISTS (SELECT 1 FROM ff.execution AS e WHERE e.id = g.upstream_id)
    OR NOT EXISTS (SELECT 1 FROM ff.execution AS e WHERE e.id = g.downstream_id)
    OR NOT EXISTS (SELECT 1 FROM ff.edge_group AS j WHERE j.downstream_id = g.downstream_id AND j.seq = g.seq)
ORDER BY g.flow_id
LIMIT :limit;

-- name: check_members
SELECT DISTINCT e.flow_id AS id
FROM ff.execution AS e
WHERE e.flow_id IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM ff.flow AS f WHERE f.id = e.flow_id)
ORDER BY e.flow_id
LIMIT :limit;
