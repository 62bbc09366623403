-- The title, details and values that an approver sees, as JSON text. Null without any of them.
ALTER TABLE ff.waitpoint ADD COLUMN prompt TEXT;
