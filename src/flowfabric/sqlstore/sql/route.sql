-- Routes: the small table that the queue leads with. Rows are never changed or removed.

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
