-- A claim over several namespaces. At equal priority the namespaces take turns: the first execution of each namespace
-- comes before the second of any. The position of a namespace in the parameter decides between equal turns.

-- name: claim_across
WITH clock AS MATERIALIZED (
    SELECT COALESCE(:now, clock_timestamp()) AS now
),
open_route AS MATERIALIZED (
    SELECT r.id, r.namespace, r.lane, r.kind, served.place AS turn_place
    FROM unnest(:namespaces::TEXT[]) WITH ORDINALITY AS served (namespace, place)
    JOIN ff.route AS r ON r.namespace = served.namespace
    WHERE r.lane = ANY(:lanes)
        AND (:kinds::TEXT[] IS NULL OR r.kind = ANY(:kinds::TEXT[]))
        AND r.requires <@ :capabilities
        AND NOT EXISTS (
            SELECT 1
            FROM ff.lane AS l
            WHERE l.namespace = r.namespace
                AND l.name = r.lane
                AND l.state = 'paused'
        )
),
-- The best executions of every open route, without a lock.
work AS MATERIALIZED (
    SELECT
        found.id, found.priority, found.fresh, found.created_at,
        open_route.id AS route_id, open_route.namespace, open_route.kind, open_route.lane, open_route.turn_place,
        ROW_NUMBER() OVER (
            PARTITION BY open_route.namespace, found.priority
            ORDER BY found.fresh, found.created_at, found.id
        ) AS turn
    FROM open_route
    CROSS JOIN LATERAL (
        SELECT e.id, e.priority, (e.attempt_state <> 'attempt_interrupted') AS fresh, e.created_at
        FROM ff.execution AS e
        WHERE e.route_id = open_route.id
            AND e.state = 'waiting'
            AND e.kind = open_route.kind
            AND e.lane = open_route.lane
            AND e.namespace || '' = open_route.namespace
        ORDER BY e.priority DESC, (e.attempt_state <> 'attempt_interrupted'), e.created_at, e.id
        LIMIT :limit
    ) AS found
),
-- How many executions to lock on each route: as many as have their turn, or all that may, after other claims had locked
-- every candidate.
share AS MATERIALIZED (
    SELECT best.route_id, best.namespace, best.kind, best.lane, best.turn_place, COUNT(*) AS number
    FROM (
        SELECT w.route_id, w.namespace, w.kind, w.lane, w.turn_place
        FROM work AS w
        ORDER BY w.priority DESC, w.turn, w.turn_place, w.fresh, w.created_at, w.id
        LIMIT CASE WHEN :past_locked::BOOLEAN THEN NULL ELSE :limit END
    ) AS best
    GROUP BY best.route_id, best.namespace, best.kind, best.lane, best.turn_place
),
head AS MATERIALIZED (
    SELECT
        locked.ctid,
        ROW_NUMBER() OVER (
            ORDER BY
                locked.priority DESC, locked.turn, locked.turn_place, locked.fresh, locked.created_at, locked.id
        ) AS place
    FROM (
        SELECT
            found.ctid, found.id, found.priority, found.fresh, found.created_at, share.turn_place,
            ROW_NUMBER() OVER (
                PARTITION BY share.namespace, found.priority
                ORDER BY found.fresh, found.created_at, found.id
            ) AS turn
        FROM share
        CROSS JOIN LATERAL (
            SELECT e.ctid, e.id, e.priority, (e.attempt_state <> 'attempt_interrupted') AS fresh, e.created_at
            FROM ff.execution AS e
            WHERE e.route_id = share.route_id
                AND e.state = 'waiting'
                AND e.kind = share.kind
                AND e.lane = share.lane
                AND e.namespace || '' = share.namespace
            ORDER BY e.priority DESC, (e.attempt_state <> 'attempt_interrupted'), e.created_at, e.id
            LIMIT CASE WHEN :past_locked::BOOLEAN THEN :limit ELSE share.number END
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS found
    ) AS locked
    ORDER BY locked.priority DESC, locked.turn, locked.turn_place, locked.fresh, locked.created_at, locked.id
    LIMIT :limit
),
taken AS (
    {taking}, e.namespace
),
noted AS (
    {noting}
    SELECT
        taken.event_xid, taken.namespace, {noted_lease}
)
SELECT
    seen.is_incomplete, seen.era, seen.is_current, e.namespace,
{lease}
{claim_totals}
