-- Attempts that have ended; the current one lives on its execution's row.

-- name: append_attempt
INSERT INTO ff.attempt (
    execution_id, attempt_index, generation, origin, worker, instance, started_at, ended_at, outcome,
    result, encoding, failure_class, failure_category, failure_message, failure_detail
)
VALUES (
    :execution_id, :attempt_index, :generation, :origin, :worker, :instance, :started_at, :ended_at, :outcome,
    :result, :encoding, :failure_class, :failure_category, :failure_message, :failure_detail
)

-- name: attempts_of
SELECT
    execution_id, attempt_index, generation, origin, worker, instance, started_at, ended_at, outcome,
    result, encoding, failure_class, failure_category, failure_message, failure_detail
FROM ff.attempt
WHERE execution_id = :execution_id
ORDER BY attempt_index

-- name: attempt_at
SELECT
    execution_id, attempt_index, generation, origin, worker, instance, started_at, ended_at, outcome,
    result, encoding, failure_class, failure_category, failure_message, failure_detail
FROM ff.attempt
WHERE execution_id = :execution_id
    AND attempt_index = :attempt_index
