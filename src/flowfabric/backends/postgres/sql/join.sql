-- Additional statements for a transaction of the caller, and for user code in a transaction of the engine.

-- name: inspect_joined
SELECT
    current_database() AS database,
    current_setting('transaction_read_only') = 'on' AS read_only,
    EXISTS (
        SELECT 1
        FROM pg_catalog.pg_class AS c
        JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
        WHERE n.nspname = :schema
            AND c.relname = 'execution'
    ) AS has_schema

-- name: wake
SELECT pg_notify(:channel, :payload)

-- name: begin_user_code
SELECT pg_current_xact_id()::TEXT AS xid

-- name: end_user_code
SELECT
    clock_timestamp() AS now,
    set_config('synchronous_commit', 'on', TRUE),
    pg_current_xact_id()::TEXT AS xid
