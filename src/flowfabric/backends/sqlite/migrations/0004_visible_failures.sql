-- When to drop a key whose execution was purged before the key's window passed. Null while the execution is kept. The
-- index ff_submission_key_expires stays for processes of the previous release.
ALTER TABLE ff.submission_key ADD COLUMN drop_at INTEGER;
CREATE INDEX ff_submission_key_drop ON ff.submission_key (drop_at) WHERE drop_at IS NOT NULL;

-- The title, details and values that an approver sees, as JSON text. Null without any of them.
ALTER TABLE ff.waitpoint ADD COLUMN prompt TEXT;
