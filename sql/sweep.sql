-- idem_sweep, by hand; the background worker is off in this server. Promises:
-- section 4 (what idem_sweep returns, max_keys, again until (0, 0)), rule 7 (nothing
-- that is not expired is removed) and section 2 (stale).
SHOW idem.sweeper;
-- From here on the table is this test's own.
TRUNCATE idem_key, idem_reminder_1, idem_reminder_2;
CREATE FUNCTION pg_temp.reminders() RETURNS bigint LANGUAGE sql AS $$
    SELECT count(*) FROM (TABLE idem_reminder_1 UNION ALL TABLE idem_reminder_2) r
$$;
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'idem_sweep_result'::regclass AND attnum > 0 ORDER BY attnum;
SELECT * FROM idem_sweep();

-- Removed is exactly what is expired: in progress, stale or completed.
SELECT gen_random_uuid() AS mine \gset
-- Each key has a token of its own, which a test can say without having kept it.
CREATE FUNCTION pg_temp.token(key text) RETURNS uuid LANGUAGE sql AS $$ SELECT md5(key)::uuid $$;
SELECT count(*) FROM (VALUES ('in progress'), ('stale'), ('completed')) v(k), generate_series(1, 20) i, idem_reserve('w', k || ' ' || i, '\x01', token => pg_temp.token(k || ' ' || i)) WHERE outcome = 'new';
SELECT count(idem_complete('w', key, pg_temp.token(key), 200)) FROM idem_key WHERE key LIKE 'completed%';
SELECT count(test.age('w', key, '11 min')) FROM idem_key WHERE key LIKE 'stale%';
SELECT count(test.age('w', key, '24 h')) FROM idem_key WHERE key LIKE '%0' OR key LIKE '%5';
SELECT split_part(key, ' ', 1) AS k, count(*), count(*) FILTER (WHERE expires_at <= clock_timestamp()) AS expired FROM idem_key GROUP BY k ORDER BY k;
SELECT expired FROM idem_sweep();
SELECT split_part(key, ' ', 1) AS k, count(*), count(*) FILTER (WHERE expires_at <= clock_timestamp()) AS expired FROM idem_key GROUP BY k ORDER BY k;
SELECT * FROM idem_sweep();
-- what is left is as it was
SELECT state, count(*) FROM idem_keys GROUP BY state ORDER BY state;
SELECT DISTINCT outcome FROM idem_key k, idem_reserve('w', k.key, '\x01') WHERE k.key NOT LIKE 'stale%' ORDER BY outcome;

-- At most max_keys at a time, going on where the last call stopped, until there are none.
SELECT count(*) FROM generate_series(1, 1000) i, idem_reserve('many', 'k' || i, '\x01') WHERE outcome = 'new';
SELECT count(test.age('many', 'k' || i, '24 h')) FROM generate_series(1, 1000, 2) i;
SELECT * FROM idem_sweep(1);
SELECT * FROM idem_sweep(99);
SELECT count(*) FROM idem_key WHERE client = 'many';
BEGIN;
SELECT * FROM idem_sweep(100);
SELECT * FROM idem_sweep(100);
ROLLBACK;
SELECT * FROM idem_sweep(max_keys => 399);
SELECT * FROM idem_sweep(2);
SELECT * FROM idem_sweep(2);
SELECT count(*), count(*) FILTER (WHERE expires_at <= clock_timestamp()) AS expired FROM idem_key WHERE client = 'many';
-- NULL: ten times idem.sweep_batch
SELECT count(test.age('many', 'k' || i, '24 h')) FROM generate_series(2, 1000, 2) i;
SELECT setting::int >= 50 AS enough FROM pg_settings WHERE name = 'idem.sweep_batch';
SELECT * FROM idem_sweep(NULL);
SELECT * FROM idem_sweep();
SELECT count(*) FROM idem_key WHERE client = 'many';

-- In the caller's transaction: its own rows, too, and all of it rolls back.
BEGIN;
SELECT outcome FROM idem_reserve('own', 'k', '\x01');
SELECT test.age('own', 'k', '24 h');
SELECT expired FROM idem_sweep();
SELECT outcome, attempt FROM idem_reserve('own', 'k', '\x02');
SELECT * FROM idem_sweep();
ROLLBACK;
SELECT count(*) FROM idem_key WHERE client = 'own';

-- A swept key is new, as an expired one is.
SELECT outcome FROM idem_reserve('own', 'swept', '\x01', token => :'mine');
SELECT test.age('own', 'swept', '24 h');
SELECT * FROM idem_sweep();
SELECT test.sqlstate(format('SELECT idem_complete(%L, %L, %L, 200)', 'own', 'swept', :'mine'));
SELECT outcome, attempt FROM idem_reserve('own', 'swept', '\x02');

-- Stale leases are counted once each, whatever happens to the key later; a reminder is kept as long as it is of use.
TRUNCATE idem_key, idem_reminder_1, idem_reminder_2;
SELECT count(*) FROM generate_series(1, 10) i, idem_reserve('s', 'k' || i, '\x01', token => pg_temp.token('k' || i)) WHERE outcome = 'new';
SELECT pg_temp.reminders();
SELECT * FROM idem_sweep();
SELECT count(test.age('s', 'k' || i, '11 min')) FROM generate_series(1, 6) i;
SELECT * FROM idem_sweep();
SELECT * FROM idem_sweep();
SELECT count(test.age('s', 'k' || i, '11 min')) FROM generate_series(7, 8) i;
SELECT * FROM idem_sweep();
-- completed, late, and released: not counted again, nor reminded of any longer
SELECT count(idem_complete('s', 'k' || i, pg_temp.token('k' || i), 200)) FROM generate_series(1, 3) i;
SELECT count(idem_release('s', 'k' || i, pg_temp.token('k' || i))) FROM generate_series(4, 5) i;
SELECT * FROM idem_sweep();
SELECT pg_temp.reminders();
-- completed in time: never counted
SELECT idem_complete('s', 'k9', pg_temp.token('k9'), 200);
SELECT test.age('s', 'k9', '11 min');
SELECT * FROM idem_sweep();
-- a takeover is another lease: it is counted when it is over in its turn
SELECT outcome, attempt FROM idem_reserve('s', 'k6', '\x01');
SELECT * FROM idem_sweep();
SELECT test.age('s', 'k6', '11 min');
SELECT * FROM idem_sweep();
SELECT * FROM idem_sweep();
-- a lease that its owner has begun anew is not over
SELECT outcome, attempt FROM idem_reserve('s', 'k10', '\x01', token => pg_temp.token('k10'), lease => '1 h');
SELECT test.age('s', 'k10', '11 min');
SELECT * FROM idem_sweep();
SELECT test.age('s', 'k10', '1 h');
SELECT * FROM idem_sweep();
-- everything expires: no key is left, and no reminder
SELECT count(test.age('s', key, '25 h')) FROM idem_key;
SELECT * FROM idem_sweep();
SELECT * FROM idem_sweep();
SELECT (SELECT count(*) FROM idem_key) AS keys, pg_temp.reminders();
