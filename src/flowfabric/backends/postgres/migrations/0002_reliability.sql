-- True if a testing kit created the store, so that its time may move as a test demands.
ALTER TABLE ff.store ADD COLUMN is_test BOOLEAN NOT NULL DEFAULT FALSE;
