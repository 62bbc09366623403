-- The hot operations, one statement per batch. Guard and lock are in one CTE that skips locked rows, so a batch never
-- waits. `state || ''` and `namespace || ''` make the planner use the index on the id, which is right even without
-- statistics. The time is read once.

-- The time that a statement returns.

-- fragment: told_time
clock_timestamp()

-- fragment: inserting
WITH clock AS MATERIALIZED (
    SELECT COALESCE(:now, clock_timestamp()) AS now
)
INSERT INTO ff.execution (
    id, namespace, lane, kind, route_id, priority, payload, encoding, tags, policy, idempotency_key, fingerprint,
    lease_ttl_policy_us, attempt_timeout_policy_us, retention_policy_us,
    state, blocking_reason, attempt_state, epoch, version, generation, plain,
    created_at, changed_at, ready_at, deadline_at,
    attempt_index, attempt_origin, retry_count, reclaim_count, replay_count, step_seq,
    flow_id, member_name, parent_id, creator
)
SELECT
    item.id, :namespace, item.lane, item.kind, route.id, item.priority, item.payload, item.encoding,
    item.tags::JSONB, item.policy::JSONB, item.idempotency_key, item.fingerprint,
    item.lease_ttl_policy_us, item.attempt_timeout_policy_us, item.retention_policy_us,
    item.state, item.blocking_reason, 'pending_first_attempt', 0, 0, 0, item.plain,
    clock.now, clock.now, item.ready_at,
    COALESCE(item.deadline_at, clock.now + item.deadline_us * INTERVAL '1 microsecond'),
    0, 'fresh', 0, 0, 0, 0,
    item.flow_id, item.member_name, item.parent_id, item.creator
FROM clock, unnest(
    :id::UUID[], :lane::TEXT[], :kind::TEXT[], :route::TEXT[], :priority::INTEGER[], :payload::BYTEA[],
    :encoding::TEXT[], :tags::TEXT[], :policy::TEXT[], :idempotency_key::TEXT[], :fingerprint::BYTEA[],
    :lease_ttl_policy_us::BIGINT[], :attempt_timeout_policy_us::BIGINT[], :retention_policy_us::BIGINT[],
    :state::TEXT[], :blocking_reason::TEXT[], :plain::BOOLEAN[], :ready_at::TIMESTAMPTZ[],
    :deadline_at::TIMESTAMPTZ[], :deadline_us::BIGINT[], :flow_id::UUID[], :member_name::TEXT[], :parent_id::UUID[],
    :creator::TEXT[]
) AS item (
    id, lane, kind, route, priority, payload, encoding, tags, policy, idempotency_key, fingerprint,
    lease_ttl_policy_us, attempt_timeout_policy_us, retention_policy_us, state, blocking_reason, plain, ready_at,
    deadline_at, deadline_us, flow_id, member_name, parent_id, creator
)
-- An item without a route is left out. The caller creates the route and repeats the item.
CROSS JOIN LATERAL (
    SELECT r.id
    FROM ff.route AS r
    WHERE r.digest = item.route
    ORDER BY r.digest
    LIMIT 1
) AS route
WHERE NOT EXISTS (
    SELECT 1
    FROM ff.lane AS l
    WHERE l.namespace = :namespace
        AND l.name = item.lane
        AND l.state = 'draining'
)

-- name: insert_executions
{inserting}
    -- Events outlive their execution, so its id is never used again. The subquery runs once per item, because an
    -- anti-join might be planned as a scan of all events.
    AND (
        SELECT past.version
        FROM ff.event AS past
        WHERE past.execution_id = item.id
        ORDER BY past.version
        LIMIT 1
    ) IS NULL
ORDER BY item.id
ON CONFLICT (id) DO NOTHING
RETURNING id

-- The variant for a statement that is its own transaction, and whose ids are all minted by the engine for this call. If
-- an id exists nevertheless, the statement fails.
-- name: insert_single_executions
{inserting}
RETURNING id

-- The routes that a claim may take, and the lease on the rows it has locked. A claim compares namespace, lane and kind
-- with the row as well, so that a row with a wrong route never reaches another worker.
-- fragment: open_routes
open_route AS MATERIALIZED (
    SELECT r.id, r.lane, r.kind
    FROM ff.route AS r
    WHERE r.namespace = :namespace
        AND r.lane = ANY(:lanes)
        AND (:kinds::TEXT[] IS NULL OR r.kind = ANY(:kinds::TEXT[]))
        AND r.requires <@ :capabilities
        AND NOT EXISTS (
            SELECT 1
            FROM ff.lane AS l
            WHERE l.namespace = r.namespace
                AND l.name = r.lane
                AND l.state = 'paused'
        )
)

-- The open routes along which an execution waits.
-- fragment: routes_with_work
work AS (
    SELECT open_route.id AS route_id, open_route.kind, open_route.lane
    FROM open_route
    CROSS JOIN LATERAL (
        SELECT e.id
        FROM ff.execution AS e
        WHERE e.route_id = open_route.id
            AND e.state = 'waiting'
            AND e.kind = open_route.kind
            AND e.lane = open_route.lane
            AND e.namespace || '' = :namespace
        ORDER BY e.priority DESC, (e.attempt_state <> 'attempt_interrupted'), e.created_at, e.id
        LIMIT 1
    ) AS first
)

-- The parts of a lease: the update, the event, and the totals of the claim.

-- fragment: taking
    UPDATE ff.execution AS e
    SET
        state = 'active',
        blocking_reason = 'none',
        attempt_state = 'running_attempt',
        ownership = 'leased',
        epoch = e.epoch + 1,
        version = e.version + 1,
        changed_at = clock.now,
        started_at = COALESCE(e.started_at, clock.now),
        attempt_started_at = COALESCE(e.attempt_started_at, clock.now),
        attempt_timeout_at = clock.now
            + COALESCE(e.attempt_timeout_left_us, e.attempt_timeout_policy_us) * INTERVAL '1 microsecond',
        attempt_timeout_left_us = NULL,
        lease_id = encode(substring(:drawn::BYTEA FROM 16 * head.place::INTEGER - 15 FOR 16), 'hex')::UUID,
        lease_worker = :worker,
        lease_instance = :instance,
        lease_ttl_us = COALESCE(:ttl_us, e.lease_ttl_policy_us),
        lease_acquired_at = clock.now,
        lease_expires_at = clock.now + COALESCE(:ttl_us, e.lease_ttl_policy_us) * INTERVAL '1 microsecond',
        lease_check_at = clock.now + COALESCE(:ttl_us, e.lease_ttl_policy_us) * INTERVAL '1 microsecond',
        lease_resumed = (e.attempt_state = 'attempt_interrupted'){order_of_events}
    FROM clock, head
    -- A row that changed between the snapshot and its lock has a new position. It stays for the next claim.
    WHERE e.ctid = head.ctid
    RETURNING
    {lease}, e.state, e.version, e.event_xid, e.flow_id, head.place

-- fragment: noting
    INSERT INTO ff.event (
        transaction_id, namespace, family, name, at, lane, execution_id, version, kind, state, epoch, generation,
        attempt_index, lease_id, worker, instance, ends_lease, tags, details, flow_id
    )

-- fragment: noted_lease
'lease', 'acquired', taken.lease_acquired_at, taken.lane, taken.id, taken.version,
        taken.kind, taken.state, taken.epoch, taken.generation, taken.attempt_index,
        taken.lease_id, :worker, :instance, FALSE, NULLIF(taken.tags, '{}'::JSONB),
        jsonb_build_object('origin', CASE WHEN taken.lease_resumed THEN 'resumed' ELSE taken.attempt_origin END),
        taken.flow_id
    FROM taken

-- fragment: claim_totals
FROM (
    SELECT
        CASE
            WHEN EXISTS (SELECT 1 FROM taken) THEN (SELECT COUNT(*) FROM head) > (SELECT COUNT(*) FROM taken)
            ELSE EXISTS (SELECT 1 FROM share) AND EXISTS (SELECT 1 FROM work)
        END AS is_incomplete,
        (SELECT s.era FROM ff.store AS s) AS era,
        (SELECT {is_current} FROM ff.store AS s) AS is_current
) AS seen
LEFT JOIN taken AS e ON TRUE
ORDER BY e.place

-- fragment: leasing
taken AS (
    {taking}
),
noted AS (
    {noting}
    SELECT
        taken.event_xid, :namespace, {noted_lease}
)
SELECT
    seen.is_incomplete, seen.era, seen.is_current,
{lease}
{claim_totals}

-- name: claim_waiting
WITH clock AS MATERIALIZED (
    SELECT COALESCE(:now, clock_timestamp()) AS now
),
{open_routes},
{routes_with_work},
-- How many of the best rows come from each route, so that no more rows are locked than are taken. With one open route,
-- there is nothing to count.
share AS MATERIALIZED (
    SELECT open_route.id AS route_id, open_route.kind, open_route.lane, :limit::BIGINT AS number
    FROM open_route
    WHERE (SELECT COUNT(*) FROM open_route) = 1
    UNION ALL
    SELECT best.route_id, best.kind, best.lane, COUNT(*) AS number
    FROM (
        SELECT found.route_id, open_route.kind, open_route.lane
        FROM open_route
        CROSS JOIN LATERAL (
            SELECT e.route_id, e.id, e.priority, (e.attempt_state <> 'attempt_interrupted') AS fresh, e.created_at
            FROM ff.execution AS e
            WHERE e.route_id = open_route.id
                AND e.state = 'waiting'
                AND e.kind = open_route.kind
                AND e.lane = open_route.lane
                AND e.namespace || '' = :namespace
            ORDER BY e.priority DESC, (e.attempt_state <> 'attempt_interrupted'), e.created_at, e.id
            LIMIT :limit
        ) AS found
        WHERE (SELECT COUNT(*) FROM open_route) > 1
        ORDER BY found.priority DESC, found.fresh, found.created_at, found.id
        LIMIT :limit
    ) AS best
    GROUP BY best.route_id, best.kind, best.lane
),
head AS MATERIALIZED (
    SELECT
        found.ctid,
        ROW_NUMBER() OVER (ORDER BY found.priority DESC, found.fresh, found.created_at, found.id) AS place
    FROM share
    CROSS JOIN LATERAL (
        SELECT e.ctid, e.id, e.priority, (e.attempt_state <> 'attempt_interrupted') AS fresh, e.created_at
        FROM ff.execution AS e
        WHERE e.route_id = share.route_id
            AND e.state = 'waiting'
            AND e.kind = share.kind
            AND e.lane = share.lane
            AND e.namespace || '' = :namespace
        ORDER BY e.priority DESC, (e.attempt_state <> 'attempt_interrupted'), e.created_at, e.id
        LIMIT share.number
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS found
),
{leasing}

-- For a claim whose candidates were all locked: the best of every route, so that locked heads of one route do not
-- hide the work of another. It may lock more rows than it takes, for the time of the statement.
-- name: claim_unlocked
WITH clock AS MATERIALIZED (
    SELECT COALESCE(:now, clock_timestamp()) AS now
),
{open_routes},
{routes_with_work},
share AS MATERIALIZED (
    SELECT work.route_id, work.kind, work.lane
    FROM work
),
head AS MATERIALIZED (
    SELECT
        found.ctid,
        ROW_NUMBER() OVER (ORDER BY found.priority DESC, found.fresh, found.created_at, found.id) AS place
    FROM share
    CROSS JOIN LATERAL (
        SELECT e.ctid, e.id, e.priority, (e.attempt_state <> 'attempt_interrupted') AS fresh, e.created_at
        FROM ff.execution AS e
        WHERE e.route_id = share.route_id
            AND e.state = 'waiting'
            AND e.kind = share.kind
            AND e.lane = share.lane
            AND e.namespace || '' = :namespace
        ORDER BY e.priority DESC, (e.attempt_state <> 'attempt_interrupted'), e.created_at, e.id
        LIMIT :limit
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS found
    ORDER BY found.priority DESC, found.fresh, found.created_at, found.id
    LIMIT :limit
),
{leasing}

-- name: renew_if_owned
WITH clock AS MATERIALIZED (
    SELECT COALESCE(:now, clock_timestamp()) AS now
),
owned AS MATERIALIZED (
    SELECT e.id
    FROM unnest(:execution_id::UUID[], :epoch::BIGINT[], :lease_id::UUID[]) AS item (execution_id, epoch, lease_id)
    JOIN ff.execution AS e ON e.id = item.execution_id
    WHERE e.namespace || '' = :namespace
        AND e.epoch = item.epoch
        AND e.lease_id = item.lease_id
        AND e.state || '' = 'active'
        AND e.lease_expires_at > (SELECT now FROM clock)
    FOR NO KEY UPDATE OF e SKIP LOCKED
)
UPDATE ff.execution AS e
SET lease_expires_at = GREATEST(e.lease_expires_at, clock.now + e.lease_ttl_us * INTERVAL '1 microsecond')
FROM clock, owned
WHERE e.id = owned.id
RETURNING e.id, e.lease_expires_at, e.cancel_due_at

-- name: renew_noted_if_owned
WITH clock AS MATERIALIZED (
    SELECT COALESCE(:now, clock_timestamp()) AS now
),
owned AS MATERIALIZED (
    SELECT e.id
    FROM unnest(:execution_id::UUID[], :epoch::BIGINT[], :lease_id::UUID[]) AS item (execution_id, epoch, lease_id)
    JOIN ff.execution AS e ON e.id = item.execution_id
    WHERE e.namespace || '' = :namespace
        AND e.epoch = item.epoch
        AND e.lease_id = item.lease_id
        AND e.state || '' = 'active'
        AND e.lease_expires_at > (SELECT now FROM clock)
    FOR NO KEY UPDATE OF e SKIP LOCKED
),
renewed AS (
    UPDATE ff.execution AS e
    SET
        version = e.version + 1,
        changed_at = clock.now,
        lease_expires_at = GREATEST(e.lease_expires_at, clock.now + e.lease_ttl_us * INTERVAL '1 microsecond'){order_of_events}
    FROM clock, owned
    WHERE e.id = owned.id
    RETURNING
        e.id, e.namespace, e.lane, e.kind, e.tags, e.state, e.version, e.epoch, e.generation, e.attempt_index,
        e.changed_at, e.lease_id, e.lease_worker, e.lease_instance, e.lease_expires_at, e.cancel_due_at, e.event_xid,
        e.flow_id
),
noted AS (
    INSERT INTO ff.event (
        transaction_id, namespace, family, name, at, lane, execution_id, version, kind, state, epoch, generation,
        attempt_index, lease_id, worker, instance, ends_lease, tags, flow_id
    )
    SELECT
        renewed.event_xid, renewed.namespace, 'lease', 'renewed', renewed.changed_at, renewed.lane, renewed.id,
        renewed.version, renewed.kind, renewed.state, renewed.epoch, renewed.generation, renewed.attempt_index,
        renewed.lease_id, renewed.lease_worker, renewed.lease_instance, FALSE, NULLIF(renewed.tags, '{}'::JSONB),
        renewed.flow_id
    FROM renewed
)
SELECT renewed.id, renewed.lease_expires_at, renewed.cancel_due_at
FROM renewed

-- name: progress_if_owned
WITH clock AS MATERIALIZED (
    SELECT COALESCE(:now, clock_timestamp()) AS now
),
owned AS MATERIALIZED (
    SELECT e.id, item.percent, item.message
    FROM unnest(:execution_id::UUID[], :epoch::BIGINT[], :lease_id::UUID[], :percent::INTEGER[], :message::TEXT[])
        AS item (execution_id, epoch, lease_id, percent, message)
    JOIN ff.execution AS e ON e.id = item.execution_id
    WHERE e.namespace || '' = :namespace
        AND e.epoch = item.epoch
        AND e.lease_id = item.lease_id
        AND e.state || '' = 'active'
        AND e.lease_expires_at > (SELECT now FROM clock)
    FOR NO KEY UPDATE OF e SKIP LOCKED
)
UPDATE ff.execution AS e
SET
    progress_percent = COALESCE(owned.percent, e.progress_percent),
    progress_message = COALESCE(owned.message, e.progress_message),
    changed_at = clock.now
FROM clock, owned
WHERE e.id = owned.id
RETURNING e.id

-- Ends owned executions, standalone and linked ones alike. The owned rows carry the values of their items. A second
-- join would compare every item with every other.
-- fragment: ending
ended AS (
    UPDATE ff.execution AS e
    SET
        state = 'completed',
        blocking_reason = 'none',
        attempt_state = 'attempt_terminal',
        ownership = NULL,
        version = e.version + 1,
        changed_at = clock.now,
        ended_at = clock.now,
        purge_at = clock.now + e.retention_policy_us * INTERVAL '1 microsecond',
        ready_at = NULL,
        hold_reason = NULL,
        attempt_timeout_at = NULL,
        former_lease_id = e.lease_id,
        former_epoch = e.epoch,
        former_worker = e.lease_worker,
        former_instance = e.lease_instance,
        former_end = 'complete',
        former_digest = owned.digest,
        former_until = NULL,
        resume_suspension_id = NULL,
        resume_trigger = NULL,
        lease_id = NULL,
        lease_worker = NULL,
        lease_instance = NULL,
        lease_ttl_us = NULL,
        lease_acquired_at = NULL,
        lease_expires_at = NULL,
        lease_check_at = NULL,
        lease_resumed = NULL{order_of_events}
    FROM clock, owned
    WHERE e.id = owned.id

-- fragment: ended_and_noted
    RETURNING
        e.id, e.namespace, e.lane, e.kind, e.tags, e.version, e.epoch, e.generation, e.attempt_index, e.attempt_origin,
        e.attempt_started_at, e.ended_at, e.former_lease_id, e.former_worker, e.former_instance, e.event_xid,
        owned.result, owned.encoding, e.flow_id, e.parent_id, e.has_children, e.plain
),
kept AS (
    INSERT INTO ff.attempt (
        execution_id, attempt_index, generation, origin, worker, instance, started_at, ended_at, outcome, result, encoding
    )
    SELECT
        ended.id, ended.attempt_index, ended.generation, ended.attempt_origin, ended.former_worker,
        ended.former_instance, ended.attempt_started_at, ended.ended_at, 'ended_success', ended.result, ended.encoding
    FROM ended
),
noted AS (
    INSERT INTO ff.event (
        transaction_id, namespace, family, name, at, lane, execution_id, version, kind, state, epoch, generation,
        attempt_index, lease_id, worker, instance, ends_lease, tags, flow_id
    )
    SELECT
        ended.event_xid, ended.namespace, 'completion', 'completed', ended.ended_at, ended.lane, ended.id,
        ended.version, ended.kind, 'completed', ended.epoch, ended.generation, ended.attempt_index,
        ended.former_lease_id, ended.former_worker, ended.former_instance, TRUE, NULLIF(ended.tags, '{}'::JSONB),
        ended.flow_id
    FROM ended
)

-- name: complete_if_owned
WITH clock AS MATERIALIZED (
    SELECT COALESCE(:now, clock_timestamp()) AS now
),
item AS MATERIALIZED (
    SELECT i.execution_id, i.epoch, i.lease_id, i.result, i.encoding, i.digest
    FROM unnest(
        :execution_id::UUID[], :epoch::BIGINT[], :lease_id::UUID[], :result::BYTEA[], :encoding::TEXT[], :digest::TEXT[]
    ) AS i (execution_id, epoch, lease_id, result, encoding, digest)
),
owned AS MATERIALIZED (
    SELECT e.id, item.result, item.encoding, item.digest
    FROM item
    JOIN ff.execution AS e ON e.id = item.execution_id
    WHERE e.namespace || '' = :namespace
        AND e.epoch = item.epoch
        AND e.lease_id = item.lease_id
        AND e.state || '' = 'active'
        AND e.lease_expires_at > (SELECT now FROM clock)
        AND e.plain
    FOR NO KEY UPDATE OF e SKIP LOCKED
),
{ending}
    {ended_and_noted}
SELECT ended.id, ended.ended_at
FROM ended

-- The variant for a statement that is its own transaction. It has its guard in the UPDATE, and so finds each row once.
-- If a row changed while the statement waited for it, PostgreSQL checks the guard again. No such wait is longer than
-- `lock_timeout`, which ends the statement. The setting must have a value before the first row is locked, so it is
-- read together with the time.
-- name: complete_single_if_owned
WITH clock AS MATERIALIZED (
    SELECT COALESCE(:now, clock_timestamp()) AS now, set_config('lock_timeout', '100ms', TRUE) AS lock_timeout
),
owned AS MATERIALIZED (
    SELECT i.id, i.epoch, i.lease_id, i.result, i.encoding, i.digest
    FROM unnest(
        :execution_id::UUID[], :epoch::BIGINT[], :lease_id::UUID[], :result::BYTEA[], :encoding::TEXT[], :digest::TEXT[]
    ) AS i (id, epoch, lease_id, result, encoding, digest)
),
{ending}
        AND e.namespace || '' = :namespace
        AND e.epoch = owned.epoch
        AND e.lease_id = owned.lease_id
        AND e.state || '' = 'active'
        AND e.lease_expires_at > (SELECT now FROM clock)
        AND e.plain
    {ended_and_noted}
SELECT ended.id, ended.ended_at
FROM ended

-- name: complete_linked_if_owned
WITH clock AS MATERIALIZED (
    SELECT COALESCE(:now, clock_timestamp()) AS now
),
item AS MATERIALIZED (
    SELECT i.execution_id, i.epoch, i.lease_id, i.result, i.encoding, i.digest, i.flow_id
    FROM unnest(
        :execution_id::UUID[], :epoch::BIGINT[], :lease_id::UUID[], :result::BYTEA[], :encoding::TEXT[], :digest::TEXT[],
        :flow_id::UUID[]
    ) AS i (execution_id, epoch, lease_id, result, encoding, digest, flow_id)
),
owned AS MATERIALIZED (
    SELECT e.id, item.result, item.encoding, item.digest
    FROM item
    JOIN ff.execution AS e ON e.id = item.execution_id
    WHERE e.namespace || '' = :namespace
        AND e.epoch = item.epoch
        AND e.lease_id = item.lease_id
        AND e.state || '' = 'active'
        AND e.lease_expires_at > (SELECT now FROM clock)
        -- The locked flow must be the flow of the execution, which may have got children since the flow was read.
        AND COALESCE(e.flow_id, CASE WHEN e.has_children THEN e.id END) IS NOT DISTINCT FROM item.flow_id
    FOR NO KEY UPDATE OF e SKIP LOCKED
),
{ending}
    {ended_and_noted}
SELECT ended.id, ended.ended_at, ended.flow_id, ended.parent_id, ended.has_children, ended.plain
FROM ended

-- The row of the execution is locked but not written. The shared lock excludes every statement that changes the row.
-- Of two statements that record steps of one execution and use the same number, one fails and is repeated.
-- name: record_steps_if_owned
WITH clock AS MATERIALIZED (
    SELECT COALESCE(:now, clock_timestamp()) AS now
),
item AS MATERIALIZED (
    SELECT i.execution_id, i.epoch, i.lease_id, i.place, i.name, i.status, i.payload, i.encoding, i.digest
    FROM unnest(
        :execution_id::UUID[], :epoch::BIGINT[], :lease_id::UUID[], :place::BIGINT[], :name::TEXT[], :status::TEXT[],
        :payload::BYTEA[], :encoding::TEXT[], :digest::TEXT[]
    ) AS i (execution_id, epoch, lease_id, place, name, status, payload, encoding, digest)
),
owned AS MATERIALIZED (
    SELECT e.id, e.attempt_index, e.generation, fence.steps
    FROM (
        SELECT item.execution_id, item.epoch, item.lease_id, COUNT(*) AS steps
        FROM item
        GROUP BY item.execution_id, item.epoch, item.lease_id
    ) AS fence
    JOIN ff.execution AS e ON e.id = fence.execution_id
    WHERE e.namespace || '' = :namespace
        AND e.epoch = fence.epoch
        AND e.lease_id = fence.lease_id
        AND e.state || '' = 'active'
        AND e.lease_expires_at > (SELECT now FROM clock)
    FOR SHARE OF e SKIP LOCKED
),
numbered AS MATERIALIZED (
    SELECT owned.id, owned.attempt_index, owned.generation, owned.steps, COALESCE(last.seq, 0) AS last_seq
    FROM owned
    CROSS JOIN LATERAL (
        SELECT MAX(s.seq) AS seq
        FROM ff.step AS s
        WHERE s.execution_id = owned.id
    ) AS last
    WHERE COALESCE(last.seq, 0) + owned.steps <= :most
),
recorded AS (
    INSERT INTO ff.step AS step (
        execution_id, seq, name, status, payload, encoding, digest, attempt_index, generation, recorded_at
    )
    SELECT
        numbered.id, numbered.last_seq + item.place, item.name, item.status, item.payload, item.encoding, item.digest,
        numbered.attempt_index, numbered.generation, clock.now
    FROM clock, numbered
    JOIN item ON item.execution_id = numbered.id
    ON CONFLICT (execution_id, name) WHERE struck_by IS NULL
    DO UPDATE SET
        status = excluded.status,
        payload = excluded.payload,
        encoding = excluded.encoding,
        digest = excluded.digest,
        attempt_index = CASE step.status WHEN 'open' THEN excluded.attempt_index ELSE step.attempt_index END,
        recorded_at = CASE step.status WHEN 'open' THEN excluded.recorded_at ELSE step.recorded_at END
    WHERE step.status = 'open' OR step.digest = excluded.digest
    RETURNING step.execution_id, step.name
)
-- A final step with other content is not recorded. A division by zero then fails the whole statement, so that it
-- needs no surrounding transaction. Both sides are numbered as one list, because a join would compare every execution
-- with every step.
SELECT told.execution_id, MAX(told.steps) / (COUNT(told.name) / MAX(told.steps)) AS recorded
FROM (
    SELECT numbered.id AS execution_id, numbered.steps, NULL AS name
    FROM numbered
    UNION ALL
    SELECT recorded.execution_id, NULL, recorded.name
    FROM recorded
) AS told
GROUP BY told.execution_id
