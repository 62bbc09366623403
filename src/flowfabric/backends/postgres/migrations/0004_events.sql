-- The outbox as a product: a position that misses nothing, named subscribers, trimming, and the workers that are there.

-- The largest transaction id among the events of the execution; see event.transaction_id.
ALTER TABLE ff.execution ADD COLUMN event_xid XID8 NOT NULL DEFAULT '0';

-- Events are read in the order of their positions, whatever is wanted of them: every event of a member would cost
-- an entry that nobody looks for.
DROP INDEX ff.event_flow;
-- Subscribers read in this order. The id alone was never looked for.
ALTER TABLE ff.event DROP CONSTRAINT event_pkey;
ALTER TABLE ff.event ADD PRIMARY KEY (transaction_id, id);
CREATE INDEX event_apart ON ff.event (at) WHERE execution_id IS NULL;

-- One row: what tells this store from others, and the last position that was trimmed.
CREATE TABLE ff.store (
    id UUID NOT NULL PRIMARY KEY,
    trimmed_xid XID8 NOT NULL,
    trimmed_id BIGINT NOT NULL
);
INSERT INTO ff.store (id, trimmed_xid, trimmed_id) VALUES (gen_random_uuid(), '0', 0);

-- Where a named subscriber stands: everything up to there is done. One process holds it at a time.
CREATE TABLE ff.subscriber (
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    transaction_id XID8 NOT NULL,
    event_id BIGINT NOT NULL,
    holder UUID,
    held_until TIMESTAMPTZ,
    created_at TIMESTAMPTZ NOT NULL,
    seen_at TIMESTAMPTZ NOT NULL,
    expired_at TIMESTAMPTZ,
    PRIMARY KEY (namespace, name),
    CHECK ((holder IS NULL) = (held_until IS NULL))
);

-- Executions that are gone while their events are still kept.
CREATE TABLE ff.purged (
    execution_id UUID NOT NULL PRIMARY KEY,
    trim_at TIMESTAMPTZ NOT NULL
);
CREATE INDEX purged_trim ON ff.purged (trim_at);
INSERT INTO ff.purged (execution_id, trim_at)
SELECT DISTINCT e.execution_id, CURRENT_TIMESTAMP + INTERVAL '7 days'
FROM ff.event AS e
WHERE e.execution_id IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM ff.execution AS x WHERE x.id = e.execution_id);

CREATE TABLE ff.worker (
    namespace TEXT NOT NULL,
    instance TEXT NOT NULL,
    name TEXT NOT NULL,
    lanes TEXT[] NOT NULL,
    capabilities TEXT[] NOT NULL,
    version TEXT NOT NULL,
    host TEXT NOT NULL,
    slots INTEGER NOT NULL CHECK (slots >= 0),
    busy INTEGER NOT NULL CHECK (busy >= 0),
    ttl_us BIGINT NOT NULL,
    registered_at TIMESTAMPTZ NOT NULL,
    seen_at TIMESTAMPTZ NOT NULL,
    expires_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (namespace, instance)
) WITH (fillfactor = 50);
CREATE INDEX worker_expires ON ff.worker (expires_at);
