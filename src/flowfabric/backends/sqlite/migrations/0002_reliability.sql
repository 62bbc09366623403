-- The era of event positions, and a position that was read.
ALTER TABLE ff.store ADD COLUMN era INTEGER NOT NULL DEFAULT 0;
ALTER TABLE ff.store ADD COLUMN known_id INTEGER NOT NULL DEFAULT 0;

-- Each era begins when the store went back to an earlier state. Events after the start may differ from those that
-- subscribers of earlier eras have read.
CREATE TABLE ff.era (
    number INTEGER NOT NULL PRIMARY KEY,
    start_id INTEGER NOT NULL,
    noted_at INTEGER NOT NULL
) STRICT;

-- The file that the store was last written in, as `device:inode`. If it differs, the store was copied or moved.
ALTER TABLE ff.store ADD COLUMN file TEXT;
-- The value of newest_at before the last transaction. It proves that a log belongs to the database next to it.
ALTER TABLE ff.clock ADD COLUMN previous_at INTEGER;

-- The id of a suspension recognizes a repeated suspend, also one that kept its lease.
CREATE UNIQUE INDEX ff_suspension_id ON ff.suspension (execution_id, id);

-- The boot of the host in which a time was last stored, and that time minus the time since the boot.
ALTER TABLE ff.clock ADD COLUMN boot_id TEXT NOT NULL DEFAULT '';
ALTER TABLE ff.clock ADD COLUMN boot_offset_us INTEGER NOT NULL DEFAULT 0;

-- True if a testing kit created the store, so that its time may move as a test demands.
ALTER TABLE ff.store ADD COLUMN is_test INTEGER NOT NULL DEFAULT 0;
