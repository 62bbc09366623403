-- The row with the identity of the store.

-- name: test_mark
SELECT
    s.is_test,
    COALESCE(
        (SELECT e.id FROM ff.execution AS e ORDER BY e.id LIMIT 1) IS NOT NULL
        OR (SELECT k.kid FROM ff.signing_key AS k ORDER BY k.kid LIMIT 1) IS NOT NULL
        OR (SELECT w.instance FROM ff.worker AS w ORDER BY w.namespace, w.instance LIMIT 1) IS NOT NULL,
        FALSE
    ) AS is_used
FROM ff.store AS s

-- name: mark_as_test
UPDATE ff.store
SET is_test = TRUE
WHERE NOT is_test
RETURNING id
