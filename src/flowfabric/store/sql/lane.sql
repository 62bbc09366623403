-- Lanes that an operator has changed. A lane without a row is active.

-- name: set_lane
INSERT INTO ff.lane AS lane (namespace, name, state, changed_at, principal, reason)
VALUES (:namespace, :lane, :state, :now, :principal, :reason)
ON CONFLICT (namespace, name)
DO UPDATE SET
    state = excluded.state,
    changed_at = excluded.changed_at,
    principal = excluded.principal,
    reason = excluded.reason
WHERE lane.state <> excluded.state
RETURNING name

-- name: get_lane
SELECT l.name AS lane, l.state, l.changed_at, l.principal, l.reason
FROM ff.lane AS l
WHERE l.namespace = :namespace
    AND l.name = :lane

-- name: list_lanes
SELECT named.lane, COALESCE(l.state, 'active') AS state, l.changed_at, l.principal, l.reason
FROM (
    SELECT used.lane
    FROM (
        SELECT DISTINCT r.lane
        FROM ff.route AS r
        WHERE r.namespace = :namespace
            AND r.lane > :after
        ORDER BY r.lane
        LIMIT :limit
    ) AS used
    UNION
    SELECT changed.name
    FROM (
        SELECT c.name
        FROM ff.lane AS c
        WHERE c.namespace = :namespace
            AND c.name > :after
        ORDER BY c.name
        LIMIT :limit
    ) AS changed
) AS named
LEFT JOIN ff.lane AS l ON l.namespace = :namespace AND l.name = named.lane
ORDER BY named.lane
LIMIT :limit
