-- The key ring. `in_use` matters for retired keys: an open waitpoint keeps the key that signed its token.

-- fragment: signing_key
    k.kid, k.check_value, k.secret, k.created_at, k.retired_at, k.verifies_until, k.end_is_final, k.collected_at,
    -- EXISTS might be planned as a scan of all open waitpoints.
    k.retired_at IS NOT NULL AND k.collected_at IS NULL AND (
        SELECT w.kid
        FROM ff.waitpoint AS w
        WHERE w.kid = k.kid
            AND w.closed_at IS NULL
        ORDER BY w.kid
        LIMIT 1
    ) IS NOT NULL AS in_use

-- name: key_ring
SELECT
    {signing_key}, {told_time} AS now
FROM ff.signing_key AS k
ORDER BY k.created_at, k.kid

-- name: lock_keys
SELECT k.kid
FROM ff.signing_key AS k
ORDER BY k.created_at, k.kid
FOR NO KEY UPDATE

-- name: share_active_key
WITH shared AS (
    SELECT k.kid
    FROM ff.signing_key AS k
    WHERE k.active
    FOR SHARE
)
SELECT
    {signing_key}, k.kid IN (SELECT shared.kid FROM shared) AS shared
FROM ff.signing_key AS k
ORDER BY k.created_at, k.kid

-- name: add_signing_key
INSERT INTO ff.signing_key (
    kid, check_value, secret, created_at, retired_at, verifies_until, end_is_final, collected_at, active
)
VALUES (
    :kid, :check_value, :secret, :created_at, :retired_at, :verifies_until, :end_is_final, :collected_at, :active
)
ON CONFLICT DO NOTHING
RETURNING kid

-- name: change_signing_key
UPDATE ff.signing_key
SET
    secret = :secret,
    retired_at = :retired_at,
    verifies_until = :verifies_until,
    end_is_final = :end_is_final,
    collected_at = :collected_at,
    active = :active
WHERE kid = :kid

-- name: count_cut_off
SELECT COUNT(*) AS count
FROM ff.waitpoint AS w
WHERE w.kid = :kid
    AND w.closed_at IS NULL
    AND (w.expires_at IS NULL OR w.expires_at > :end)
    AND (w.token_ends_at IS NULL OR w.token_ends_at > :end)
