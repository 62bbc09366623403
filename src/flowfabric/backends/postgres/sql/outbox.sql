-- Events in an order that misses none. A row is readable once every transaction that could commit an earlier one has
-- ended, which is when its transaction id is below the snapshot's xmin. An event never has a smaller transaction id
-- than an earlier event of its execution, so this is also the order of versions.

-- fragment: order_of_events
,
    event_xid = GREATEST(event_xid, pg_current_xact_id())

-- fragment: offered
r.requires <@ :capabilities

-- fragment: place_column
, transaction_id

-- The same or an earlier statement saves the execution with the same number, under its row lock.

-- fragment: place_of_event
,
    GREATEST(pg_current_xact_id(), (SELECT e.event_xid FROM ff.execution AS e WHERE e.id = item.execution_id))

-- The timeline changes when a standby is promoted. Every role may call these functions. A server that lacks them gets
-- statements with NULL instead.

-- fragment: timeline
substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)

-- Whether the store is in the table and timeline in which it was last used.

-- fragment: is_current
COALESCE(s.origin = s.tableoid AND s.timeline IN ('', COALESCE({timeline}, s.timeline)), FALSE)

-- name: read_events
WITH horizon AS MATERIALIZED (
    SELECT pg_snapshot_xmin(pg_current_snapshot()) AS xid
),
page AS MATERIALIZED (
    SELECT transaction_id, id, {event_columns}
    FROM ff.event
    WHERE (transaction_id, id) > (:after_xid::TEXT::XID8, :after_id::BIGINT)
        AND transaction_id < (SELECT horizon.xid FROM horizon)
    ORDER BY transaction_id, id
    LIMIT :scan
)
SELECT
    last.transaction_id::TEXT AS last_xid, last.id AS last_id, seen.held_back,
    seen.trimmed_xid::TEXT AS trimmed_xid, seen.trimmed_id, seen.store_id, seen.era, seen.is_current,
    e.transaction_id::TEXT AS event_xid, e.id AS event_id, {event}
FROM (
    SELECT (
        SELECT later.id
        FROM ff.event AS later
        WHERE later.transaction_id >= (SELECT horizon.xid FROM horizon)
        ORDER BY later.transaction_id, later.id
        LIMIT 1
    ) IS NOT NULL AS held_back, s.trimmed_xid, s.trimmed_id, s.id AS store_id, s.era,
    {is_current} AND :after_xid::TEXT::XID8 <= (SELECT horizon.xid FROM horizon) AS is_current
    FROM ff.store AS s
) AS seen
LEFT JOIN (
    SELECT page.transaction_id, page.id
    FROM page
    ORDER BY page.transaction_id DESC, page.id DESC
    LIMIT 1
) AS last ON TRUE
LEFT JOIN page AS e ON e.namespace = :namespace
    AND (:families::TEXT[] IS NULL OR e.family = ANY(:families::TEXT[]) OR e.ends_lease AND 'lease' = ANY(:families::TEXT[]))
    AND (:lane::TEXT IS NULL OR e.lane = :lane::TEXT)
    AND (:kind::TEXT IS NULL OR e.kind = :kind::TEXT)
    AND (:flow_id::UUID IS NULL OR e.flow_id = :flow_id::UUID)
    AND (:execution_id::UUID IS NULL OR e.execution_id = :execution_id::UUID)
    AND (:tags::TEXT IS NULL OR e.tags @> :tags::TEXT::JSONB)
ORDER BY e.transaction_id, e.id

-- name: outbox_state
SELECT
    s.id, s.trimmed_xid::TEXT AS trimmed_xid, s.trimmed_id,
    pg_snapshot_xmin(pg_current_snapshot())::TEXT AS horizon_xid, 0 AS horizon_id,
    (
        SELECT e.at
        FROM ff.event AS e
        WHERE e.transaction_id >= pg_snapshot_xmin(pg_current_snapshot())
        ORDER BY e.transaction_id, e.id
        LIMIT 1
    ) AS held_back_since,
    -- No transaction of this server can have had that id, so the rows come from a dump of another server.
    (
        SELECT e.id
        FROM ff.event AS e
        WHERE e.transaction_id >= pg_snapshot_xmax(pg_current_snapshot())
        ORDER BY e.transaction_id, e.id
        LIMIT 1
    ) IS NOT NULL AS from_elsewhere,
    s.era, s.known_xid::TEXT AS known_xid, s.known_id, {is_current} AS is_current, s.origin IS NULL AS is_new,
    (SELECT r.noted_at FROM ff.era AS r WHERE r.number = s.era) AS era_since
FROM ff.store AS s

-- name: read_era
SELECT s.era, {is_current} AS is_current
FROM ff.store AS s

-- name: lock_store_table
SELECT pg_advisory_xact_lock(hashtextextended('flowfabric store', 'ff.store'::REGCLASS::OID::BIGINT))

-- name: add_store
INSERT INTO ff.store (id, trimmed_xid, trimmed_id)
SELECT gen_random_uuid(), '0', 0
WHERE NOT EXISTS (SELECT 1 FROM ff.store)

-- name: note_origin
UPDATE ff.store AS s
SET
    origin = s.tableoid,
    timeline = COALESCE({timeline}, s.timeline, '')

-- name: add_era
INSERT INTO ff.era (number, start_xid, start_id, noted_at)
VALUES (:era, :event_xid::TEXT::XID8, :event_id, :now)

-- name: set_era
UPDATE ff.store AS s
SET
    era = :era,
    origin = s.tableoid,
    timeline = COALESCE({timeline}, s.timeline, ''),
    known_xid = :event_xid::TEXT::XID8,
    known_id = :event_id,
    trimmed_xid = :trimmed_xid::TEXT::XID8,
    trimmed_id = :trimmed_id

-- name: return_subscribers
UPDATE ff.subscriber
SET
    transaction_id = :event_xid::TEXT::XID8,
    event_id = :event_id
WHERE (transaction_id, event_id) > (:present_xid::TEXT::XID8, :present_id)

-- name: earliest_start
SELECT r.start_xid::TEXT AS event_xid, r.start_id AS event_id
FROM ff.era AS r
WHERE r.number > :era
ORDER BY r.start_xid, r.start_id
LIMIT 1

-- name: note_known
UPDATE ff.store AS s
SET
    known_xid = :event_xid::TEXT::XID8,
    known_id = :event_id
WHERE s.id = :store
    AND s.era = :era
    AND {is_current}
    AND (s.known_xid, s.known_id) < (:event_xid::TEXT::XID8, :event_id)

-- fragment: subscriber
s.namespace, s.name, s.transaction_id::TEXT AS event_xid, s.event_id, s.holder, s.held_until, s.created_at, s.seen_at,
s.expired_at

-- name: add_subscriber
INSERT INTO ff.subscriber (namespace, name, transaction_id, event_id, created_at, seen_at)
VALUES (:namespace, :name, :event_xid::TEXT::XID8, :event_id, :now, :now)
ON CONFLICT (namespace, name) DO NOTHING

-- name: commit_subscriber
UPDATE ff.subscriber
SET
    transaction_id = :event_xid::TEXT::XID8,
    event_id = :event_id,
    held_until = :held_until,
    seen_at = :now
WHERE namespace = :namespace
    AND name = :name
    AND holder = :holder
    AND expired_at IS NULL
    AND EXISTS (
        SELECT 1
        FROM ff.store AS s
        WHERE s.id = :store
            AND s.era = :era
            AND {is_current}
    )
    AND :event_xid::TEXT::XID8 <= pg_snapshot_xmin(pg_current_snapshot())
RETURNING name

-- name: slowest_subscriber
SELECT s.transaction_id::TEXT AS event_xid, s.event_id
FROM ff.subscriber AS s
WHERE s.expired_at IS NULL
ORDER BY s.transaction_id, s.event_id
LIMIT 1

-- name: lock_free_buried
SELECT
    p.execution_id, last.transaction_id::TEXT AS event_xid, last.id AS event_id, last.version AS last_version,
    first.version AS first_version
FROM ff.purged AS p
LEFT JOIN LATERAL (
    SELECT e.transaction_id, e.id, e.version
    FROM ff.event AS e
    WHERE e.execution_id = p.execution_id
    ORDER BY e.version DESC
    LIMIT 1
) AS last ON TRUE
LEFT JOIN LATERAL (
    SELECT e.version
    FROM ff.event AS e
    WHERE e.execution_id = p.execution_id
    ORDER BY e.version
    LIMIT 1
) AS first ON TRUE
WHERE p.execution_id IN :ids
    AND p.trim_at <= :now
ORDER BY p.execution_id
FOR NO KEY UPDATE OF p SKIP LOCKED

-- name: events_apart
SELECT e.transaction_id::TEXT AS event_xid, e.id AS event_id
FROM ff.event AS e
WHERE e.execution_id IS NULL
    AND e.at <= :until
ORDER BY e.at
LIMIT :limit

-- name: delete_event
DELETE FROM ff.event
WHERE transaction_id = :event_xid::TEXT::XID8
    AND id = :event_id

-- name: note_trimmed
UPDATE ff.store
SET
    trimmed_xid = :event_xid::TEXT::XID8,
    trimmed_id = :event_id
WHERE (trimmed_xid, trimmed_id) < (:event_xid::TEXT::XID8, :event_id)
