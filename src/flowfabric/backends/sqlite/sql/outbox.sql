-- Events by id. One transaction writes at a time, so this is also the order of commits.

-- fragment: order_of_events

-- fragment: offered
NOT EXISTS (
                SELECT 1
                FROM json_each(r.requires) AS required
                WHERE required.value NOT IN :capabilities
            )

-- fragment: place_column

-- fragment: place_of_event

-- The id of the newest event that was ever written.

-- fragment: newest_id
COALESCE((SELECT q.seq FROM sqlite_sequence AS q WHERE q.name = 'ff_event'), 0)

-- name: read_events
WITH page AS MATERIALIZED (
    SELECT id, {event_columns}
    FROM ff.event
    WHERE id > :after_id
    ORDER BY id
    LIMIT :scan
)
SELECT
    0 AS last_xid, last.id AS last_id, 0 AS held_back, 0 AS trimmed_xid, last.trimmed_id, last.store_id, last.era,
    last.is_current, 0 AS event_xid, e.id AS event_id, {event}
FROM (
    SELECT
        s.trimmed_id, (SELECT MAX(page.id) FROM page) AS id, s.id AS store_id, s.era,
        :after_id <= {newest_id} AS is_current
    FROM ff.store AS s
) AS last
LEFT JOIN page AS e ON e.namespace = :namespace
    AND (:families IS NULL OR e.family IN :families OR e.ends_lease AND 'lease' IN :families)
    AND (:lane IS NULL OR e.lane = :lane)
    AND (:kind IS NULL OR e.kind = :kind)
    AND (:flow_id IS NULL OR e.flow_id = :flow_id)
    AND (:execution_id IS NULL OR e.execution_id = :execution_id)
    AND NOT EXISTS (
        SELECT 1
        FROM json_each(COALESCE(:tags, '{}')) AS wanted
        WHERE wanted.value IS NOT (
            SELECT tag.value
            FROM json_each(COALESCE(e.tags, '{}')) AS tag
            WHERE tag.key = wanted.key
        )
    )
ORDER BY e.id

-- name: outbox_state
SELECT
    s.id, 0 AS trimmed_xid, s.trimmed_id, 0 AS horizon_xid,
    {newest_id} AS horizon_id, NULL AS held_back_since, FALSE AS from_elsewhere,
    s.era, 0 AS known_xid, s.known_id, TRUE AS is_current, FALSE AS is_new,
    (SELECT r.noted_at FROM ff.era AS r WHERE r.number = s.era) AS era_since
FROM ff.store AS s

-- name: read_era
SELECT s.era, TRUE AS is_current
FROM ff.store AS s

-- One transaction writes at a time, so there is nothing to lock.

-- name: lock_store_table
SELECT 1

-- name: add_store
INSERT INTO ff.store (id, trimmed_id)
SELECT lower(hex(randomblob(16))), 0
WHERE NOT EXISTS (SELECT 1 FROM ff.store)

-- name: add_era
INSERT INTO ff.era (number, start_id, noted_at)
VALUES (:era, :event_id, :now)

-- name: set_era
UPDATE ff.store
SET
    era = :era,
    known_id = :event_id,
    trimmed_id = :trimmed_id

-- name: return_subscribers
UPDATE ff.subscriber
SET event_id = :event_id
WHERE event_id > :present_id

-- name: earliest_start
SELECT 0 AS event_xid, r.start_id AS event_id
FROM ff.era AS r
WHERE r.number > :era
ORDER BY r.start_id
LIMIT 1

-- name: note_known
UPDATE ff.store
SET known_id = :event_id
WHERE replace(id, '-', '') = replace(:store, '-', '')
    AND era = :era
    AND known_id < :event_id

-- fragment: subscriber
s.namespace, s.name, 0 AS event_xid, s.event_id, s.holder, s.held_until, s.created_at, s.seen_at, s.expired_at

-- name: add_subscriber
INSERT INTO ff.subscriber (namespace, name, event_id, created_at, seen_at)
VALUES (:namespace, :name, :event_id, :now, :now)
ON CONFLICT (namespace, name) DO NOTHING

-- name: commit_subscriber
UPDATE ff.subscriber
SET
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
        WHERE replace(s.id, '-', '') = replace(:store, '-', '')
            AND s.era = :era
    )
    AND :event_id <= {newest_id}
RETURNING name

-- name: slowest_subscriber
SELECT 0 AS event_xid, s.event_id
FROM ff.subscriber AS s
WHERE s.expired_at IS NULL
ORDER BY s.event_id
LIMIT 1

-- name: lock_free_buried
SELECT
    p.execution_id, 0 AS event_xid, last.id AS event_id, last.version AS last_version, (
        SELECT e.version
        FROM ff.event AS e
        WHERE e.execution_id = p.execution_id
        ORDER BY e.version
        LIMIT 1
    ) AS first_version
FROM ff.purged AS p
LEFT JOIN ff.event AS last ON last.execution_id = p.execution_id
    AND last.version = (
        SELECT e.version
        FROM ff.event AS e
        WHERE e.execution_id = p.execution_id
        ORDER BY e.version DESC
        LIMIT 1
    )
WHERE p.execution_id IN :ids
    AND p.trim_at <= :now
ORDER BY p.execution_id

-- name: events_apart
SELECT 0 AS event_xid, e.id AS event_id
FROM ff.event AS e
WHERE e.execution_id IS NULL
    AND e.at <= :until
ORDER BY e.at
LIMIT :limit

-- name: delete_event
DELETE FROM ff.event
WHERE id = :event_id

-- name: note_trimmed
UPDATE ff.store
SET trimmed_id = :event_id
WHERE trimmed_id < :event_id
