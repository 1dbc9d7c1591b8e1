-- Creates the extension for the tests that follow, in the same database, and
-- what they share. Promises: section 4 (installable; its functions are there).
CREATE EXTENSION idem;
SELECT extversion, nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = extnamespace WHERE extname = 'idem';

-- A lease that is meant to be live stays so on the slowest machine.
DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET idem.lease = ''10 min''', current_database()); END $$;

CREATE SCHEMA test;

-- How a statement ends: its SQLSTATE and what is said with it; 00000 is success.
CREATE FUNCTION test.failure(command text, OUT state text, OUT message text, OUT detail text, OUT hint text) LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE command;
    state := '00000';
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
END $$;

CREATE FUNCTION test.sqlstate(command text) RETURNS text LANGUAGE sql AS $$ SELECT state FROM test.failure(command) $$;

-- Lets time pass for one key, all at once: the same as if everything about it
-- had happened that much earlier.
CREATE FUNCTION test.age(a_client text, a_key text, span interval) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE public.idem_key SET created_at = created_at - span, began_at = began_at - span, lease_until = lease_until - span,
           expires_at = expires_at - span, completed_at = completed_at - span
     WHERE client = a_client AND key = a_key;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no key % of %', a_key, a_client;
    END IF;
    UPDATE public.idem_reminder_1 SET lease_until = lease_until - span WHERE client = a_client AND key = a_key;
    UPDATE public.idem_reminder_2 SET lease_until = lease_until - span WHERE client = a_client AND key = a_key;
END $$;

-- Waits until a key is in this state; a minute means that it never will be.
CREATE FUNCTION test.await(a_client text, a_key text, a_state text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    since timestamptz := clock_timestamp();
BEGIN
    WHILE (public.idem_lookup(a_client, a_key)).state <> a_state LOOP
        IF clock_timestamp() > since + interval '1 min' THEN
            RAISE EXCEPTION 'key % of % does not become %', a_key, a_client, a_state;
        END IF;
        PERFORM pg_sleep(0.001);
    END LOOP;
    RETURN a_state;
END $$;

-- A function for idem_call. (PostgreSQL's own from jsonb to jsonb differ between versions.)
CREATE FUNCTION test.without_nulls(request jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT pg_catalog.jsonb_strip_nulls(request) $$;

-- Reserves and answers a key.
CREATE FUNCTION test.answered(client text, key text, fp bytea, status_code int DEFAULT 200, body text DEFAULT 'done', headers jsonb DEFAULT NULL)
RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE
    r record;
BEGIN
    r := public.idem_reserve(client, key, fp);
    IF r.outcome <> 'new' THEN
        RAISE EXCEPTION 'key % of % is not new: %', key, client, r.outcome;
    END IF;
    PERFORM public.idem_complete(client, key, r.token, status_code, body, headers);
    RETURN r.token;
END $$;

-- A row in full, to see that a call left it alone: its place and its inserting
-- and locking transaction too.
CREATE FUNCTION test.row(a_client text, a_key text) RETURNS text LANGUAGE sql AS $$
    SELECT concat_ws(' ', k.ctid, k.xmin, k.xmax, k) FROM public.idem_key k WHERE client = a_client AND key = a_key
$$;
