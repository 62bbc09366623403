-- Who changed the state of a lane, and why. Null if an earlier release changed it.
ALTER TABLE ff.lane ADD COLUMN principal TEXT;
ALTER TABLE ff.lane ADD COLUMN reason TEXT;
