-- The file that the store was last written in, as `device:inode`. If it differs, the store was copied or moved.
ALTER TABLE ff.store ADD COLUMN file TEXT;
-- The value of newest_at before the last transaction. It proves that a log belongs to the database next to it.
ALTER TABLE ff.clock ADD COLUMN previous_at INTEGER;
