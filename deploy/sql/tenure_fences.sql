-- Fences in PostgreSQL for any driver: tenure_raise and tenure_hold, over the same rows as PostgresFence of the
-- crate tenure-stores. Run it once, as a migration, in the schema that holds what is fenced; again, it changes nothing.
--
--   SELECT tenure_raise('reports', 12, 0);    -- once, before the first read, with the token (term, step) of the lease
--   BEGIN;
--   SELECT tenure_hold('reports', 12, 0);     -- in each transaction, before its first read
--   INSERT INTO reports …;
--   COMMIT;
--
-- SQLSTATE TN001: a newer holder has raised the fence; stop. SQLSTATE TN002: the database has forgotten that the fence
-- was raised to this token (a restored backup, a replica that was promoted): raise it again, and read again.

CREATE TABLE IF NOT EXISTS tenure_fences (
    resource text PRIMARY KEY, term numeric(20, 0) NOT NULL, step numeric(20, 0) NOT NULL);

-- Opens a resource for the holder of a token. Waits for transactions that an older holder has in flight.
CREATE OR REPLACE FUNCTION tenure_raise(resource text, term numeric, step numeric) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    found_term numeric;
    found_step numeric;
BEGIN
    INSERT INTO tenure_fences AS fence (resource, term, step) VALUES ($1, $2, $3)
        ON CONFLICT (resource) DO UPDATE SET term = excluded.term, step = excluded.step
            WHERE (fence.term, fence.step) <= (excluded.term, excluded.step);
    IF FOUND THEN
        RETURN;
    END IF;
    SELECT term, step INTO found_term, found_step FROM tenure_fences WHERE resource = $1;
    RAISE EXCEPTION 'refused: token %.% is below the fence''s %.% on "%"', $2, $3, found_term, found_step, $1
        USING ERRCODE = 'TN001', HINT = 'A newer holder has raised the fence: stop.';
END
$$;

-- Lets a transaction through if the fence has this very token, and keeps newer holders waiting until it ends.
CREATE OR REPLACE FUNCTION tenure_hold(resource text, term numeric, step numeric) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    found_term numeric;
    found_step numeric;
BEGIN
    SELECT term, step INTO found_term, found_step FROM tenure_fences WHERE resource = $1 FOR SHARE;
    IF (found_term, found_step) = ($2, $3) THEN
        RETURN;
    END IF;
    IF (found_term, found_step) > ($2, $3) THEN
        RAISE EXCEPTION 'refused: token %.% is below the fence''s %.% on "%"', $2, $3, found_term, found_step, $1
            USING ERRCODE = 'TN001', HINT = 'A newer holder has raised the fence: stop.';
    END IF;
    RAISE EXCEPTION 'the raise of the fence on "%" to token %.% was lost: the database has lost writes', $1, $2, $3
        USING ERRCODE = 'TN002', HINT = 'Raise the fence again, and read again before you write.';
END
$$;
