-- Routes, a small table by which claims find the queues. Rows never change, and are removed only with a temporary
-- namespace. The id follows from the content, so a route that is created again has the same id. No process remembers
-- whether a route exists: the statement that stores an execution finds the route by its digest.

-- name: add_route
INSERT INTO ff.route (id, namespace, lane, kind, requires, digest)
VALUES (:id, :namespace, :lane, :kind, :requires, :digest)
ON CONFLICT DO NOTHING

-- name: route_requires
SELECT requires
FROM ff.route
WHERE id = :id
    AND namespace = :namespace
    AND lane = :lane
    AND kind = :kind

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
