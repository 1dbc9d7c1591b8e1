-- Which reservations are reminded of: those that are committed and unanswered.
-- Promises: section 4 (idem_sweep counts stale leases; idem_claim_stale needs them),
-- rule 9 (savepoints). A key that is answered in its own transaction costs nothing.
TRUNCATE idem_key, idem_reminder_1, idem_reminder_2;
SELECT gen_random_uuid() AS mine \gset
-- What the transaction before has left behind.
CREATE FUNCTION pg_temp.reminded() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    keys text;
BEGIN
    SELECT string_agg(r.key || CASE WHEN k.token = r.token AND k.lease_until = r.lease_until AND NOT r.announced THEN '' ELSE ' (wrong)' END, ', ' ORDER BY r.key) INTO keys
      FROM (TABLE idem_reminder_1 UNION ALL TABLE idem_reminder_2) r LEFT JOIN idem_key k USING (client, key);
    DELETE FROM idem_reminder_1;
    DELETE FROM idem_reminder_2;
    RETURN keys;
END $$;

SELECT outcome FROM idem_reserve('r', 'reserved', '\x01');
SELECT pg_temp.reminded();
-- answered or released in the same transaction; rolled back
BEGIN;
SELECT outcome FROM idem_reserve('r', 'answered', '\x01', token => :'mine');
SELECT idem_complete('r', 'answered', :'mine', 200);
SELECT outcome FROM idem_reserve('r', 'released', '\x01', token => :'mine');
SELECT idem_release('r', 'released', :'mine');
SAVEPOINT a;
SELECT outcome FROM idem_reserve('r', 'rolled back', '\x01');
ROLLBACK TO a;
SELECT outcome FROM idem_reserve('r', 'kept', '\x01');
COMMIT;
SELECT pg_temp.reminded();
-- an answer that is rolled back is none, a release neither
BEGIN;
SELECT outcome FROM idem_reserve('r', 'unanswered', '\x01', token => :'mine');
SELECT outcome FROM idem_reserve('r', 'unreleased', '\x01', token => :'mine');
SAVEPOINT a;
SELECT idem_complete('r', 'unanswered', :'mine', 200), idem_release('r', 'unreleased', :'mine');
ROLLBACK TO a;
COMMIT;
SELECT pg_temp.reminded();
-- reserved within a savepoint that is released, answered in another that is rolled back
BEGIN;
SAVEPOINT a;
SELECT outcome FROM idem_reserve('r', 'nested', '\x01', token => :'mine');
RELEASE a;
SAVEPOINT b;
SELECT idem_complete('r', 'nested', :'mine', 200);
ROLLBACK TO b;
RELEASE b;
SAVEPOINT c;
SELECT outcome FROM idem_reserve('r', 'nested and answered', '\x01', token => :'mine');
RELEASE c;
SELECT idem_complete('r', 'nested and answered', :'mine', 200);
COMMIT;
SELECT pg_temp.reminded();
-- released and reserved again; taken over; begun anew: one reminder, with the last lease
BEGIN;
SELECT outcome FROM idem_reserve('r', 'again', '\x01', token => :'mine');
SELECT idem_release('r', 'again', :'mine');
SELECT outcome FROM idem_reserve('r', 'again', '\x01', lease => '1 min');
SELECT outcome FROM idem_reserve('r', 'anew', '\x01', token => :'mine');
SELECT outcome FROM idem_reserve('r', 'anew', '\x01', token => :'mine', lease => '1 min');
SELECT outcome FROM idem_reserve('r', 'anew', '\x01', token => :'mine', lease => '2 min');
SELECT test.age('r', 'reserved', '11 min');
SELECT outcome, attempt FROM idem_reserve('r', 'reserved', '\x01');
COMMIT;
SELECT pg_temp.reminded();
-- one token for several keys: answering one of them, or giving it up, answers no other
BEGIN;
SELECT outcome FROM idem_reserve('r', 'shared 1', '\x01', token => :'mine');
SELECT outcome FROM idem_reserve('r', 'shared 2', '\x01', token => :'mine');
SELECT idem_complete('r', 'shared 2', :'mine', 200);
SELECT outcome FROM idem_reserve('r', 'shared 3', '\x01', token => :'mine');
SELECT idem_release('r', 'shared 3', :'mine');
COMMIT;
SELECT pg_temp.reminded();
-- expired and used again
SELECT test.age('r', 'kept', '24 h');
SELECT outcome, attempt FROM idem_reserve('r', 'kept', '\x02');
SELECT pg_temp.reminded();
-- outcomes that change nothing
SELECT outcome FROM (VALUES ('answered', '\x01'::bytea), ('kept', '\x02'), ('kept', '\x01')) v(k, fp), idem_reserve('r', k, fp);
SELECT pg_temp.reminded();
-- many at once, in the order of no key
SELECT count(*) FROM generate_series(1, 1000) i, idem_reserve('r', 'many ' || i, '\x01') WHERE outcome = 'new';
SELECT count(*), count(DISTINCT key) FROM (TABLE idem_reminder_1 UNION ALL TABLE idem_reminder_2) r;
TRUNCATE idem_reminder_1, idem_reminder_2;

-- One lease that is over counts once, also where the same token was used again after a release, or after expiry.
TRUNCATE idem_key;
SELECT outcome FROM idem_reserve('r', 'twice', '\x01', token => :'mine');
SELECT idem_release('r', 'twice', :'mine');
SELECT outcome FROM idem_reserve('r', 'twice', '\x01', token => :'mine');
SELECT test.age('r', 'twice', '11 min');
SELECT * FROM idem_sweep();
SELECT * FROM idem_sweep();
SELECT idem_complete('r', 'twice', :'mine', 200);
SELECT gen_random_uuid() AS mine \gset
SELECT outcome FROM idem_reserve('r', 'expired', '\x01', token => :'mine');
SELECT test.age('r', 'expired', '24 h');
SELECT outcome FROM idem_reserve('r', 'expired', '\x01', token => :'mine');
SELECT test.age('r', 'expired', '11 min');
SELECT * FROM idem_sweep();
SELECT idem_complete('r', 'expired', :'mine', 200);

-- A lease that its owner has made shorter is found when it is over, not when it would have been.
SELECT gen_random_uuid() AS mine \gset
SELECT outcome FROM idem_reserve('r', 'shorter', '\x01', lease => '1 h', token => :'mine');
SELECT outcome, attempt FROM idem_reserve('r', 'shorter', '\x01', lease => '1 min', token => :'mine');
SELECT test.age('r', 'shorter', '2 min');
SELECT state FROM idem_lookup('r', 'shorter');
SELECT * FROM idem_sweep();
-- and once, although it was reminded of twice
SELECT test.age('r', 'shorter', '2 h');
SELECT * FROM idem_sweep();
SELECT idem_complete('r', 'shorter', :'mine', 200);

-- Several keys under one token are several leases.
TRUNCATE idem_key, idem_reminder_1, idem_reminder_2;
SELECT gen_random_uuid() AS mine \gset
SELECT outcome FROM unnest('{one,two,three}'::text[]) k, idem_reserve('r', k, '\x01', token => :'mine');
SELECT test.age('r', k, '11 min') FROM unnest('{one,two,three}'::text[]) k;
SELECT * FROM idem_sweep();
SELECT * FROM idem_sweep();
SELECT count(*) FROM (TABLE idem_reminder_1 UNION ALL TABLE idem_reminder_2) r;

-- Writers never wait for a table that is being emptied: they take the other one.
BEGIN;
LOCK TABLE idem_reminder_1 IN ACCESS EXCLUSIVE MODE;
PREPARE TRANSACTION 'emptying';
SET lock_timeout = '10 s';
SELECT outcome FROM idem_reserve('r', 'other table', '\x01');
RESET lock_timeout;
SELECT count(*) FROM idem_reminder_2 WHERE key = 'other table';
ROLLBACK PREPARED 'emptying';
-- unless somebody holds both, on purpose: then the commit waits, as for any lock, and fails with it
BEGIN;
LOCK TABLE idem_reminder_1, idem_reminder_2 IN SHARE MODE;
PREPARE TRANSACTION 'both';
SET lock_timeout = '50 ms';
\set VERBOSITY sqlstate
SELECT outcome FROM idem_reserve('r', 'no table', '\x01');
\set VERBOSITY default
RESET lock_timeout;
SELECT state FROM idem_lookup('r', 'no table');
ROLLBACK PREPARED 'both';
SELECT outcome FROM idem_reserve('r', 'no table', '\x01');
