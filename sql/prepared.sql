-- A transaction that has not ended, met by another one: here it is prepared, so that
-- one session can be both. Promises: rule 9 (PREPARE TRANSACTION works), rule 2
-- (wait), section 3 (in_flight: a transaction that has not ended; its fingerprint is
-- not known; retry-after 1), rule 4 and section 5 (55P03).

CREATE FUNCTION pg_temp.outcome(key text, fp bytea DEFAULT '\x01', wait interval DEFAULT NULL, OUT outcome text, OUT attempt int, OUT retry_after text) LANGUAGE sql AS $$
    SELECT outcome, attempt, headers ->> 'retry-after' FROM idem_reserve('p', key, fp, wait => wait)
$$;
SELECT gen_random_uuid() AS mine, gen_random_uuid() AS theirs \gset

-- A first reservation: in_flight at once, with any fingerprint; a wait ends with its time.
BEGIN;
SELECT outcome FROM idem_reserve('p', 'k', '\x01', token => :'theirs');
PREPARE TRANSACTION 'idem';
SELECT * FROM pg_temp.outcome('k');
SELECT * FROM pg_temp.outcome('k', '\x02');
SELECT * FROM pg_temp.outcome('k', '\x01', '10 ms');
SELECT state FROM idem_lookup('p', 'k');
SELECT test.sqlstate(format('SELECT idem_complete(%L, %L, %L, 200)', 'p', 'k', :'theirs'));
-- The caller's transaction goes on, without a transaction id of its own, and lock_timeout is as it was.
BEGIN;
SELECT outcome, pg_current_xact_id_if_assigned() AS xid FROM pg_temp.outcome('k', '\x01', '10 ms');
SHOW lock_timeout;
COMMIT;
-- lock_timeout applies where it is the shorter one
SET lock_timeout = '10 ms';
SELECT state, message FROM test.failure($$SELECT idem_reserve('p', 'k', '\x01', wait => '1 min')$$);
SELECT * FROM pg_temp.outcome('k', '\x01', '1 ms');
RESET lock_timeout;
SET statement_timeout = '50 ms';
SELECT outcome FROM idem_reserve('p', 'k', '\x01', wait => '1 min');
RESET statement_timeout;
-- It is rolled back: new, for the first time.
ROLLBACK PREPARED 'idem';
SELECT outcome, attempt FROM idem_reserve('p', 'k', '\x01', token => :'mine');
SELECT idem_release('p', 'k', :'mine');
-- It is committed: the lease is what counts, and whoever has the token can complete.
BEGIN;
SELECT outcome FROM idem_reserve('p', 'k', '\x01', token => :'theirs');
SAVEPOINT a;
SELECT outcome FROM idem_reserve('p', 'k 2', '\x01');
ROLLBACK TO a;
PREPARE TRANSACTION 'idem';
COMMIT PREPARED 'idem';
SELECT * FROM pg_temp.outcome('k 2');
SELECT outcome, retry_after::int BETWEEN 2 AND 600 AS rest FROM pg_temp.outcome('k');
SELECT * FROM pg_temp.outcome('k', '\x02');
-- the lease is reminded of, and found when it is over
SELECT test.age('p', 'k', '11 min');
SELECT count(*) FROM (TABLE idem_reminder_1 UNION ALL TABLE idem_reminder_2) r WHERE client = 'p' AND key = 'k' AND token = :'theirs';

-- A completion: not known before it ends. Others that change the key wait for it, as for any UPDATE.
BEGIN;
SELECT idem_complete('p', 'k', :'theirs', 200, 'theirs');
PREPARE TRANSACTION 'idem';
SELECT state FROM idem_lookup('p', 'k');
SELECT * FROM pg_temp.outcome('k');
SELECT * FROM pg_temp.outcome('k', '\x02');
SELECT * FROM pg_temp.outcome('k', '\x01', '10 ms');
SELECT outcome, attempt FROM idem_reserve('p', 'k', '\x01', token => :'theirs');
SET lock_timeout = '10 ms';
SELECT test.sqlstate(format('SELECT idem_complete(%L, %L, %L, 500)', 'p', 'k', :'theirs'));
SELECT test.sqlstate(format('SELECT idem_release(%L, %L, %L)', 'p', 'k', :'theirs'));
SELECT test.sqlstate(format('SELECT idem_complete(%L, %L, %L, 500)', 'p', 'k', :'mine'));
RESET lock_timeout;
COMMIT PREPARED 'idem';
SELECT outcome, convert_from(body, 'UTF8') AS body FROM idem_reserve('p', 'k', '\x01');

-- A takeover, a release, and a second life after expiry, of a row that others see as it was.
SELECT outcome FROM unnest('{taken,released,expired}'::text[]) k, idem_reserve('p', k, '\x01', token => :'theirs');
SELECT test.age('p', 'taken', '11 min'), test.age('p', 'expired', '24 h');
BEGIN;
SELECT outcome, attempt FROM idem_reserve('p', 'taken', '\x01', token => :'mine');
SELECT idem_release('p', 'released', :'theirs');
SELECT outcome, attempt FROM idem_reserve('p', 'expired', '\x02', token => :'mine');
PREPARE TRANSACTION 'idem';
SELECT k, state FROM unnest('{taken,released,expired}'::text[]) k, idem_lookup('p', k);
SELECT k, fp, outcome, attempt, retry_after::int = 1 AS shortest FROM unnest('{taken,released,expired}'::text[]) WITH ORDINALITY k(k, n), unnest('{"\\x01","\\x02"}'::bytea[]) fp, pg_temp.outcome(k, fp) o ORDER BY n, fp;
SELECT k, o.outcome FROM unnest('{taken,released,expired}'::text[]) WITH ORDINALITY k(k, n), pg_temp.outcome(k, '\x01', '5 ms') o ORDER BY n;
-- the sweep waits for nobody, and leaves it
SELECT 'swept' AS swept FROM idem_sweep();
ROLLBACK PREPARED 'idem';
SELECT k, state, attempt FROM unnest('{taken,released,expired}'::text[]) k, idem_lookup('p', k);
SELECT idem_complete('p', 'taken', :'theirs', 200), idem_release('p', 'released', :'theirs');
SELECT * FROM pg_temp.outcome('expired', '\x03');
-- and committed
SELECT outcome FROM idem_reserve('p', 'taken 2', '\x01', token => :'theirs');
SELECT test.age('p', 'taken 2', '11 min');
BEGIN;
SELECT outcome, attempt FROM idem_reserve('p', 'taken 2', '\x01', token => :'mine');
PREPARE TRANSACTION 'idem';
COMMIT PREPARED 'idem';
SELECT test.sqlstate(format('SELECT idem_complete(%L, %L, %L, 200)', 'p', 'taken 2', :'theirs'));
SELECT idem_complete('p', 'taken 2', :'mine', 200);

-- A row that is merely locked, by nobody who is changing it: a wait ends with its time, and then the row is taken over.
SELECT outcome FROM idem_reserve('p', 'locked', '\x01', token => :'theirs');
SELECT test.age('p', 'locked', '11 min');
BEGIN;
SELECT state FROM idem_lookup('p', 'locked'), (SELECT FROM idem_key WHERE client = 'p' AND key = 'locked' FOR UPDATE) l;
PREPARE TRANSACTION 'idem';
SELECT * FROM pg_temp.outcome('locked');
SELECT * FROM pg_temp.outcome('locked', '\x01', '20 ms');
ROLLBACK PREPARED 'idem';
SELECT * FROM pg_temp.outcome('locked', '\x01', '20 ms');
