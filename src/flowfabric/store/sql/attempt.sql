-- Ended attempts. The current attempt is stored in the row of its execution.

-- name: append_attempt
WITH item (
    execution_id UUID, attempt_index INTEGER, generation INTEGER, origin TEXT, worker TEXT, instance TEXT,
    started_at TIMESTAMPTZ, ended_at TIMESTAMPTZ, outcome TEXT, result BYTEA, encoding TEXT, failure_class TEXT,
    failure_category TEXT, failure_message TEXT, failure_detail BYTEA
) AS (
    VALUES :items
)
INSERT INTO ff.attempt (
    execution_id, attempt_index, generation, origin, worker, instance, started_at, ended_at, outcome, result,
    encoding, failure_class, failure_category, failure_message, failure_detail
)
SELECT
    item.execution_id, item.attempt_index, item.generation, item.origin, item.worker, item.instance,
    item.started_at, item.ended_at, item.outcome, item.result, item.encoding, item.failure_class,
    item.failure_category, item.failure_message, item.failure_detail
FROM item
WHERE item.execution_id IS NOT NULL
RETURNING 1

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
