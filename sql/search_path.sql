-- A search_path made by somebody hostile changes nothing. Promises: section 4 (the
-- calls), rule 1 (the unique index decides): names are looked up nowhere but in the
-- extension's own schema and in pg_catalog.
CREATE SCHEMA evil;
-- Functions, operators, types and tables of the names that are used inside; each says when it is reached.
CREATE FUNCTION evil.trap() RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'the trap was reached'; END $$;
DO $$
DECLARE
    compared text;
    operator text;
BEGIN
    FOREACH compared IN ARRAY '{text,name,bytea,jsonb,timestamptz,interval,uuid,bool,int4,int8,oid}'::text[] LOOP
        EXECUTE format('CREATE FUNCTION evil.compare(pg_catalog.%1$I, pg_catalog.%1$I) RETURNS boolean LANGUAGE sql AS ''SELECT evil.trap() IS NULL''', compared);
        FOREACH operator IN ARRAY '{=,<>,<,<=,>,>=}'::text[] LOOP
            EXECUTE format('CREATE OPERATOR evil.%s (LEFTARG = pg_catalog.%I, RIGHTARG = pg_catalog.%2$I, FUNCTION = evil.compare)', operator, compared);
        END LOOP;
    END LOOP;
END $$;
CREATE FUNCTION evil.count() RETURNS bigint LANGUAGE sql AS $$ SELECT evil.trap()::bigint $$;
CREATE FUNCTION evil.format(text, VARIADIC text[]) RETURNS text LANGUAGE sql AS $$ SELECT evil.trap() $$;
CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ SELECT evil.trap()::timestamptz $$;
CREATE FUNCTION evil.now() RETURNS timestamptz LANGUAGE sql AS $$ SELECT evil.trap()::timestamptz $$;
CREATE FUNCTION evil.sha256(bytea) RETURNS bytea LANGUAGE sql AS $$ SELECT evil.trap()::bytea $$;
CREATE FUNCTION evil.octet_length(bytea) RETURNS int LANGUAGE sql AS $$ SELECT evil.trap()::int $$;
CREATE FUNCTION evil.octet_length(text) RETURNS int LANGUAGE sql AS $$ SELECT evil.trap()::int $$;
CREATE FUNCTION evil.idem_pinned_client() RETURNS text LANGUAGE sql AS $$ SELECT evil.trap() $$;
CREATE FUNCTION evil.gen_random_uuid() RETURNS uuid LANGUAGE sql AS $$ SELECT evil.trap()::uuid $$;
CREATE DOMAIN evil.text AS pg_catalog.text CHECK (evil.trap() IS NULL);
CREATE DOMAIN evil.idem_outcome AS pg_catalog.text CHECK (evil.trap() IS NULL);
CREATE TYPE evil.idem_reservation AS (outcome int);
CREATE TABLE evil.idem_key (client int);
CREATE TEMP TABLE idem_key (LIKE public.idem_key);
CREATE TEMP TABLE idem_reminder_1 (LIKE public.idem_reminder_1);
CREATE TEMP TABLE idem_reminder_2 (LIKE public.idem_reminder_2);
CREATE TEMP TABLE idem_state (LIKE public.idem_state);
CREATE TEMP TABLE idem_keys (client int);
CREATE TEMP TABLE pg_class (oid oid);
CREATE TEMP TABLE pg_proc (oid oid);
-- which functions are called from here on
SET track_functions = 'all';
CREATE TEMP VIEW of_idem AS
    SELECT p.oid, p.proname FROM pg_catalog.pg_proc p JOIN pg_depend d ON d.objid = p.oid AND d.classid = 'pg_catalog.pg_proc'::regclass AND d.deptype = 'e'
      JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'idem' AND d.refclassid = 'pg_extension'::regclass;
SELECT count(pg_stat_reset_single_function_counters(oid)) > 20 AS functions FROM of_idem;

SET search_path = pg_temp, evil, pg_catalog;
SELECT outcome, token FROM public.idem_reserve('path', 'k', '\x01') \gset
\echo :outcome
SELECT outcome FROM public.idem_reserve('path', 'k', '\x01');
SELECT outcome FROM public.idem_reserve('path', 'k', '\x02');
SELECT public.idem_complete('path', 'k', :'token', 200, 'path');
SELECT outcome, pg_catalog.convert_from(body, 'UTF8') AS body FROM public.idem_reserve('path', 'k', '\x01');
SELECT outcome, token FROM public.idem_reserve('path', 'json', request => '{"a": 1}') \gset
SELECT public.idem_complete_json('path', 'json', :'token', 200, '{}');
SELECT outcome, token FROM public.idem_reserve('path', 'released', '\x01') \gset
SELECT public.idem_release('path', 'released', :'token');
SELECT outcome FROM public.idem_reserve('path', 'stale', '\x01', lease => '1 ms', retention => '1 h');
SELECT state FROM public.idem_lookup('path', 'k');
SELECT key, state, body_bytes FROM public.idem_keys WHERE client OPERATOR(pg_catalog.=) 'path' AND key OPERATOR(pg_catalog.<>) 'stale' ORDER BY key;
SELECT outcome, token FROM public.idem_reserve('path', 'steps', request => '{"a": 1}') \gset
SELECT public.idem_renew('path', 'steps', :'token') IS NOT NULL AS renewed;
SELECT public.idem_checkpoint('path', 'steps', :'token', 'point', '{"b": 2}');
SELECT pg_catalog.strpos(public.idem_explain('path', 'steps', request => '{"a": 2}'), 'a: 1') OPERATOR(pg_catalog.>) 0 AS explained;
SELECT public.idem_once('path', 'mark'), public.idem_once('path', 'mark');
SELECT * FROM public.idem_once_batch('path', '{b,mark,a}');
SELECT outcome, status_code FROM public.idem_call('path', 'call', 'test.without_nulls(pg_catalog.jsonb)', '{"a": null}');
SELECT public.idem_complete_bytes('path', 'steps', :'token', 200, '\x00', '{}');
SELECT public.idem_pinned_client() IS NULL AS not_pinned, public.idem_canonical_fingerprint('{}') IS NOT NULL AS fingerprint;
SELECT pg_catalog.count(*) OPERATOR(pg_catalog.>) 0 AS stat FROM public.idem_stat;
SELECT pg_catalog.count(*) OPERATOR(pg_catalog.>) 0 AS health FROM public.idem_health();
SELECT public.idem_stat_reset();
SELECT public.idem_canonical_json('{"a": 1.0}', '{$.a}', '{$.b}'), public.idem_parse_key('k'), public.idem_provider_key('c', 'k') IS NOT NULL AS provider_key;
CREATE ROLE regress_idem_path;
SELECT public.idem_grant('regress_idem_path'), public.idem_grant('regress_idem_path', true), public.idem_revoke('regress_idem_path');
REVOKE USAGE ON SCHEMA public FROM regress_idem_path;
DROP ROLE regress_idem_path;
-- a takeover, an expiry, a sweep
RESET search_path;
SELECT test.age('path', 'stale', '1 min');
SET search_path = pg_temp, evil, pg_catalog;
SELECT expired IS NOT NULL AS swept FROM public.idem_sweep();
SELECT key, attempt FROM public.idem_claim_stale(client => 'path', lease => '1 ms');
RESET search_path;
SELECT test.age('path', 'stale', '1 min');
SET search_path = pg_temp, evil, pg_catalog;
SELECT outcome, attempt FROM public.idem_reserve('path', 'stale', '\x01');
SELECT public.idem_forget('path', 'stale'), public.idem_forget('path', 'none');
BEGIN;
SELECT outcome FROM public.idem_reserve('path', 'wait', '\x01');
PREPARE TRANSACTION 'path';
ROLLBACK PREPARED 'path';
RESET search_path;
-- no function was left out
SELECT pg_stat_force_next_flush();
SELECT proname AS not_called FROM of_idem f WHERE NOT EXISTS (SELECT FROM pg_stat_user_functions s WHERE s.funcid = f.oid AND s.calls > 0);
RESET track_functions;
DROP VIEW of_idem;
-- nothing has got into the tables of the same names
SELECT (SELECT count(*) FROM pg_temp.idem_key) + (SELECT count(*) FROM evil.idem_key) + (SELECT count(*) FROM pg_temp.idem_reminder_1) + (SELECT count(*) FROM pg_temp.idem_reminder_2) + (SELECT count(*) FROM pg_temp.idem_state) AS caught;
DROP TABLE pg_temp.pg_class, pg_temp.pg_proc, pg_temp.idem_key, pg_temp.idem_keys, pg_temp.idem_reminder_1, pg_temp.idem_reminder_2, pg_temp.idem_state;

-- No search_path at all.
SET search_path = '';
SELECT outcome FROM public.idem_reserve('path', 'empty', '\x01');
SELECT count(*) FROM public.idem_keys WHERE client = 'path' AND key = 'empty';
RESET search_path;

-- The extension is created under a hostile path, too, by one who has temporary types and tables of the same names.
DROP EXTENSION idem;
CREATE DOMAIN pg_temp.text AS pg_catalog.text CHECK (evil.trap() IS NULL);
CREATE DOMAIN pg_temp.timestamptz AS pg_catalog.timestamptz CHECK (evil.trap() IS NULL);
CREATE DOMAIN pg_temp.uuid AS pg_catalog.uuid CHECK (evil.trap() IS NULL);
CREATE DOMAIN pg_temp.idem_outcome AS pg_catalog.text CHECK (evil.trap() IS NULL);
CREATE TEMP TABLE idem_key (client int);
CREATE TEMP TABLE idem_reminder_1 (client int);
CREATE TEMP TABLE idem_keys (client int);
SET search_path = pg_temp, evil, pg_catalog;
CREATE EXTENSION idem SCHEMA public;
RESET search_path;
SET client_min_messages = warning;
DROP SCHEMA evil CASCADE;
DROP DOMAIN pg_temp.text, pg_temp.timestamptz, pg_temp.uuid, pg_temp.idem_outcome CASCADE;
DROP TABLE pg_temp.idem_key, pg_temp.idem_reminder_1, pg_temp.idem_keys;
RESET client_min_messages;
SELECT outcome FROM idem_reserve('path', 'created', '\x01');
SELECT key FROM idem_keys;
