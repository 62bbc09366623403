-- The boot of the host in which a time was last stored, and that time minus the time since the boot.
ALTER TABLE ff.clock ADD COLUMN boot_id TEXT NOT NULL DEFAULT '';
ALTER TABLE ff.clock ADD COLUMN boot_offset_us INTEGER NOT NULL DEFAULT 0;

-- True if a testing kit created the store, so that its time may move as a test demands.
ALTER TABLE ff.store ADD COLUMN is_test INTEGER NOT NULL DEFAULT 0;
