-- The outbox as a product: named subscribers, trimming, and the workers that are there.

-- Events are read in the order of their ids, whatever is wanted of them: every event of a member would cost an entry
-- that nobody looks for.
DROP INDEX ff.event_flow;
CREATE INDEX ff_event_apart ON ff.event (at) WHERE execution_id IS NULL;

-- One row: what tells this store from others, and the last position that was trimmed.
CREATE TABLE ff.store (
    id TEXT NOT NULL PRIMARY KEY,
    trimmed_id INTEGER NOT NULL
) STRICT;
INSERT INTO ff.store (id, trimmed_id) VALUES (lower(hex(randomblob(16))), 0);

-- Where a named subscriber stands: everything up to there is done. One process holds it at a time.
CREATE TABLE ff.subscriber (
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    event_id INTEGER NOT NULL,
    holder TEXT,
    held_until INTEGER,
    created_at INTEGER NOT NULL,
    seen_at INTEGER NOT NULL,
    expired_at INTEGER,
    PRIMARY KEY (namespace, name),
    CHECK ((holder IS NULL) = (held_until IS NULL))
) STRICT;

-- Executions that are gone while their events are still kept.
CREATE TABLE ff.purged (
    execution_id TEXT NOT NULL PRIMARY KEY,
    trim_at INTEGER NOT NULL
) STRICT;
CREATE INDEX ff_purged_trim ON ff.purged (trim_at);
INSERT INTO ff.purged (execution_id, trim_at)
SELECT DISTINCT e.execution_id, (CAST(strftime('%s', 'now') AS INTEGER) + 604800) * 1000000
FROM ff.event AS e
WHERE e.execution_id IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM ff.execution AS x WHERE x.id = e.execution_id);

CREATE TABLE ff.worker (
    namespace TEXT NOT NULL,
    instance TEXT NOT NULL,
    name TEXT NOT NULL,
    lanes TEXT NOT NULL,
    capabilities TEXT NOT NULL,
    version TEXT NOT NULL,
    host TEXT NOT NULL,
    slots INTEGER NOT NULL CHECK (slots >= 0),
    busy INTEGER NOT NULL CHECK (busy >= 0),
    ttl_us INTEGER NOT NULL,
    registered_at INTEGER NOT NULL,
    seen_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (namespace, instance)
) STRICT;
CREATE INDEX ff_worker_expires ON ff.worker (expires_at);
