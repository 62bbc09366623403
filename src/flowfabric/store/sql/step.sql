-- The journal of an execution. A replay strikes out steps, which stay in the table but are no longer used. A new step
-- takes the next number of its execution. The row of the execution is locked, but not written.

-- name: record_step
INSERT INTO ff.step AS step (
    execution_id, seq, name, status, payload, encoding, digest, attempt_index, generation, recorded_at
)
VALUES (
    :execution_id,
    1 + COALESCE((SELECT MAX(s.seq) FROM ff.step AS s WHERE s.execution_id = :execution_id), 0),
    :name, :status, :payload, :encoding, :digest, :attempt_index, :generation, :recorded_at
)
ON CONFLICT (execution_id, name) WHERE struck_by IS NULL
DO UPDATE SET
    status = excluded.status,
    payload = excluded.payload,
    encoding = excluded.encoding,
    digest = excluded.digest,
    attempt_index = CASE step.status WHEN 'open' THEN excluded.attempt_index ELSE step.attempt_index END,
    recorded_at = CASE step.status WHEN 'open' THEN excluded.recorded_at ELSE step.recorded_at END
WHERE step.status = 'open' OR step.digest = excluded.digest
RETURNING execution_id, name, seq

-- name: count_steps
SELECT COUNT(*) AS count, COUNT(CASE WHEN status <> 'open' THEN 1 END) AS ended
FROM ff.step
WHERE execution_id = :execution_id
    AND struck_by IS NULL

-- name: last_step_numbers
SELECT e.id, COALESCE((SELECT MAX(s.seq) FROM ff.step AS s WHERE s.execution_id = e.id), 0) AS seq
FROM ff.execution AS e
WHERE e.id IN :ids

-- name: steps_of
SELECT seq, name, status, payload, encoding, attempt_index, generation, recorded_at
FROM ff.step
WHERE execution_id = :execution_id
    AND struck_by IS NULL
    AND seq > :after
ORDER BY seq
LIMIT :limit

-- name: open_steps
SELECT seq, name, status, payload, encoding, attempt_index, generation, recorded_at
FROM ff.step
WHERE execution_id = :execution_id
    AND struck_by IS NULL
    AND status = 'open'
ORDER BY seq
LIMIT :limit

-- name: step_named
SELECT seq, name, status, payload, encoding, attempt_index, generation, recorded_at
FROM ff.step
WHERE execution_id = :execution_id
    AND struck_by IS NULL
    AND name = :name

-- name: strike_steps
UPDATE ff.step
SET struck_by = :generation
WHERE execution_id = :execution_id
    AND struck_by IS NULL
    AND seq >= :seq
