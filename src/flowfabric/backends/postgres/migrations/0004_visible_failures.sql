-- The held executions, by kind. A hold reason may be too long for an index entry, so it is not in the index.
CREATE INDEX execution_held ON ff.execution (namespace, kind, id) WHERE hold_reason IS NOT NULL;
