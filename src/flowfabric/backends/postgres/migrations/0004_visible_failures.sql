-- Who changed the state of a lane, and why. Null if an earlier release changed it.
ALTER TABLE ff.lane ADD COLUMN principal TEXT;
ALTER TABLE ff.lane ADD COLUMN reason TEXT;

-- Who submitted an execution. Null if the submission did not say.
ALTER TABLE ff.execution ADD COLUMN creator TEXT;
