-- The tables of Tenure's PostgreSQL store: one row per lease. PostgreSQL 12 or later.
--
-- A process creates them on its first acquisition, in the schema that its store URL names (`public`
-- if it names none). If its role may not, run this as one that may, and grant that role
--
--     GRANT SELECT, INSERT, UPDATE ON tenure_leases TO app;
--     GRANT SELECT ON tenure_terms TO app;
--
-- It may be run again; it drops nothing but triggers that it creates anew. No clock decides
-- anything here: `acquired` and `renewed` are for people.

CREATE TABLE IF NOT EXISTS tenure_leases (
    name          text PRIMARY KEY,
    -- The version of this record; a release that does not know it leaves it alone.
    format        integer NOT NULL DEFAULT 1,
    -- The fencing token of the last tenure. A lease's terms only ever rise.
    term          numeric(20, 0) NOT NULL CHECK (term >= 0),
    -- Who holds it, as NAME#INCARNATION; NULL once it was released.
    owner         text,
    -- The id of the attempt that won it; NULL if it is not one of ours.
    claim         text,
    -- What the last renewal wrote.
    nonce         text,
    -- The session that an attached lease lives and dies with.
    session_name  text,
    session_term  numeric(20, 0),
    ttl_ms        bigint NOT NULL CHECK (ttl_ms > 0),
    -- Bytes that outlive the tenure.
    note          bytea NOT NULL DEFAULT '',
    acquired      timestamptz NOT NULL DEFAULT clock_timestamp(),
    renewed       timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (
    -- A renewal rewrites its row in the same page (no index changes); vacuum early, it is cheap.
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000
);

-- The highest term among deleted rows: a lease that is created again starts above it, even if the
-- server's clock, which first terms come from, has gone back.
CREATE TABLE IF NOT EXISTS tenure_terms (
    one   boolean PRIMARY KEY DEFAULT true CHECK (one),
    term  numeric(20, 0) NOT NULL
);

-- Whoever changes the owner by hand and nothing else takes the lease: its holder's next renewal
-- must not find its own nonce there.
CREATE OR REPLACE FUNCTION tenure_lease_seized() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.owner IS DISTINCT FROM OLD.owner AND NEW.claim IS NOT DISTINCT FROM OLD.claim THEN
        NEW.claim := NULL;
        NEW.nonce := NULL;
        NEW.session_name := NULL;
        NEW.session_term := NULL;
    END IF;
    RETURN NEW;
END $$;

-- Wakes those who wait when a tenure ends, whoever ended it: NOTIFY tenure_leases with the lease's
-- name, or with nothing for all of them. A renewal does not come here.
CREATE OR REPLACE FUNCTION tenure_lease_ended() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    highest numeric;
BEGIN
    IF TG_OP = 'UPDATE' THEN
        IF OLD.owner IS NOT NULL
            AND (NEW.owner, NEW.claim) IS DISTINCT FROM (OLD.owner, OLD.claim)
        THEN
            PERFORM pg_notify('tenure_leases', OLD.name);
        END IF;
        RETURN NULL;
    END IF;
    IF TG_OP = 'DELETE' THEN
        highest := OLD.term;
        PERFORM pg_notify('tenure_leases', OLD.name);
    ELSE
        EXECUTE format('SELECT max(term) FROM %I.%I', TG_TABLE_SCHEMA, TG_TABLE_NAME)
            INTO highest;
        PERFORM pg_notify('tenure_leases', '');
    END IF;
    IF highest IS NOT NULL THEN
        EXECUTE format(
            'INSERT INTO %I.tenure_terms AS t (term) VALUES ($1)
             ON CONFLICT (one) DO UPDATE SET term = greatest(t.term, excluded.term)',
            TG_TABLE_SCHEMA) USING highest;
    END IF;
    RETURN NULL;
END $$;

DROP TRIGGER IF EXISTS tenure_seized ON tenure_leases;
CREATE TRIGGER tenure_seized BEFORE UPDATE OF owner ON tenure_leases
    FOR EACH ROW EXECUTE FUNCTION tenure_lease_seized();

DROP TRIGGER IF EXISTS tenure_ended ON tenure_leases;
CREATE TRIGGER tenure_ended AFTER UPDATE OF owner OR DELETE ON tenure_leases
    FOR EACH ROW EXECUTE FUNCTION tenure_lease_ended();

DROP TRIGGER IF EXISTS tenure_emptied ON tenure_leases;
CREATE TRIGGER tenure_emptied BEFORE TRUNCATE ON tenure_leases
    FOR EACH STATEMENT EXECUTE FUNCTION tenure_lease_ended();
