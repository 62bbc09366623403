-- The schema of the payloads that the waiting code can read, as JSON text. Null if it is not known.
ALTER TABLE ff.waitpoint ADD COLUMN payload_schema TEXT;
