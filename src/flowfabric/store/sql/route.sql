-- Routes, a small table by which claims find the queues. Rows never change. They are removed only with a temporary
-- namespace, because processes cache their ids.

-- name: add_route
INSERT INTO ff.route (namespace, lane, kind, requires, digest)
VALUES (:namespace, :lane, :kind, :requires, :digest)
ON CONFLICT (digest) DO NOTHING

-- name: route_id
SELECT id
FROM ff.route
WHERE digest = :digest

-- name: route_requires
SELECT requires
FROM ff.route
WHERE id = :id

-- name: backlog
SELECT
    r.lane,
    r.kind,
    r.requires,
    (
        SELECT COUNT(*)
        FROM (
            SELECT e.id
            FROM ff.execution AS e
            WHERE e.route_id = r.id
                AND e.state = 'waiting'
            ORDER BY e.priority DESC
            LIMIT :limit
        ) AS waiting
    ) AS waiting
FROM ff.route AS r
WHERE r.namespace = :namespace
ORDER BY r.lane, r.kind, r.id

-- name: forget_routes
DELETE FROM ff.route
WHERE namespace = :namespace
