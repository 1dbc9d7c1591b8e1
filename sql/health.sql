-- Whether all is well. Promises: section 4 (idem_health: check_name, ok, detail, remedy).
-- What takes a restart is in t/032_stat.pl.

CREATE VIEW unwell AS SELECT check_name, detail, remedy FROM idem_health() WHERE NOT ok;
CREATE FUNCTION of(a_name text) RETURNS text LANGUAGE sql AS $$ SELECT format('%s: %s', ok, detail) FROM idem_health() WHERE check_name = a_name $$;

-- The tests sweep by hand, and their server does without fsync; nothing else is to be said. A remedy comes with what is not well, and only with it.
SELECT check_name, ok, remedy IS NOT NULL AS remedy FROM idem_health();
SELECT count(*) FILTER (WHERE detail IS NULL) AS no_detail, count(*) FILTER (WHERE ok = (remedy IS NOT NULL)) AS odd FROM idem_health();
SELECT * FROM unwell;

-- Pins that do not hold, without a word of whose keys they are.
CREATE ROLE regress_idem_pinned;
CREATE ROLE regress_idem_super SUPERUSER;
ALTER ROLE regress_idem_pinned SET idem.client = 'secret client';
SELECT of('client_pins');
ALTER ROLE regress_idem_super SET idem.client = 'secret client';
GRANT SELECT ON idem_key TO regress_idem_pinned;
SELECT * FROM unwell WHERE check_name = 'client_pins';
REVOKE SELECT ON idem_key FROM regress_idem_pinned;
ALTER ROLE regress_idem_super RESET idem.client;
ALTER ROLE regress_idem_pinned SET idem.client = '';
SELECT of('client_pins');
DO $$ BEGIN EXECUTE format('ALTER ROLE regress_idem_pinned SET idem.client = %L', repeat('c', 256)); END $$;
SELECT of('client_pins');
ALTER ROLE regress_idem_pinned RESET idem.client;
DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET idem.client = %L', current_database(), 'x'); END $$;
SELECT of('client_pins');
DO $$ BEGIN EXECUTE format('ALTER DATABASE %I RESET idem.client', current_database()); END $$;
SELECT of('client_pins');
DROP ROLE regress_idem_pinned, regress_idem_super;

-- Autovacuum that was switched off for the table, and rows that wait for it.
ALTER TABLE idem_key SET (autovacuum_enabled = off);
SELECT * FROM unwell WHERE check_name = 'autovacuum';
ALTER TABLE idem_key RESET (autovacuum_enabled);
SELECT check_name FROM unwell;

-- A table much larger than what is in it.
SELECT of('table_size') LIKE 't: %' AS well;
BEGIN;
ALTER TABLE idem_key SET (fillfactor = 10);
DO $$ BEGIN PERFORM idem_once_batch('health', array_agg('health ' || i || repeat('x', 800))) FROM generate_series(1, 6000) i; END $$;
SELECT count(*) FROM idem_sweep();
SELECT of('table_size') LIKE 't: %' AS as_its_fillfactor_says;
DELETE FROM idem_key WHERE client = 'health';
SELECT count(*) FROM idem_sweep();
SELECT regexp_replace(detail, '\d+ (bytes|kB|MB)', '#', 'g') AS detail, remedy FROM unwell WHERE check_name = 'table_size';
ROLLBACK;
-- a VACUUM gives the end of the table back
VACUUM idem_key;
SELECT count(*) FROM idem_sweep();
SELECT check_name FROM unwell;

-- A search_path of the caller's changes nothing.
CREATE SCHEMA hostile;
CREATE FUNCTION hostile.count() RETURNS bigint LANGUAGE sql AS 'SELECT 77::bigint';
CREATE TABLE hostile.pg_db_role_setting (setrole oid, setdatabase oid, setconfig text[]);
INSERT INTO hostile.pg_db_role_setting VALUES (0, 0, '{idem.client=x}');
SET search_path = hostile, pg_catalog, public;
SELECT public.of('client_pins') IS NOT NULL AS answered;
SELECT ok FROM public.idem_health() WHERE check_name = 'client_pins';
RESET search_path;
DROP SCHEMA hostile CASCADE;
DROP FUNCTION of(text);
DROP VIEW unwell;
