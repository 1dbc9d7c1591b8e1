-- What an administrator does to the tables in between. Promises: section 4, rules 1
-- and 9; section 5 (every error has its SQLSTATE).

-- Truncated twice in the transaction that reserved.
BEGIN;
TRUNCATE idem_key;
SELECT token AS t FROM idem_reserve('meddle', 'k', '\x01') \gset
TRUNCATE idem_key;
SAVEPOINT s;
SELECT idem_complete('meddle', 'k', :'t', 200);
ROLLBACK TO s;
SELECT outcome FROM idem_reserve('meddle', 'k', '\x02');
COMMIT;
SELECT state FROM idem_lookup('meddle', 'k');

-- Another table under the name by the time of the commit: no reminder, no harm.
BEGIN;
ALTER TABLE idem_key SET (fillfactor = 92);
SELECT outcome FROM idem_reserve('meddle', 'renamed', '\x01');
ALTER TABLE idem_key RENAME TO idem_key_away;
CREATE TABLE idem_key (a int, b int);
INSERT INTO idem_key SELECT i, i FROM generate_series(1, 1000) i;
SAVEPOINT s;
SELECT outcome FROM idem_reserve('meddle', 'k', '\x01');
ROLLBACK TO s;
SELECT count(*) FROM idem_key_away WHERE key = 'renamed';
DROP TABLE idem_key;
ALTER TABLE idem_key_away RENAME TO idem_key;
COMMIT;
SELECT state FROM idem_lookup('meddle', 'renamed');

-- A primary key that is not the one expected is refused, not searched.
BEGIN;
ALTER TABLE idem_key DROP CONSTRAINT idem_key_pkey, ADD PRIMARY KEY (key, client);
SELECT test.sqlstate('SELECT idem_reserve(''meddle'', ''k'', ''\x01'')');
ALTER TABLE idem_key DROP CONSTRAINT idem_key_pkey;
SELECT (test.failure('SELECT idem_lookup(''meddle'', ''k'')')).*;
ROLLBACK;

-- So are a table with other columns and one that is partitioned, from the next call on.
SELECT outcome FROM idem_reserve('meddle', 'looked at', '\x01');
BEGIN;
ALTER TABLE idem_key ADD COLUMN more int;
SELECT test.sqlstate('SELECT idem_reserve(''meddle'', ''k'', ''\x01'')');
ROLLBACK;
BEGIN;
ALTER EXTENSION idem DROP VIEW idem_keys;
DROP VIEW idem_keys;
ALTER TABLE idem_key ALTER COLUMN lost_tokens TYPE text[];
SELECT test.sqlstate('SELECT idem_reserve(''meddle'', ''k'', ''\x01'')');
ROLLBACK;
BEGIN;
ALTER TABLE idem_key RENAME TO idem_key_away;
CREATE TABLE idem_key (LIKE idem_key_away, PRIMARY KEY (client, key)) PARTITION BY HASH (client);
SELECT test.sqlstate('SELECT idem_reserve(''meddle'', ''k'', ''\x01'')');
ROLLBACK;
SELECT outcome FROM idem_reserve('meddle', 'looked at', '\x01');

-- Tables of reminders are looked at when one is written, which is at commit, and when they are read.
BEGIN;
SELECT outcome FROM idem_reserve('meddle', 'not reminded of', '\x01');
ALTER TABLE idem_reminder_1 ADD COLUMN more text;
COMMIT;
BEGIN;
SELECT outcome FROM idem_reserve('meddle', 'not reminded of', '\x01');
ALTER TABLE idem_reminder_1 ALTER COLUMN announced TYPE text;
COMMIT;
BEGIN;
ALTER TABLE idem_reminder_2 ADD COLUMN more text;
SELECT test.sqlstate('SELECT idem_claim_stale()');
ROLLBACK;
SELECT state FROM idem_lookup('meddle', 'not reminded of');

-- A row that the same command has changed is not chased for ever.
UPDATE idem_key SET lease_until = clock_timestamp() WHERE client = 'meddle' AND key = 'k';
SELECT (test.failure($$ WITH u AS (UPDATE idem_key SET lease_until = clock_timestamp() - interval '1 s' WHERE client = 'meddle' AND key = 'k' RETURNING 1)
    SELECT r.outcome FROM u, idem_reserve('meddle', 'k', '\x02') r $$)).state;
SELECT state FROM idem_lookup('meddle', 'k');

-- Reindexed, clustered and vacuumed, the keys are the same.
REINDEX INDEX CONCURRENTLY idem_key_pkey;
CLUSTER idem_key USING idem_key_pkey;
VACUUM FULL idem_key;
SELECT outcome FROM idem_reserve('meddle', 'renamed', '\x01');
-- The sweep passes over a table that has become empty.
TRUNCATE idem_key;
SELECT * FROM idem_sweep();

-- It sweeps no table but the extension's own, with the columns that it created.
BEGIN;
ALTER EXTENSION idem DROP TABLE idem_state;
SELECT (test.failure('SELECT idem_sweep()')).*;
ROLLBACK;
BEGIN;
ALTER TABLE idem_reminder_1 ALTER announced TYPE text;
SELECT (test.failure('SELECT idem_sweep()')).state;
ROLLBACK;
SELECT * FROM idem_sweep();

-- A function that has been moved: its schema is where it looks for the tables, from the next call on.
BEGIN;
SELECT outcome FROM idem_reserve('meddling', 'moved', '\x01');
CREATE SCHEMA elsewhere;
ALTER FUNCTION idem_reserve SET SCHEMA elsewhere;
SELECT state, message FROM test.failure($$SELECT elsewhere.idem_reserve('meddling', 'moved', '\x01')$$);
ALTER FUNCTION elsewhere.idem_reserve SET SCHEMA public;
SELECT outcome FROM idem_reserve('meddling', 'moved', '\x01');
ROLLBACK;

-- A type that was given another attribute would take in what lies beside the values: refused, and nothing is done.
BEGIN;
SELECT format('ALTER TYPE %s ADD ATTRIBUTE more text', returned) FROM (
    SELECT DISTINCT prorettype::regtype::text AS returned FROM pg_proc JOIN pg_type t ON t.oid = prorettype
     WHERE proname LIKE 'idem%' AND t.typtype = 'c' ORDER BY 1) types \gexec
SELECT call, f.state, f.hint FROM unnest(ARRAY[
    $$SELECT idem_reserve('meddling', 'wide', '\x01')$$,
    $$SELECT idem_call('meddling', 'wide', 'test.without_nulls(jsonb)', '{}')$$,
    $$SELECT idem_claim_stale()$$,
    $$SELECT idem_lookup('meddling', 'wide')$$,
    $$SELECT idem_sweep()$$,
    $$SELECT idem_stat_rows()$$,
    $$SELECT idem_health()$$]) AS call, test.failure(call) f;
SELECT count(*) FROM idem_key WHERE key = 'wide';
ROLLBACK;
