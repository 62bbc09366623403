-- Lanes that an operator has changed. A lane without a row is active.

-- name: set_lane
INSERT INTO ff.lane AS lane (namespace, name, state, changed_at)
VALUES (:namespace, :lane, :state, :now)
ON CONFLICT (namespace, name)
DO UPDATE SET
    state = excluded.state,
    changed_at = excluded.changed_at
WHERE lane.state <> excluded.state
RETURNING name

-- name: lane_state
SELECT state
FROM ff.lane
WHERE namespace = :namespace
    AND name = :lane

-- name: list_lanes
SELECT r.lane, COALESCE(l.state, 'active') AS state
FROM (
    SELECT lane
    FROM ff.route
    WHERE namespace = :namespace
    UNION
    SELECT name
    FROM ff.lane
    WHERE namespace = :namespace
) AS r
LEFT JOIN ff.lane AS l ON l.namespace = :namespace AND l.name = r.lane
ORDER BY r.lane
