-- Routes: the small table that the queue leads with. Rows are never changed or removed.

-- name: add_route
INSERT INTO ff.route (namespace, lane, kind, requires)
VALUES (:namespace, :lane, :kind, :requires)
ON CONFLICT (namespace, lane, kind, requires) DO NOTHING

-- name: route_id
SELECT id
FROM ff.route
WHERE namespace = :namespace
    AND lane = :lane
    AND kind = :kind
    AND requires = :requires

-- name: route_requires
SELECT requires
FROM ff.route
WHERE id = :id
