-- Listings: the newest rows of each state, merged. Without filters, the cost of a page does not depend on the size of
-- the table. A selective filter has to read the rows that it skips.

-- fragment: listing
    AND e.id >= :first
    AND e.id < :before
    AND (:lane::TEXT IS NULL OR e.lane = :lane)
    AND (:kind::TEXT IS NULL OR e.kind = :kind)
    AND (:tags::JSONB IS NULL OR e.tags @> :tags::JSONB)
    AND (:created_from::TIMESTAMPTZ IS NULL OR e.created_at >= :created_from)
    AND (:created_until::TIMESTAMPTZ IS NULL OR e.created_at < :created_until)
ORDER BY e.id DESC
LIMIT :limit

-- name: list_executions
SELECT
{execution}
FROM unnest(:states::TEXT[]) AS wanted (state)
CROSS JOIN LATERAL (
    SELECT
    {execution}
    FROM ff.execution AS e
    WHERE e.namespace = :namespace
        AND e.state = wanted.state
    {listing}
) AS e
ORDER BY e.id DESC
LIMIT :limit

-- name: estimate_in_state
SELECT (c.reltuples * fraction.of_state * fraction.of_namespace)::BIGINT AS count
FROM pg_class AS c
CROSS JOIN (
    SELECT
        COALESCE(MAX(s.most_common_freqs[array_position(s.most_common_vals::TEXT::TEXT[], :state)])
            FILTER (WHERE s.attname = 'state'), 0) AS of_state,
        COALESCE(MAX(s.most_common_freqs[array_position(s.most_common_vals::TEXT::TEXT[], :namespace)])
            FILTER (WHERE s.attname = 'namespace'), 0) AS of_namespace
    FROM pg_stats AS s
    WHERE s.schemaname = :schema
        AND s.tablename = 'execution'
) AS fraction
WHERE c.relname = 'execution'
    AND c.relnamespace = (SELECT n.oid FROM pg_namespace AS n WHERE n.nspname = :schema)
