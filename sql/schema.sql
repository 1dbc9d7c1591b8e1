-- The extension in another schema, created anew in the same session. Promises:
-- section 4 (installable into any schema; relocatable = false).
SELECT extrelocatable FROM pg_extension WHERE extname = 'idem';
SELECT state, message FROM test.failure('ALTER EXTENSION idem SET SCHEMA test');
-- everything is in the extension's schema, and nothing else was touched
SELECT DISTINCT nspname FROM pg_depend d
JOIN (SELECT 'pg_proc'::regclass AS classid, oid, pronamespace AS nsp FROM pg_proc UNION ALL SELECT 'pg_class'::regclass, oid, relnamespace FROM pg_class UNION ALL SELECT 'pg_type'::regclass, oid, typnamespace FROM pg_type) o
  ON o.classid = d.classid AND o.oid = d.objid JOIN pg_namespace n ON n.oid = nsp
WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e' AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idem');

-- What this session has looked up before is gone with the extension.
SELECT test.answered('schema', 'k', '\x01') IS NOT NULL AS answered;
DROP EXTENSION idem;
SELECT count(*) FROM pg_class WHERE relname LIKE 'idem\_%';
SELECT count(*) FROM pg_proc WHERE proname LIKE 'idem\_%';
SELECT count(*) FROM pg_type WHERE typname LIKE 'idem\_%';
SELECT state FROM test.failure($$SELECT idem_reserve('schema', 'k', '\x01')$$);

-- A schema whose name needs quotes, and is not in the search_path: every function works when it is qualified.
CREATE SCHEMA "odd ""schema"" É.x";
CREATE EXTENSION idem SCHEMA "odd ""schema"" É.x";
SET search_path = pg_catalog;
SELECT outcome, token FROM "odd ""schema"" É.x".idem_reserve('schema', 'k', '\x01') \gset
\echo :outcome
SELECT "odd ""schema"" É.x".idem_complete('schema', 'k', :'token', 200, 'odd');
SELECT outcome, convert_from(body, 'UTF8') AS body FROM "odd ""schema"" É.x".idem_reserve('schema', 'k', '\x01');
SELECT outcome, token FROM "odd ""schema"" É.x".idem_reserve('schema', 'bytes', '\x01') \gset
SELECT "odd ""schema"" É.x".idem_complete_bytes('schema', 'bytes', :'token', 200, '\x00');
SELECT outcome, token FROM "odd ""schema"" É.x".idem_reserve('schema', 'json', request => '{"a": 1}') \gset
SELECT "odd ""schema"" É.x".idem_complete_json('schema', 'json', :'token', 200, '[]');
SELECT outcome, token FROM "odd ""schema"" É.x".idem_reserve('schema', 'released', '\x01') \gset
SELECT "odd ""schema"" É.x".idem_release('schema', 'released', :'token');
SELECT outcome FROM "odd ""schema"" É.x".idem_reserve('schema', 'held', '\x01', lease => '5 ms');
SELECT (SELECT state FROM "odd ""schema"" É.x".idem_lookup('schema', k)) FROM unnest('{k,json,released,none}'::text[]) k;
SELECT key, state FROM "odd ""schema"" É.x".idem_keys WHERE key <> 'held' ORDER BY key;
SELECT "odd ""schema"" É.x".idem_canonical_json('{"b": 1, "a": 1.0}'), "odd ""schema"" É.x".idem_canonical_fingerprint('{}') IS NOT NULL AS fingerprint, "odd ""schema"" É.x".idem_parse_key('"k"'), "odd ""schema"" É.x".idem_provider_key('c', 'k') IS NOT NULL AS provider_key;
DO $$ BEGIN WHILE (SELECT state FROM "odd ""schema"" É.x".idem_lookup('schema', 'held')) <> 'stale' LOOP PERFORM pg_sleep(0.001); END LOOP; END $$;
SELECT * FROM "odd ""schema"" É.x".idem_sweep();
CREATE ROLE regress_idem_schema;
SELECT "odd ""schema"" É.x".idem_grant('regress_idem_schema'), "odd ""schema"" É.x".idem_grant('regress_idem_schema', true);
SET ROLE regress_idem_schema;
SELECT outcome FROM "odd ""schema"" É.x".idem_reserve('schema', 'k', '\x02');
SELECT count(*) FROM "odd ""schema"" É.x".idem_keys;
RESET ROLE;
SELECT "odd ""schema"" É.x".idem_revoke('regress_idem_schema');
SELECT count(*) FROM pg_proc WHERE proname LIKE 'idem\_%' AND has_function_privilege('regress_idem_schema', oid, 'EXECUTE');
REVOKE USAGE ON SCHEMA "odd ""schema"" É.x" FROM regress_idem_schema;
DROP ROLE regress_idem_schema;
RESET search_path;

-- Created, used and dropped in one transaction; what was reserved there is gone, and commits nowhere.
DROP EXTENSION idem;
DROP SCHEMA "odd ""schema"" É.x";
CREATE SCHEMA other;
BEGIN;
CREATE EXTENSION idem SCHEMA other;
SELECT outcome FROM other.idem_reserve('schema', 'k', '\x01');
DROP EXTENSION idem;
COMMIT;
BEGIN;
CREATE EXTENSION idem SCHEMA other;
SELECT outcome FROM other.idem_reserve('schema', 'k', '\x01');
ROLLBACK;
BEGIN;
CREATE EXTENSION idem SCHEMA other;
SELECT outcome FROM other.idem_reserve('schema', 'k', '\x01');
SAVEPOINT a;
DROP EXTENSION idem;
CREATE EXTENSION idem;
SELECT outcome, attempt FROM idem_reserve('schema', 'k', '\x02');
ROLLBACK TO a;
SELECT outcome FROM other.idem_reserve('schema', 'k', '\x01');
COMMIT;
SELECT outcome FROM other.idem_reserve('schema', 'k', '\x01');
SELECT count(*) FROM other.idem_reminder_1;
DROP EXTENSION idem;
DROP SCHEMA other;

-- A table that is emptied in the transaction that created it is emptied in place.
CREATE SCHEMA other;
BEGIN;
CREATE EXTENSION idem SCHEMA other;
SELECT outcome, token FROM other.idem_reserve('schema', 'k', '\x01') \gset
TRUNCATE other.idem_key;
SELECT test.sqlstate(format('SELECT other.idem_complete(%L, %L, %L, 200)', 'schema', 'k', :'token'));
SELECT outcome, attempt FROM other.idem_reserve('schema', 'k 2', '\x02');
TRUNCATE other.idem_key;
COMMIT;
SELECT count(*) FROM other.idem_reminder_1;
DROP EXTENSION idem;
BEGIN;
CREATE EXTENSION idem SCHEMA other;
SELECT outcome, token FROM other.idem_reserve('schema', 'k', '\x01') \gset
TRUNCATE other.idem_key;
SELECT other.idem_complete('schema', 'k', :'token', 200);
ROLLBACK;
DROP SCHEMA other;

-- Columns that a transaction adds after its last call: at its end, the rows are not ours to read any more.
CREATE SCHEMA other;
CREATE EXTENSION idem SCHEMA other;
BEGIN;
SELECT outcome FROM other.idem_reserve('schema', 'k', '\x01');
DO $$ BEGIN
    EXECUTE 'ALTER TABLE other.idem_key ' || (SELECT string_agg(format('ADD x%s int DEFAULT 1', i), ', ') FROM generate_series(1, 300) i);
END $$;
COMMIT;
SELECT count(*) FROM other.idem_key;
SELECT count(*) FROM other.idem_reminder_1;
SELECT test.sqlstate($$SELECT other.idem_reserve('schema', 'k', '\x01')$$);
DROP EXTENSION idem;
DROP SCHEMA other;

-- An object of the same name is neither taken over nor overwritten.
CREATE TABLE idem_key (mine int);
SELECT state, message FROM test.failure('CREATE EXTENSION idem');
TABLE idem_key;
DROP TABLE idem_key;
CREATE FUNCTION idem_release(client text, key text, token uuid) RETURNS void LANGUAGE sql AS 'SELECT';
SELECT state FROM test.failure('CREATE EXTENSION idem');
DROP FUNCTION idem_release;

-- As it was, for the tests that follow.
CREATE EXTENSION idem;
SELECT outcome, attempt FROM idem_reserve('schema', 'k', '\x03');
